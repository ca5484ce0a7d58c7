"""OpenAI's streams of `data:` events that end with `[DONE]`."""

from __future__ import annotations

import re
from typing import Any, ClassVar, Final

from controller.schema.errors import RoundhouseError
from gateway.protocols.common import errors, usage
from gateway.protocols.common.sse import data_of, last_event
from gateway.protocols.common.streams import PassthroughStream

DONE: Final = b"data: [DONE]\n\n"
_DONE_EVENT: Final = re.compile(rb"(?:^|\n)data:\s*\[DONE\]\s*\Z")
_ERROR_NAME: Final = re.compile(rb"(?:^|\n)event: ?error\r?\n")
"""The line that names an event `error`."""
_ERROR_LINE: Final = b"error:"
"""Start of an error in the streams of older llama-servers, contrary to the specification."""


class OpenAIStream(PassthroughStream):
    """`EventStream` for OpenAI's `data:` events; one instance serves one answer. Events pass unchanged, except that
    error events get the fields of Roundhouse's error envelope (see `errors`) and that `strip_usage` removes usage
    events whose list of choices is empty.
    """

    __slots__ = ("_request_id", "_strip", "_tally")

    _usage_mark: ClassVar[bytes] = b'"usage"'
    _error_mark: ClassVar[bytes] = b"error"

    def __init__(self, request_id: str, *, strip_usage: bool) -> None:
        super().__init__()
        self._request_id = request_id
        self._strip = strip_usage
        self._tally = usage.UsageTally()

    def finish_stream(self) -> bytes:
        """Return the event that no blank line closed, if it is `[DONE]` or an error, and `[DONE]` if the stream ended
        with an error. Empty otherwise. See `EventStream`."""
        rest = super().finish_stream()
        return rest + DONE if self._is_error(last_event(self._last)) else rest

    def fail_stream(self, error: RoundhouseError, request_id: str) -> bytes:
        """Return the error as an event and `[DONE]`. If the engine's stream ended with an error already, return
        `[DONE]` alone; if with `[DONE]`, nothing. Call at most once, and not after `finish_stream` of a complete
        stream. See `EventStream`."""
        if self.is_complete:
            return b"" if self._is_last(last_event(self._last)) else DONE
        return as_events(errors.own_body(error, request_id))

    def _filter_event(self, event: bytes) -> bytes:
        if usage.OBJECT.search(event):
            fields = errors.decode_json(data_of(event))
            if isinstance(fields, dict) and isinstance(fields.get("usage"), dict):
                self._tally.note_usage(fields["usage"], fields.get("choices"))
                self.usage = self._tally.usage
                if self._strip and fields.get("choices") == []:
                    return b""
        error = find_error(event)
        return event if error is None else error_event(event, error, self._request_id)

    def _is_last(self, event: bytes) -> bool:
        return _DONE_EVENT.search(event) is not None

    def _is_error(self, event: bytes) -> bool:
        return find_error(event) is not None


def as_events(body: bytes) -> bytes:
    """Return the JSON of an error as a `data:` event, followed by `data: [DONE]`."""
    return errors.as_event(body) + DONE


def error_event(event: bytes, error: dict[str, Any], request_id: str) -> bytes:
    """Return the `data:` event to send in place of an engine's error event.

    `error` is the event's error object, from `find_error`. The result has every field of Roundhouse's error envelope
    and no network address. An event that has these fields and no address is returned unchanged.
    """
    if event.startswith(b"data:") and errors.is_envelope({"error": error}) and not errors.tells_address(error):
        return event
    body = errors.engine_body(errors.status_of(error), errors.encode_json({"error": error}), request_id)
    return b"data: " + body + b"\n\n"


def find_error(event: bytes) -> dict[str, Any] | None:
    """Return the error object of an event; None if the event is no error.

    An error is an object with the field `error`, an event named `error`, or an event that starts with `error:` (older
    llama-servers). An error that is not an object is returned as `{"message": ...}`.
    """
    if b"error" not in event:
        return None
    stripped = event.lstrip()
    if stripped.startswith(_ERROR_LINE):
        return _as_object(errors.decode_json(stripped[len(_ERROR_LINE) :]))
    data = data_of(event)
    fields = errors.decode_json(data)
    error = fields.get("error") if isinstance(fields, dict) else None
    if error is None and _ERROR_NAME.search(event) is not None:
        error = data.decode(errors="replace") if fields is None else fields
    return None if error is None else _as_object(error)


def _as_object(error: Any) -> dict[str, Any]:
    if isinstance(error, dict):
        return error
    return {"message": errors.as_text(error) if error else "The engine failed."}
