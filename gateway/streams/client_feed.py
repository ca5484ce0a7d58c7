"""Feeds the client of the request that makes a stream, from the stream and at the client's pace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from controller.schema.errors import RoundhouseError
from gateway.protocols.common.large_body import LargeBody
from gateway.server.call import Handler
from gateway.streams.stream import ResumableStream


class FedCall(Protocol):
    """What a feed asks of a `ClientCall`."""

    handler: Handler | None

    def start_response(self, status: int, lines: bytes, first_part: bytes) -> None:
        """See ClientCall, as for the others."""

    def send_part(self, part: bytes) -> None: ...

    def end_response(self, last_part: bytes = b"") -> None: ...


class ClientFeed:
    """The handler of a client's call from the first byte of its stream on, and a `StreamReader`. The request goes on
    whatever becomes of the client."""

    __slots__ = ("_call", "_is_full", "_is_started", "_lines", "_lost_events", "_offset", "_on_gone", "_stream")

    def __init__(
        self,
        stream: ResumableStream,
        call: FedCall,
        lines: bytes,
        lost_events: bytes,
        on_gone: Callable[[], None],
        *,
        sent_bytes: int = 0,
    ) -> None:
        """Args:

        stream: what the client is sent.
        call: the client's.
        lines: header lines of the answer, whose status is 200.
        lost_events: tell the client that it was too slow, and lost a part of the stream.
        on_gone: called when the client leaves before the end.
        sent_bytes: of the stream, what the client was sent already, after the head; 0: not even the head.
        """
        self._stream = stream
        self._call: FedCall | None = call
        self._lines = lines
        self._lost_events = lost_events
        self._on_gone = on_gone
        self._offset = sent_bytes
        self._is_started = sent_bytes > 0
        self._is_full = False
        stream.readers.add(self)

    def wake(self) -> None:
        """See StreamReader. Sends all that the client takes."""
        while self._call is not None and not self._is_full:
            events, is_end = self._stream.read(self._offset, self._lost_events)
            if is_end:
                self._end(events)
            elif events:
                self._offset += len(events)
                self._send(events)
            else:
                return

    def _send(self, events: bytes) -> None:
        assert self._call is not None
        if self._is_started:
            self._call.send_part(events)
        else:
            self._is_started = True
            self._call.start_response(200, self._lines, events)

    def _end(self, last_events: bytes) -> None:
        call = self._release()
        assert call is not None
        if self._is_started:
            call.end_response(last_events)
        else:
            call.start_response(200, self._lines, last_events)
            call.end_response()

    def _release(self) -> FedCall | None:
        self._stream.readers.discard(self)
        call, self._call = self._call, None
        if call is not None:
            call.handler = None  # an idle connection remembers its last call
        return call

    # From the client's connection

    def take_body(self, body: bytes | LargeBody) -> None:
        """See Handler. Never called: the request was complete before."""

    def fail_request(self, error: RoundhouseError) -> None:
        """See Handler. Never called, for the same reason."""

    def client_gone(self) -> None:
        """See Handler."""
        if self._release() is not None:
            self._on_gone()

    def client_full(self) -> None:
        """See Handler."""
        self._is_full = True

    def client_ready(self) -> None:
        """See Handler."""
        self._is_full = False
        self.wake()
