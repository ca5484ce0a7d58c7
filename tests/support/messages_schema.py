"""Whether messages and their events are what the `anthropic` package's types say, to the letter."""

from __future__ import annotations

import json
from typing import Any

import pydantic
from anthropic.types import Message, RawMessageStreamEvent

_EVENT: pydantic.TypeAdapter[Any] = pydantic.TypeAdapter(RawMessageStreamEvent)
_KINDS = {
    "message_start": ("type", "message"),
    "content_block_start": ("type", "index", "content_block"),
    "content_block_delta": ("type", "index", "delta"),
    "content_block_stop": ("type", "index"),
    "message_delta": ("type", "delta", "usage"),
    "message_stop": ("type",),
}
"""Type of an event to its fields: the package's types take others too."""
_ERRORS = (
    *("invalid_request_error", "authentication_error", "permission_error", "not_found_error", "request_too_large"),
    *("rate_limit_error", "timeout_error", "api_error", "overloaded_error", "billing_error"),
)


def checked_message(fields: Any) -> Message:
    """A whole message. Each of its fields is one that the types know."""
    message = Message.model_validate(fields, strict=True)
    assert _unknown(message) == []
    for block in message.content:
        assert _unknown(block) == []
    assert _unknown(message.usage) == []
    return message


def checked_events(stream: bytes) -> list[dict[str, Any]]:
    """The data of a whole stream's events, in the order that the reference gives: a message begins, blocks one after
    the other, the message's end. Pings may stand anywhere; an error is the end."""
    events = [_event(each) for each in stream.decode().split("\n\n") if each]
    told = [event for event in events if event["type"] != "ping"]
    open_block: int | None = None
    blocks = 0
    for place, event in enumerate(told):
        kind, is_last = event["type"], place == len(told) - 1
        assert (kind == "message_start") == (place == 0) or (kind == "error" and is_last), f"{kind} at {place}"
        assert (kind in ("message_stop", "error")) == is_last, f"{kind} at {place} of {len(told)}"
        if kind == "content_block_start":
            assert (event["index"], open_block) == (blocks, None)
            open_block, blocks = blocks, blocks + 1
        elif kind in ("content_block_delta", "content_block_stop"):
            assert event["index"] == open_block
            open_block = None if kind == "content_block_stop" else open_block
        elif kind in ("message_delta", "message_stop"):
            assert open_block is None
    return told


def _event(text: str) -> dict[str, Any]:
    name, data = text.split("\n")
    fields: dict[str, Any] = json.loads(data.removeprefix("data: "))
    assert name == f"event: {fields['type']}"
    if fields["type"] == "error":
        assert fields["error"]["type"] in _ERRORS
        assert isinstance(fields["error"]["message"], str)
    elif fields["type"] != "ping":
        _EVENT.validate_python(fields, strict=True)
        assert tuple(fields) == _KINDS[fields["type"]]
    return fields


def _unknown(model: pydantic.BaseModel) -> list[str]:
    return list(model.model_extra or ())
