"""The client's side of WebSocket, after the handshake: frames, pings, time limits, and a client that reads slowly.

The protocol itself is that of the `websockets` package, which does no I/O here. Nothing is compressed: of what a client
sends nothing is decompressed anywhere, and a context per connection costs more memory than all else of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, Protocol

from uvicorn.server import ServerState
from websockets.datastructures import Headers
from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request
from websockets.protocol import State
from websockets.server import ServerProtocol

from controller.schema.errors import RoundhouseError
from gateway.server.asgi import Header

PING_S: Final = 20.0
"""Seconds in which nothing was heard of a client before it is pinged. It has its time limit to be heard of."""
CLOSE_S: Final = 5.0
"""Seconds that a client has to take the last messages and close the connection."""


class MessageSession(Protocol):
    """What serves the messages of one connection. Told everything in the event loop's one thread."""

    def take_message(self, message: bytes) -> None:
        """A whole text message."""

    def client_gone(self) -> None:
        """The connection is over."""

    def client_full(self) -> None:
        """What is sent piles up: send no more than must be, until `client_ready`."""

    def client_ready(self) -> None:
        """What piled up is gone."""

    def check_age(self, age_s: float) -> None:
        """The connection is open for so long. Called now and then."""

    def begin_stop(self) -> None:
        """The gateway stops: close the connection as soon as nothing is under way on it."""


def accept_handshake(headers: Sequence[Header]) -> bytes:
    """The status line and headers that accept the wish of a GET request with these headers.

    Raises:
        RoundhouseError: `invalid_request`: it is no handshake of WebSocket.
    """
    named = Headers([(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers])
    response = ServerProtocol().accept(Request("/", named))
    if response.status_code != 101:
        reason = bytes(response.body).decode(errors="replace").partition("\n")[0]
        raise RoundhouseError("invalid_request", reason)
    return response.serialize()


class WebSocketConnection(asyncio.Protocol):
    """A connection whose handshake was accepted."""

    def __init__(
        self,
        transport: asyncio.Transport,
        state: ServerState,
        *,
        local_address: str | None,
        max_message_bytes: int,
        client_timeout_s: float,
    ) -> None:
        """`client_timeout_s`: to take what was sent, and to answer a ping. `local_address`: see ClientCall."""
        self.transport = transport
        self.local_address = local_address
        self.max_message_bytes = max_message_bytes
        self._state = state
        self._client_timeout_s = client_timeout_s
        self._loop = asyncio.get_running_loop()
        self._protocol = ServerProtocol(state=State.OPEN, max_size=max_message_bytes)
        self._session: MessageSession | None = None
        self._parts: list[bytes] = []
        """Of a message whose end has not come."""
        self._began_at = self._heard_at = self._loop.time()
        self._pinged_at: float | None = None
        """When the client was pinged, if nothing was heard of it since."""
        self._unsent_bytes = 0
        """Bytes that waited for the client when last looked at."""
        self._unsent_since = self._began_at
        self._is_reading = True
        self._timer: asyncio.TimerHandle | None = None
        state.connections.add(self)  # type: ignore[arg-type] # uvicorn calls its `shutdown` alone

    def serve_session(self, session: MessageSession, data: bytes) -> None:
        """Begin, with what the client has sent behind its handshake."""
        self._session = session
        self._timer = self._loop.call_later(self._pause_s, self._check_time)
        self.transport.set_protocol(self)
        self.data_received(data)

    # From the transport

    def data_received(self, data: bytes) -> None:
        """Frames."""
        self._heard_at, self._pinged_at = self._loop.time(), None
        self._protocol.receive_data(data)
        for event in self._protocol.events_received():
            if isinstance(event, Frame):
                self._take_frame(event)
        self._flush()

    def _take_frame(self, frame: Frame) -> None:
        if frame.opcode is Opcode.BINARY:
            self.close(CloseCode.UNSUPPORTED_DATA, "Messages are JSON texts.")
        elif frame.opcode in (Opcode.TEXT, Opcode.CONT):
            self._parts.append(bytes(frame.data))
            if frame.fin:
                message, self._parts = b"".join(self._parts), []
                if self._session is not None and self._protocol.state is State.OPEN:
                    self._session.take_message(message)

    def eof_received(self) -> None:
        """The client sends no more."""
        self._protocol.receive_eof()
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is over."""
        self._state.connections.discard(self)
        if self._timer is not None:
            self._timer.cancel()
        session, self._session = self._session, None
        if session is not None:
            session.client_gone()

    def pause_writing(self) -> None:
        """The client takes less than it is sent."""
        self._unsent_bytes, self._unsent_since = self.transport.get_write_buffer_size(), self._loop.time()
        if self._session is not None:
            self._session.client_full()

    def resume_writing(self) -> None:
        """The client has taken what it was sent."""
        self._unsent_bytes = 0
        if self._session is not None:
            self._session.client_ready()

    # From the session, and from uvicorn

    def send_messages(self, messages: Sequence[bytes]) -> None:
        """Send JSON texts, each as a message of its own."""
        if self._protocol.state is State.OPEN:
            for message in messages:
                self._protocol.send_text(message)
            self._flush()

    def close(self, code: int, reason: str = "") -> None:
        """Close the connection with a word. Harmless when it closes already."""
        if self._protocol.state is State.OPEN and not self.transport.is_closing():
            self._protocol.send_close(code, reason)
            self._flush()

    def pause_reading(self) -> None:
        """Take no more messages, until `resume_reading`."""
        if self._is_reading and not self.transport.is_closing():
            self._is_reading = False
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        """Take more."""
        if not self._is_reading and not self.transport.is_closing():
            self._is_reading = True
            self._heard_at, self._pinged_at = self._loop.time(), None
            self.transport.resume_reading()

    def shutdown(self) -> None:
        """The server stops."""
        if self._session is not None:
            self._session.begin_stop()

    def _flush(self) -> None:
        """Send what the protocol has to send; close as it says."""
        data = self._protocol.data_to_send()
        if self.transport.is_closing():
            return
        is_at_end = b"" in data
        if out := b"".join(data):
            self.transport.write(out)
        if is_at_end:
            self.transport.close()
        if (is_at_end or self._protocol.close_expected()) and self._timer is not None:
            self._timer.cancel()
            self._timer = self._loop.call_later(CLOSE_S, self.transport.abort)

    # Time

    @property
    def _pause_s(self) -> float:
        return min(PING_S, self._client_timeout_s) / 2

    def _check_time(self) -> None:
        """One timer per connection, set anew when it fires."""
        self._timer = self._loop.call_later(self._pause_s, self._check_time)
        now = self._loop.time()
        unsent_bytes = self.transport.get_write_buffer_size()
        if unsent_bytes == 0 or unsent_bytes < self._unsent_bytes:
            self._unsent_bytes, self._unsent_since = unsent_bytes, now
        self._unsent_bytes = unsent_bytes
        is_mute = self._pinged_at is not None and now - self._pinged_at >= self._client_timeout_s
        if is_mute or (unsent_bytes and now - self._unsent_since >= self._client_timeout_s):
            self._timer.cancel()
            self.transport.abort()
            return
        if self._is_reading and self._pinged_at is None and now - self._heard_at >= PING_S:
            self._pinged_at = now
            self._protocol.send_ping(b"")
            self._flush()
        if self._session is not None:
            self._session.check_age(now - self._began_at)
