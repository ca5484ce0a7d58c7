"""From an engine's answer to the client's: event by event, gathered, or whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from controller.schema.errors import RoundhouseError
from gateway.exchange.client_response import JSON_LINE, Answer
from gateway.protocols.common.dialect import Events, EventTooLongError, Gathering, Usage
from gateway.protocols.common.engine_status import ENGINE_ERROR, client_status
from gateway.server.asgi import Header

STREAM_OVERHEAD: Final = 16
"""Bytes of a stream that may become one byte of a blocking answer: more is what a stream cannot be made of."""


class Relay(Protocol):
    """What becomes of the body of an engine's answer."""

    def data(self, data: bytes) -> None:
        """Take a part. Raises RoundhouseError."""

    def end(self) -> None:
        """Complete the client's answer. Raises RoundhouseError: the engine's was not complete."""

    @property
    def usage(self) -> Usage | None:
        """Tokens, as far as the engine has told."""

    @property
    def passed(self) -> int:
        """Events of a stream that have come."""


class EventRelay:
    """A stream passes. Nothing happens to a chunk but a look and a write."""

    __slots__ = ("_answer", "_events", "passed")

    def __init__(self, answer: Answer, events: Events) -> None:
        self._answer = answer
        self._events = answer.events = events
        self.passed = 0

    def data(self, data: bytes) -> None:
        """Pass on the events that are whole now."""
        try:
            whole_events = self._events.feed(data)
        except EventTooLongError as error:
            raise _failed(f"it sent {error}") from error
        if whole_events:
            self.passed += whole_events.count(b"\n\n")
            self._answer.send_events(whole_events)

    def end(self) -> None:
        """End as the family ends."""
        last_events = self._events.finish()
        if not self._events.is_complete:
            if last_events:
                self._answer.send_events(last_events)
            raise _failed("its stream ended without its last event")
        if last_events and not self._answer.status:
            self._answer.send_events(last_events)
            last_events = b""
        self._answer.end(last_events)

    @property
    def usage(self) -> Usage | None:
        """Of the usage event."""
        return self._events.usage


class GatheringRelay:
    """A stream becomes a blocking answer."""

    __slots__ = ("_answer", "_bytes_left", "_gathering", "passed")

    def __init__(self, answer: Answer, collector: Gathering, hold_bytes: int) -> None:
        self._answer = answer
        self._gathering = collector
        self._bytes_left = hold_bytes * STREAM_OVERHEAD
        self.passed = 0

    def data(self, data: bytes) -> None:
        """Add to the answer."""
        self.passed += data.count(b"\n\n")
        self._bytes_left -= len(data)
        if self._bytes_left < 0:
            raise _failed("it sent more than a blocking answer may hold")
        try:
            self._gathering.feed(data)
        except EventTooLongError as error:
            raise _failed(f"it sent {error}") from error

    def end(self) -> None:
        """Send it."""
        result = self._gathering.result()
        if result is None:
            raise _failed("its stream ended without its last event")
        status, body = result
        if status >= 400:
            body = self._answer.dialect.engine_error(status, body, self._answer.request_id)
        self._answer.whole(status, JSON_LINE, body)

    @property
    def usage(self) -> Usage | None:
        """As the stream told."""
        return self._gathering.usage


class WholeRelay:
    """A body is passed on once it is whole; one longer than `hold_bytes` flows through as it is, if it may."""

    __slots__ = (
        "_answer",
        "_engine_status",
        "_flows",
        "_held",
        "_hold_bytes",
        "_lines",
        "_may_flow",
        "_size",
        "_status",
        "_translate",
        "passed",
        "usage",
    )

    def __init__(
        self,
        answer: Answer,
        status: int,
        headers: list[Header],
        hold_bytes: int,
        translate: Callable[[bytes], bytes] | None,
        *,
        may_flow: bool,
    ) -> None:
        """`translate` makes the client's body of the engine's, where that is no error. `may_flow`: an answer that is
        too long to hold is passed on without it."""
        self._answer = answer
        self._engine_status = status
        self._status = client_status(status)
        self._lines = _lines(headers, is_error=self._status >= 400)
        self._translate = translate if self._status < 400 else None
        self._may_flow = may_flow or self._status >= 400
        self._hold_bytes = hold_bytes if self._may_flow else hold_bytes * STREAM_OVERHEAD
        self._held: list[bytes] = []
        self._size = 0
        self._flows = False
        self.passed = 0
        self.usage: Usage | None = None

    def data(self, data: bytes) -> None:
        """Hold it, or let it flow."""
        if self._flows:
            self._answer.flow(self._status, b"", data)
            return
        self._held.append(data)
        self._size += len(data)
        if self._size > self._hold_bytes:
            if not self._may_flow:
                raise _failed("it sent more than a blocking answer may hold")
            held_body = b"".join(self._held)
            self._flows = True
            self.usage = self._answer.dialect.usage_in(held_body)
            self._held.clear()
            self._answer.flow(self._status, self._lines, held_body)

    def end(self) -> None:
        """Send what was held."""
        answer = self._answer
        if self._flows:
            answer.end()
            return
        held_parts = self._held
        body = held_parts[0] if len(held_parts) == 1 else b"".join(held_parts)
        if self._status >= 400:
            body = answer.dialect.engine_error(self._engine_status, body, answer.request_id)
            if answer.status:
                answer.broken_off = ENGINE_ERROR.code
        elif answer.status:
            raise _failed("it answered a stream with something else")
        else:
            self.usage = answer.dialect.usage_in(body)
            if self._translate is not None:
                body = self._translate(body)
        answer.whole(self._status, self._lines, body)


def _lines(headers: list[Header], *, is_error: bool) -> bytes:
    lines = JSON_LINE
    for name, value in headers:
        if name == b"content-type" and not is_error:
            lines = b"content-type: %b\r\n" % value
    for name, value in headers:
        if name == b"retry-after":
            lines += b"retry-after: %b\r\n" % value
    return lines


def _failed(cause: str) -> RoundhouseError:
    return RoundhouseError("engine_disconnected", f"The engine failed: {cause}.")
