"""OpenAI's responses: typed events. The last one ends the stream and holds the whole response, its usage too."""

from __future__ import annotations

import re
from typing import Any, ClassVar, Final

from controller.schema.errors import RoundhouseError
from controller.schema.routing import ModelRoute
from gateway.dialects import bodies, errors, usage
from gateway.dialects.base import Events, Gathering
from gateway.dialects.envelope import EnvelopeDialect
from gateway.dialects.exclusions import differs_as_stream, wants_probabilities
from gateway.dialects.reading import Fields, GatheredEvents
from gateway.dialects.streams import PassingEvents
from gateway.request import InferenceRequest
from gateway.sse import data_of

_LAST_TYPES: Final = ("response.completed", "response.failed", "response.incomplete")
_LAST: Final = re.compile(rb'"type"\s*:\s*"response\.(?:completed|failed|incomplete)"|\ndata:\s*\[DONE\]\s*\Z')
_LAST_TYPE: Final = re.compile(r'"type"\s*:\s*"(?:response\.(?:completed|failed|incomplete)|error)"')
_NUMBER: Final = re.compile(rb'"sequence_number"\s*:\s*(\d{1,9})\b')


class ResponsesEvents(PassingEvents):
    """A stream on its way through."""

    __slots__ = ()

    _usage_mark: ClassVar[bytes] = b'"usage"'
    _error_mark: ClassVar[bytes] = b'"error"'

    def failure(self, error: RoundhouseError, request_id: str) -> bytes:
        """An error event, numbered as the next one; nothing more where the stream was complete."""
        if self.is_complete:
            return b""
        return _error_event(errors.own_body(error, request_id), self._next_number())

    def _next_number(self) -> int:
        numbers = _NUMBER.findall(self._last)
        return int(numbers[-1]) + 1 if numbers else 0

    def _seen(self, event: bytes) -> bytes:
        fields = _fields_of(event) if self._usage_mark in event or self._error_mark in event else None
        if fields is None:
            return event
        response = fields.get("response")
        told = response.get("usage") if isinstance(response, dict) else None
        if isinstance(told, dict):
            self.usage = usage.usage_of(told)
        if fields.get("type") is None and fields.get("error") is not None:
            # llama-server fails as in a chat.
            return _error_event(_envelope(fields["error"]), self._next_number())
        return event

    def _ends(self, event: bytes) -> bool:
        return _LAST.search(b"\n" + event) is not None

    def _is_error(self, event: bytes) -> bool:
        fields = _fields_of(event) if self._error_mark in event else None
        return fields is not None and (fields.get("type") == "error" or _is_bare_error(fields))


class ResponsesGathering(GatheredEvents):
    """The last event's response."""

    __slots__ = ("_response",)

    def __init__(self) -> None:
        super().__init__()
        self._response: Fields | None = None

    def _read(self, event: str) -> None:
        # Only the last event counts, so the others are not decoded.
        if _LAST_TYPE.search(event) or '"error"' in event:
            super()._read(event)

    def _take(self, fields: Fields) -> None:
        kind = fields.get("type")
        if kind == "error":
            told = {name: value for name, value in fields.items() if name not in ("type", "sequence_number")}
            self._failed(told)
        elif _is_bare_error(fields):
            self._failed(fields["error"])
        elif kind in _LAST_TYPES and isinstance(fields.get("response"), dict):
            self._response = fields["response"]
            self.usage = usage.usage_of(self._response.get("usage"))

    def _answer(self) -> Any:
        response = self._response
        if response is None:
            return None
        # llama-server says these of blocking answers alone.
        if response.get("status") == "completed":
            response.setdefault("completed_at", response.get("created_at"))
        output = response.get("output")
        for item in output if isinstance(output, list) else ():
            if isinstance(item, dict) and item.get("type") == "reasoning":
                item.setdefault("status", "completed")
        return response


class ResponsesDialect(EnvelopeDialect):
    """Responses."""

    def body_for(self, request: InferenceRequest, route: ModelRoute, *, as_stream: bool) -> bytes:
        """See Dialect."""
        if as_stream:
            return bodies.as_stream(request, route.served_name, ask_for_usage=False)
        return bodies.as_named(request, route.served_name)

    def events(self, request: InferenceRequest) -> Events:
        """See Dialect."""
        return ResponsesEvents()

    def gathering(self, request: InferenceRequest) -> Gathering | None:
        """None, beside what `differs_as_stream` says, for `background`: a blocking call does not wait for its end."""
        fields = request.fields
        if differs_as_stream(fields) or wants_probabilities(fields) or fields.get("background"):
            return None
        return ResponsesGathering()

    def error_as_events(self, body: bytes) -> bytes:
        """See Dialect. Nothing was sent before it, so its number is 0."""
        return _error_event(body, 0)


RESPONSES: Final = ResponsesDialect()


def _error_event(envelope: bytes, number: int) -> bytes:
    error = errors.decoded(envelope)["error"]
    first = {"type": "error", "code": error.get("code"), "message": error.get("message"), "param": error.get("param")}
    rest = {name: value for name, value in error.items() if name not in first}
    return b"event: error\ndata: " + errors.encoded({**first, "sequence_number": number, **rest}) + b"\n\n"


def _envelope(error: Any) -> bytes:
    return errors.engine_body(errors.status_of(error), errors.encoded({"error": error}), None)


def _fields_of(event: bytes) -> Fields | None:
    fields = errors.decoded(data_of(event))
    return fields if isinstance(fields, dict) else None


def _is_bare_error(fields: Fields) -> bool:
    return fields.get("type") is None and fields.get("error") is not None
