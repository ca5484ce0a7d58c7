"""How the body of an engine's answer is passed on: event by event, gathered from events, or whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from controller.schema.errors import RoundhouseError
from gateway.exchange.client_response import JSON_LINE, ClientResponse
from gateway.protocols.common import errors
from gateway.protocols.common.context_overflow import CACHE_EXHAUSTED
from gateway.protocols.common.dialect import EventStream, EventTooLongError, StreamCollector, Usage
from gateway.protocols.common.errors import ENGINE_ERROR, client_status
from gateway.protocols.common.openai_events import find_error
from gateway.protocols.common.sse import split_events
from gateway.protocols.common.token_events import TokenEventCounter
from gateway.server.asgi import Header

_CACHE_EXHAUSTED: Final = CACHE_EXHAUSTED.encode()
STREAM_OVERHEAD: Final = 16
"""The most bytes of a stream for one byte of the blocking answer that is gathered from it. An engine that sends more
than this times the bytes that may be held is cut off."""


class CacheExhaustedError(Exception):
    """The engine ended the request, because its KV cache has no room for the request beside the others.

    Raised by `BodyRelay.finish_answer` only, and handled by `Attempt`; clients never see it.
    """

    def __init__(self, *, may_resend: bool) -> None:
        """`may_resend`: the client has no part of an answer. False: its answer has ended with the engine's error."""
        super().__init__()
        self.may_resend = may_resend


class BodyRelay(Protocol):
    """Passes the body of one engine's answer on to a `ClientResponse`.

    `Attempt` makes one when an engine's answer begins, calls `feed_data` for each part, and `finish_answer` once after
    the last part. After an error, neither is called again.
    """

    def feed_data(self, data: bytes) -> None:
        """Take a part of the body, cut anywhere, and send what the client can get of it now.

        Raises:
            RoundhouseError: `engine_disconnected`: the answer is too long, or cannot be passed on. The client is not
                answered: do that, and close the engine's connection.
        """

    def finish_answer(self) -> None:
        """Complete the client's answer after the last part. An error of the engine is passed on as the client's answer.

        Call once.

        Raises:
            CacheExhaustedError: the engine ended the request, because its KV cache is full.
            RoundhouseError: the engine's answer was not complete (`engine_disconnected`), or cannot be translated. The
                client's answer is not complete then.
        """

    @property
    def usage(self) -> Usage | None:
        """Tokens as counted by the engine; None: it has sent no count yet."""

    @property
    def events_passed(self) -> int:
        """Events of a stream received so far, about one per token; 0 for a blocking answer."""

    def count_tokens(self) -> int:
        """Return the generated tokens of a stream received so far (`TokenEventCounter`); 0 for a blocking answer."""


class EventRelay:
    """Passes a stream on as a stream: whole events, as soon as they are complete. A `BodyRelay`. Making one sets
    `answer.events`, by which an error ends the stream in the right form."""

    __slots__ = ("_answer", "_counter", "_events", "events_passed")

    def __init__(self, answer: ClientResponse, events: EventStream) -> None:
        self._answer = answer
        self._events = answer.events = events
        self._counter = TokenEventCounter()
        self.events_passed = 0

    def feed_data(self, data: bytes) -> None:
        """Take a part of the engine's stream, cut anywhere, and send the events that it completes, translated.

        Raises:
            RoundhouseError: `engine_disconnected` if an event is too long. The client is not answered: the caller must
                do that.
        """
        self.events_passed = self._counter.take_data(data)
        try:
            whole_events = self._events.feed_data(data)
        except EventTooLongError as error:
            raise _disconnected_error(f"it sent {error}") from error
        if whole_events:
            self._answer.send_events(whole_events)

    def finish_answer(self) -> None:
        """End the client's stream as its API family ends streams. Call once, after the last part.

        Raises:
            RoundhouseError: `engine_disconnected` if the engine's stream ended without its last event; the client's
                answer is not complete then.
            CacheExhaustedError: the stream ended with the engine's error of a full KV cache, which the client got;
                `may_resend` is False.
        """
        last_events = self._events.finish_stream()
        if not self._events.is_complete:
            if last_events:
                self._answer.send_events(last_events)
            raise _disconnected_error("its stream ended without its last event")
        if last_events and not self._answer.status:
            self._answer.send_events(last_events)
            last_events = b""
        self._answer.end_response(last_events)
        if self._has_exhausted():
            raise CacheExhaustedError(may_resend=False)

    @property
    def usage(self) -> Usage | None:
        """Tokens as counted by the engine; None: it has sent no count yet."""
        return self._events.usage

    def count_tokens(self) -> int:
        """Return the tokens of the stream received so far, as counted by its events and not by the engine's report."""
        return self._counter.count_tokens()

    def _has_exhausted(self) -> bool:
        """Whether an event of the last two reads, over which an event may be cut, reports an exhausted KV cache."""
        data = self._counter.tail
        if _CACHE_EXHAUSTED not in data:
            return False
        return any(errors.is_exhausted(find_error(event)) for event in split_events(data))


class CollectingRelay:
    """Gathers an engine's stream into one blocking answer. A `BodyRelay`.

    A stream of more than `STREAM_OVERHEAD` times `hold_bytes` bytes fails with `engine_disconnected`.
    """

    __slots__ = ("_answer", "_bytes_left", "_collector", "_counter", "events_passed")

    def __init__(self, answer: ClientResponse, collector: StreamCollector, hold_bytes: int) -> None:
        self._answer = answer
        self._collector = collector
        self._bytes_left = hold_bytes * STREAM_OVERHEAD
        self._counter = TokenEventCounter()
        self.events_passed = 0

    def feed_data(self, data: bytes) -> None:
        """Add a part of the engine's stream, cut anywhere, to the answer. Sends nothing.

        Raises:
            RoundhouseError: `engine_disconnected` if the stream or one of its events is too long.
        """
        self.events_passed = self._counter.take_data(data)
        self._bytes_left -= len(data)
        if self._bytes_left < 0:
            raise _disconnected_error("it sent more than a blocking answer may hold")
        try:
            self._collector.feed_data(data)
        except EventTooLongError as error:
            raise _disconnected_error(f"it sent {error}") from error

    def finish_answer(self) -> None:
        """Send the answer that was gathered, or the engine's error, as a whole answer. Call once, after the last part.

        Raises:
            RoundhouseError: `engine_disconnected` if the stream ended without its last event, or an error of the
                translation; the client is not answered then.
            CacheExhaustedError: the engine ended the stream because its KV cache is full; the client got nothing.
        """
        result = self._collector.build_result()
        if result is None:
            raise _disconnected_error("its stream ended without its last event")
        status, body = result
        if status >= 400:
            if errors.reports_exhausted(body):
                raise CacheExhaustedError(may_resend=True)
            engine_status, status = status, errors.answer_status(status, body)
            body = self._answer.dialect.engine_error_body(engine_status, body, self._answer.request_id)
        self._answer.send_whole(status, JSON_LINE, body)

    @property
    def usage(self) -> Usage | None:
        """Tokens as counted by the engine; None: it has sent no count yet."""
        return self._collector.usage

    def count_tokens(self) -> int:
        """Return the tokens of the stream received so far, as counted by its events and not by the engine's report."""
        return self._counter.count_tokens()


class WholeRelay:
    """Passes a blocking answer on when it is whole. A `BodyRelay`.

    A body of more than `hold_bytes` bytes is passed on in parts if `may_flow`; otherwise up to `STREAM_OVERHEAD` times
    as many bytes are held, and more fail with `engine_disconnected`. An error is never passed on in parts, because it
    must not reveal the engine's address: of a long one the first `hold_bytes` are used.
    """

    __slots__ = (
        "_answer",
        "_engine_status",
        "_held_parts",
        "_hold_bytes",
        "_is_error",
        "_is_flowing",
        "_lines",
        "_may_flow",
        "_size",
        "_status",
        "_translate",
        "events_passed",
        "usage",
    )

    def __init__(
        self,
        answer: ClientResponse,
        status: int,
        headers: list[Header],
        hold_bytes: int,
        translate: Callable[[bytes], bytes] | None,
        *,
        may_flow: bool,
    ) -> None:
        """`status`, `headers`: the engine's. `hold_bytes`: bytes of the body to hold in memory.

        `translate`: makes the client's body of the engine's, unless that is an error; None: it stays as it is.
        `may_flow`: a body that is too long to hold is passed on in parts, untranslated.
        """
        self._answer = answer
        self._engine_status = status
        self._status = client_status(status)
        self._lines = _lines(headers, is_error=self._status >= 400)
        self._translate = translate
        self._is_error = self._status >= 400
        self._may_flow = may_flow
        self._hold_bytes = hold_bytes if may_flow or self._is_error else hold_bytes * STREAM_OVERHEAD
        self._held_parts: list[bytes] = []
        self._size = 0
        self._is_flowing = False
        self.events_passed = 0
        self.usage: Usage | None = None

    def feed_data(self, data: bytes) -> None:
        """Hold a part of the body, or send it once the body is passed on in parts. Of an error, parts beyond
        `hold_bytes` are dropped.

        Raises:
            RoundhouseError: `engine_disconnected` if the body is too long to be held and must not be passed on in
                parts, or if a stream has begun, so that no other answer is possible.
        """
        if self._is_flowing:
            self._answer.send_part(self._status, b"", data)
            return
        if self._is_error and self._size > self._hold_bytes:
            return
        self._held_parts.append(data)
        self._size += len(data)
        if self._size > self._hold_bytes and not self._is_error:
            if not self._may_flow:
                raise _disconnected_error("it sent more than a blocking answer may hold")
            held_body = b"".join(self._held_parts)
            self._is_flowing = True
            self.usage = self._find_usage(held_body)
            self._held_parts.clear()
            self._answer.send_part(self._status, self._lines, held_body)

    def finish_answer(self) -> None:
        """Send what was held, translated, or the engine's error in the form of the client's API family; or end the
        answer that was sent in parts. Call once, after the last part.

        Raises:
            CacheExhaustedError: the engine's error says that its KV cache is full; the client is not answered.
            RoundhouseError: `engine_disconnected` if a stream has begun, or what the translation raises; the client's
                answer is not complete then.
        """
        answer = self._answer
        if self._is_flowing:
            answer.end_response()
            return
        held_parts = self._held_parts
        body = held_parts[0] if len(held_parts) == 1 else b"".join(held_parts)
        if self._is_error:
            if errors.reports_exhausted(body):
                raise CacheExhaustedError(may_resend=True)
            self._status = errors.answer_status(self._engine_status, body)
            body = answer.dialect.engine_error_body(self._engine_status, body, answer.request_id)
            if answer.status:
                answer.broken_off_code = ENGINE_ERROR.code
        elif answer.status:
            raise _disconnected_error("it answered a stream with something else")
        else:
            self.usage = self._find_usage(body)
            if self._translate is not None:
                body = self._translate(body)
        answer.send_whole(self._status, self._lines, body)

    def count_tokens(self) -> int:
        """Return 0: the tokens of a blocking answer cannot be counted as they come."""
        return 0

    def _find_usage(self, body: bytes) -> Usage | None:
        request = self._answer.request
        assert request is not None, "it was sent"
        return self._answer.dialect.find_usage(body, request)


def _lines(headers: list[Header], *, is_error: bool) -> bytes:
    type_line, retry_lines = JSON_LINE, b""
    for name, value in headers:
        if name == b"content-type" and not is_error:
            type_line = b"content-type: %b\r\n" % value
        elif name == b"retry-after":
            retry_lines += b"retry-after: %b\r\n" % value
    return type_line + retry_lines


def _disconnected_error(cause: str) -> RoundhouseError:
    return RoundhouseError("engine_disconnected", f"The engine failed: {cause}.")
