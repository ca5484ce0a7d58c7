"""Messages of Anthropic's API: whether they and their events are what the package's types say, and the events that
chunks of an engine become."""

from __future__ import annotations

import json
from typing import Any

import pydantic
from anthropic.types import Message, RawMessageStreamEvent

from contract.routing import ModelRoute
from gateway.protocols.anthropic.via_chat import MESSAGES_VIA_CHAT
from gateway.protocols.common.request import InferenceRequest, parse_request
from tests.fakes.fake_controller import route

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
    kept = [event for event in events if event["type"] != "ping"]
    open_block: int | None = None
    blocks = 0
    for place, event in enumerate(kept):
        kind, is_last = event["type"], place == len(kept) - 1
        assert (kind == "message_start") == (place == 0) or (kind == "error" and is_last), f"{kind} at {place}"
        assert (kind in ("message_stop", "error")) == is_last, f"{kind} at {place} of {len(kept)}"
        if kind == "content_block_start":
            assert (event["index"], open_block) == (blocks, None)
            open_block, blocks = blocks, blocks + 1
        elif kind in ("content_block_delta", "content_block_stop"):
            assert event["index"] == open_block
            open_block = None if kind == "content_block_stop" else open_block
        elif kind in ("message_delta", "message_stop"):
            assert open_block is None
    return kept


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


LLAMA_SERVER = route("m").model_copy(update={"backend": "llama_server"})

Fields = dict[str, Any]
Delta = dict[str, Any]

ASKED: Fields = {"model": "claude-alias", "max_tokens": 99, "messages": [{"role": "user", "content": "Hi"}]}
USAGE = {
    "prompt_tokens": 12,
    "completion_tokens": 7,
    "prompt_tokens_details": {"cached_tokens": 4},
    "completion_tokens_details": {"reasoning_tokens": 3},
}
NONE_TOLD = {"input_tokens": 0, "cache_read_input_tokens": 0, "output_tokens": 0}
COUNTED = {
    "input_tokens": 8,
    "cache_read_input_tokens": 4,
    "output_tokens": 7,
    "output_tokens_details": {"thinking_tokens": 3},
}


def request_of(engine: ModelRoute = LLAMA_SERVER, **fields: Any) -> InferenceRequest:
    request = parse_request(json.dumps({**ASKED, **fields}).encode(), may_stream=True)
    request.id = "req-7"
    MESSAGES_VIA_CHAT.check_request(request, engine)
    return request


def chunk(delta: Delta, finish: str | None = None, *, index: int = 0, **more: Any) -> bytes:
    """An event of the engine's."""
    choice = {"index": index, "delta": delta, "finish_reason": finish, **more}
    return b"data: " + json.dumps({"id": "chatcmpl-7", "choices": [choice]}).encode() + b"\n\n"


def call(index: int, arguments: str, name: str | None = None) -> Delta:
    function = {"arguments": arguments} if name is None else {"name": name, "arguments": arguments}
    return {"tool_calls": [{"index": index, "function": function} | ({} if name is None else {"id": f"id{index}"})]}


def streamed(*chunks: bytes, usage: Fields | None = USAGE, done: bytes = b"data: [DONE]\n\n", **fields: Any) -> bytes:
    """What the client gets of the engine's events."""
    events = MESSAGES_VIA_CHAT.open_stream(request_of(stream=True, **fields))
    body = (
        b"" if usage is None else b"data: " + json.dumps({"id": "x", "choices": [], "usage": usage}).encode() + b"\n\n"
    )
    out = b"".join([events.feed_data(each) for each in (*chunks, body, done)]) + events.finish_stream()
    assert events.is_complete
    checked_events(out)
    return out


def lines(*events: Fields) -> bytes:
    pairs = [(each["type"], json.dumps(each, ensure_ascii=False, separators=(",", ":"))) for each in events]
    return "".join([f"event: {kind}\ndata: {data}\n\n" for kind, data in pairs]).encode()


def started(index: int, **block: Any) -> Fields:
    return {"type": "content_block_start", "index": index, "content_block": block}


def grew(index: int, kind: str, **delta: Any) -> Fields:
    return {"type": "content_block_delta", "index": index, "delta": {"type": kind, **delta}}


def stopped(index: int) -> Fields:
    return {"type": "content_block_stop", "index": index}


def ended(reason: str, usage: Fields = COUNTED, sequence: str | None = None) -> tuple[Fields, Fields]:
    delta = {"stop_reason": reason, "stop_sequence": sequence}
    return {"type": "message_delta", "delta": delta, "usage": usage}, {"type": "message_stop"}


BEGUN: Fields = {
    "type": "message_start",
    "message": {
        "id": "msg_7",
        "type": "message",
        "role": "assistant",
        "model": "claude-alias",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": 0, "output_tokens": 0},
    },
}
TEXT: Fields = {"type": "text", "text": ""}
THINKING: Fields = {"type": "thinking", "thinking": "", "signature": ""}


def texts_of(out: bytes) -> list[str]:
    """The parts of the text and of the thoughts, which a signature ends."""
    deltas = [each["delta"] for each in checked_events(out) if each["type"] == "content_block_delta"]
    return [delta.get("text") or delta.get("thinking") or "" for delta in deltas]
