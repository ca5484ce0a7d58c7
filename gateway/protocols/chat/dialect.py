"""OpenAI's chat completions and completions: `data:` events, `[DONE]` at the end.

The usage event has no choices and comes last. It is always asked for, and taken out unless the client asked too.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, ClassVar, Final

from controller.schema.errors import RoundhouseError
from controller.schema.routing import ModelRoute
from gateway.protocols.chat import engine_request, reasoning
from gateway.protocols.chat.stream_collector import OpenAIGathering
from gateway.protocols.common import bodies, errors, usage
from gateway.protocols.common.dialect import Events, Gathering
from gateway.protocols.common.envelope import EnvelopeDialect
from gateway.protocols.common.request import InferenceRequest
from gateway.protocols.common.sse import data_of, last_event
from gateway.protocols.common.stream_compat import differs_as_stream, wants_probabilities
from gateway.protocols.common.streams import PassingEvents

DONE: Final = b"data: [DONE]\n\n"
_DONE_EVENT: Final = re.compile(rb"(?:^|\n)data:\s*\[DONE\]\s*\Z")
_ERROR_LINE: Final = b"error:"
"""How older llama-servers begin an error, against the specification."""


class OpenAIEvents(PassingEvents):
    """A stream on its way through. An event that has choices too always passes, whatever it says of usage."""

    __slots__ = ("_strip", "_tally")

    _usage_mark: ClassVar[bytes] = b'"usage"'
    _error_mark: ClassVar[bytes] = b'"error"'

    def __init__(self, *, strip_usage: bool) -> None:
        super().__init__()
        self._strip = strip_usage
        self._tally = usage.Tally()

    def finish(self) -> bytes:
        """An error is not the end: `[DONE]` is."""
        rest = super().finish()
        return rest + DONE if self._is_error(last_event(self._last)) else rest

    def failure(self, error: RoundhouseError, request_id: str) -> bytes:
        """An error, and `[DONE]`; nothing more where the stream was complete."""
        if self.is_complete:
            return b"" if self._ends(last_event(self._last)) else DONE
        return as_events(errors.own_body(error, request_id))

    def _seen(self, event: bytes) -> bytes:
        if usage.OBJECT.search(event):
            fields = errors.decoded(data_of(event))
            if isinstance(fields, dict) and isinstance(fields.get("usage"), dict):
                self._tally.note(fields["usage"], fields.get("choices"))
                self.usage = self._tally.usage
                return b"" if self._strip and fields.get("choices") == [] else event
        error = _error_in(event) if self._error_mark in event else None
        return event if error is None else error_event(event, error)

    def _ends(self, event: bytes) -> bool:
        return _DONE_EVENT.search(event) is not None

    def _is_error(self, event: bytes) -> bool:
        return _error_in(event) is not None


class ChatEvents(OpenAIEvents):
    """Of chat completions: what the model thinks is told under both of its names."""

    __slots__ = ()

    def feed(self, chunk: bytes) -> bytes:
        """See Events."""
        events = super().feed(chunk)
        return reasoning.in_events(events) if reasoning.MARK in events else events


class ChatGathering(OpenAIGathering):
    """The same, in a blocking answer made of a stream."""

    __slots__ = ()

    def result(self) -> tuple[int, bytes] | None:
        """See Gathering."""
        result = super().result()
        return result if result is None else (result[0], reasoning.in_body(result[1]))


class OpenAIDialect(EnvelopeDialect):
    """Chat completions, or completions."""

    may_flow: bool = True

    def __init__(self, *, is_chat: bool) -> None:
        self._is_chat = is_chat

    def body_for(self, request: InferenceRequest, route: ModelRoute, *, as_stream: bool) -> bytes:
        """See Dialect."""
        if self._is_chat:
            request = engine_request.for_engine(request, route)
        if as_stream:
            return bodies.as_stream(request, route.served_name, ask_for_usage=True)
        if request.stream and not request.wants_usage:
            return bodies.with_usage(request, route.served_name)
        return bodies.as_named(request, route.served_name)

    def events(self, request: InferenceRequest) -> Events:
        """See Dialect."""
        made = ChatEvents if self._is_chat else OpenAIEvents
        return made(strip_usage=not request.wants_usage)

    def gathering(self, request: InferenceRequest) -> Gathering | None:
        """None, beside what `differs_as_stream` says, where probabilities are asked for and a stream of llama-server
        lacks some: chat has none for tokens without text, such as the last one; completions have those of a stop string
        too, which a blocking answer has not."""
        fields = request.fields
        if differs_as_stream(fields) or (wants_probabilities(fields) and (self._is_chat or fields.get("stop"))):
            return None
        return ChatGathering(is_chat=True) if self._is_chat else OpenAIGathering(is_chat=False)

    def whole(self, request: InferenceRequest) -> Callable[[bytes], bytes] | None:
        """See Dialect."""
        return reasoning.in_body if self._is_chat else None

    def error_as_events(self, body: bytes, request: InferenceRequest | None = None) -> bytes:
        """See Dialect."""
        return as_events(body)


CHAT: Final = OpenAIDialect(is_chat=True)
COMPLETIONS: Final = OpenAIDialect(is_chat=False)


def as_events(body: bytes) -> bytes:
    """An error's JSON, and the end."""
    return errors.as_event(body) + DONE


def error_event(event: bytes, error: dict[str, Any]) -> bytes:
    """An event that tells an engine's error, with every field of our envelope."""
    if event.startswith(b"data:") and errors.is_envelope({"error": error}):
        return event
    return b"data: " + errors.engine_body(errors.status_of(error), errors.encoded({"error": error}), None) + b"\n\n"


def _error_in(event: bytes) -> dict[str, Any] | None:
    if event.lstrip().startswith(_ERROR_LINE):
        error = errors.decoded(event.lstrip()[len(_ERROR_LINE) :])
        return error if isinstance(error, dict) else {"message": "The engine failed."}
    if b'"error"' not in event:
        return None
    fields = errors.decoded(data_of(event))
    error = fields.get("error") if isinstance(fields, dict) else None
    if error is None or isinstance(error, dict):
        return error
    return {"message": errors.as_text(error)}
