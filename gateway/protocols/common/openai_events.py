"""Streams of `data:` events, `[DONE]` at the end, as OpenAI has them."""

from __future__ import annotations

import re
from typing import Any, ClassVar, Final

from controller.schema.errors import RoundhouseError
from gateway.protocols.common import errors, usage
from gateway.protocols.common.sse import data_of, last_event
from gateway.protocols.common.streams import PassthroughStream

DONE: Final = b"data: [DONE]\n\n"
_DONE_EVENT: Final = re.compile(rb"(?:^|\n)data:\s*\[DONE\]\s*\Z")
_ERROR_LINE: Final = b"error:"
"""How older llama-servers begin an error, against the specification."""


class OpenAIStream(PassthroughStream):
    """A stream on its way through. An event that has choices too always passes, whatever it says of usage."""

    __slots__ = ("_strip", "_tally")

    _usage_mark: ClassVar[bytes] = b'"usage"'
    _error_mark: ClassVar[bytes] = b'"error"'

    def __init__(self, *, strip_usage: bool) -> None:
        super().__init__()
        self._strip = strip_usage
        self._tally = usage.UsageTally()

    def finish_stream(self) -> bytes:
        """An error is not the end: `[DONE]` is."""
        rest = super().finish_stream()
        return rest + DONE if self._is_error(last_event(self._last)) else rest

    def fail_stream(self, error: RoundhouseError, request_id: str) -> bytes:
        """An error, and `[DONE]`; nothing more where the stream was complete."""
        if self.is_complete:
            return b"" if self._is_last(last_event(self._last)) else DONE
        return as_events(errors.own_body(error, request_id))

    def _filter_event(self, event: bytes) -> bytes:
        if usage.OBJECT.search(event):
            fields = errors.decode_json(data_of(event))
            if isinstance(fields, dict) and isinstance(fields.get("usage"), dict):
                self._tally.note_usage(fields["usage"], fields.get("choices"))
                self.usage = self._tally.usage
                return b"" if self._strip and fields.get("choices") == [] else event
        error = _error_in(event) if self._error_mark in event else None
        return event if error is None else error_event(event, error)

    def _is_last(self, event: bytes) -> bool:
        return _DONE_EVENT.search(event) is not None

    def _is_error(self, event: bytes) -> bool:
        return _error_in(event) is not None


def as_events(body: bytes) -> bytes:
    """An error's JSON, and the end."""
    return errors.as_event(body) + DONE


def error_event(event: bytes, error: dict[str, Any]) -> bytes:
    """An event that tells an engine's error, with every field of our envelope."""
    if event.startswith(b"data:") and errors.is_envelope({"error": error}):
        return event
    return b"data: " + errors.engine_body(errors.status_of(error), errors.encode_json({"error": error}), None) + b"\n\n"


def _error_in(event: bytes) -> dict[str, Any] | None:
    if event.lstrip().startswith(_ERROR_LINE):
        error = errors.decode_json(event.lstrip()[len(_ERROR_LINE) :])
        return error if isinstance(error, dict) else {"message": "The engine failed."}
    if b'"error"' not in event:
        return None
    fields = errors.decode_json(data_of(event))
    error = fields.get("error") if isinstance(fields, dict) else None
    if error is None or isinstance(error, dict):
        return error
    return {"message": errors.as_text(error)}
