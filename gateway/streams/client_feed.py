"""Sends a resumable stream to the client whose request makes it, from the ring and at the client's pace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from controller.schema.errors import RoundhouseError
from gateway.protocols.common.large_body import LargeBody
from gateway.server.call import Handler
from gateway.streams.stream import ResumableStream


class FedCall(Protocol):
    """What a feed uses of the client's call: an attribute and methods of `gateway.server.call.ClientCall`."""

    handler: Handler | None

    def start_response(self, status: int, lines: bytes, first_part: bytes) -> None:
        """Begin the answer; `send_part` and `end_response` follow. `lines`: header lines, each with CRLF. `first_part`:
        not empty. See `ClientCall.start_response`."""

    def send_part(self, part: bytes) -> None: ...

    def end_response(self, last_part: bytes = b"") -> None: ...


class ClientFeed:
    """Sends a stream to the client whose request makes it: a `StreamReader`, and the handler of the client's call in
    place of the exchange, once the stream is open.

    Making one does not put it in the exchange's place: set the call's `handler` to it (`Exchange.detach_client`). The
    exchange, which makes the stream, does not depend on the client: it goes on when the client leaves or reads too
    slowly. Use it in the event loop; it ends with the stream or the client.
    """

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
        """Register as a reader of `stream`. Call `wake` once afterwards to send what the stream has.

        Args:
            stream: the stream to send.
            call: the client's call, which this feed ends.
            lines: header lines of the 200 response, each with its line end.
            lost_events: error events to send last if the client is so slow that the ring drops bytes it has not got.
            on_gone: called once if the client leaves before the end.
            sent_bytes: bytes of the stream that the client was sent before, after the response's head; 0: not even the
                head was sent.
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

    def take_events(self, events: bytes, offset: int) -> None:
        """Send `events`, which the stream got at `offset`, if the client has all that is before them and reads fast
        enough; otherwise read on in the stream, as `wake` does. See `stream.StreamReader`."""
        if offset != self._offset or self._is_full or self._call is None:
            self.wake()
            return
        self._offset += len(events)
        self._send(events)

    def wake(self) -> None:
        """Send what the stream has, until the client's buffer is full or there is no more. At the stream's end, or if
        the ring has dropped bytes that the client lacks, end the client's answer. See `stream.StreamReader`."""
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
        """Do nothing. `gateway.server.call.Handler` requires this method, but it is never called here.

        The exchange took the body before this feed took its place.
        """

    def fail_request(self, error: RoundhouseError) -> None:
        """Do nothing. `gateway.server.call.Handler` requires this method, but it is called only for an incomplete body.

        Here the body is complete. An error of the exchange reaches the client as the last events of the stream.
        """

    def client_gone(self) -> None:
        """Stop reading the stream and call `on_gone`, because the client has left; the exchange goes on. Does nothing
        once the answer has ended."""
        if self._release() is not None:
            self._on_gone()

    def client_full(self) -> None:
        """Stop sending until `client_ready`, because the client reads too slowly. Meanwhile the ring keeps the bytes,
        as far as it has room."""
        self._is_full = True

    def client_ready(self) -> None:
        """Send on what the stream has got since `client_full`: the client has read enough."""
        self._is_full = False
        self.wake()
