"""WebSocket connections of clients after the handshake: frames, pings, time limits, and slow readers.

The package `websockets` implements the protocol; it does no I/O here. Compression is not offered: the gateway
decompresses nothing that clients send, and a context per connection takes more memory than the rest of it.
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

from contract.errors import RoundhouseError
from gateway.protocols.common.large_body import LARGE_BYTES, READING_COPIES, WHOLE_COPIES
from gateway.server.asgi import Header
from gateway.server.body_budget import BodyBudget, BodyReservation

PING_S: Final = 20.0
"""Seconds of silence after which a client is pinged. It must send something within its time limit then."""
CLOSE_S: Final = 5.0
"""Seconds that a client has to read the last messages and close the connection."""


class MessageSession(Protocol):
    """Serves the messages of one `WebSocketConnection`, and answers by its `send_messages`.

    All methods are called in the event loop's thread and must not block. Lives as long as the connection.
    """

    def take_message(self, message: bytes) -> None:
        """Serve a text message, put together from its frames. `message`: its bytes, not checked to be UTF-8.

        Also called while an earlier message is being served: keep the message until that is done. Not called once the
        connection is closing.
        """

    def client_gone(self) -> None:
        """Stop: the connection is closed, by either side. Called once, and no method after it."""

    def client_full(self) -> None:
        """Send no more than necessary until `client_ready`: the client reads more slowly than data is sent."""

    def client_ready(self) -> None:
        """Send again: the client has read enough of what was sent. Called after a `client_full`."""

    def check_age(self, age_s: float) -> None:
        """Close the connection, once idle, if it is too old. Called every few seconds; `age_s`: its age in seconds."""

    def begin_stop(self) -> None:
        """Close the connection as soon as no request is running on it, because the gateway stops."""


def accept_handshake(headers: Sequence[Header]) -> bytes:
    """Return the head of the answer, as bytes, that accepts the WebSocket handshake in a GET with these headers.

    Raises:
        RoundhouseError: `invalid_request` if the headers are not those of a WebSocket handshake.
    """
    named = Headers([(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers])
    response = ServerProtocol().accept(Request("/", named))
    if response.status_code != 101:
        reason = bytes(response.body).decode(errors="replace").partition("\n")[0]
        raise RoundhouseError("invalid_request", reason)
    return response.serialize()


class WebSocketConnection(asyncio.Protocol):
    """A WebSocket connection of a client, after its handshake was accepted: frames, pings and time limits.

    Make it in the event loop, then call `serve_session`, which takes the transport over from the HTTP connection. It
    gives whole text messages to the `MessageSession`, and lives until the transport is closed. A client that answers no
    ping or reads nothing for `client_timeout_s` is disconnected.
    """

    def __init__(
        self,
        transport: asyncio.Transport,
        state: ServerState,
        *,
        local_address: str | None,
        max_message_bytes: int,
        client_timeout_s: float,
        body_budget: BodyBudget,
    ) -> None:
        """`state`: uvicorn's, which the connection joins, so that a stop reaches it. `local_address`: the gateway's IP
        address on the connection; None: the socket has none.
        `client_timeout_s`: seconds to read what was sent, to answer a ping, and between two parts of a large message.
        `body_budget`: memory for large messages and request bodies."""
        self.transport = transport
        self.local_address = local_address
        self.max_message_bytes = max_message_bytes
        self._state = state
        self._client_timeout_s = client_timeout_s
        self._loop = asyncio.get_running_loop()
        self._protocol = ServerProtocol(state=State.OPEN, max_size=max_message_bytes)
        self._session: MessageSession | None = None
        self._message = bytearray()
        """A message whose last frame has not arrived, as far as it came. A list of its frames would have no bound: they
        may be empty."""
        self._budget = body_budget
        self._room: BodyReservation | None = None
        """Room of the messages that arrive or that the session keeps; None: none of them was large."""
        self._kept_bytes = 0
        """Bytes of the messages that the session keeps."""
        self._arriving_bytes = 0
        """Bytes of a message that is not complete."""
        self._began_at = self._arrived_at = self._heard_at = self._loop.time()
        self._pinged_at: float | None = None
        """Event loop time of a ping since which nothing has arrived; None: there is none."""
        self._unsent_bytes = 0
        """Bytes in the write buffer at the last check."""
        self._unsent_since = self._began_at
        self._is_held = False
        """Whether the session wants nothing read."""
        self._is_full = False
        """Whether the client has much left to read. Nothing is read then: each ping would add an answer."""
        self._is_reading = True
        self._timer: asyncio.TimerHandle | None = None
        self._is_abort_set = False
        """Whether `_timer` is that of `CLOSE_S`, which what the client sends must not put off."""
        state.connections.add(self)  # type: ignore[arg-type] # uvicorn calls its `shutdown` alone

    def serve_session(self, session: MessageSession, data: bytes) -> None:
        """Start passing messages to `session`. `data`: bytes that the client sent after its handshake; may be empty.

        Call once, after the answer to the handshake was written.
        """
        self._session = session
        self._timer = self._loop.call_later(self._pause_s, self._check_time)
        self.transport.set_protocol(self)
        self.data_received(data)

    # From the transport

    def data_received(self, data: bytes) -> None:
        """Parse frames, and pass complete text messages to the session. Called by the event loop. A binary message, a
        malformed frame or a message above `max_message_bytes` closes the connection with a close frame."""
        self._heard_at, self._pinged_at = self._loop.time(), None
        self._protocol.receive_data(data)
        for event in self._protocol.events_received():
            if isinstance(event, Frame):
                self._take_frame(event)
        self._settle_room()
        self._flush()

    def _take_frame(self, frame: Frame) -> None:
        if frame.opcode is Opcode.BINARY:
            self.close(CloseCode.UNSUPPORTED_DATA, "Messages are JSON texts.")
        elif frame.opcode in (Opcode.TEXT, Opcode.CONT):
            if not frame.fin:
                self._message += frame.data
            else:
                message = bytes(self._message + frame.data if self._message else frame.data)
                self._message = bytearray()
                if self._session is not None and self._protocol.state is State.OPEN:
                    self._session.take_message(message)

    def eof_received(self) -> None:
        """Close the connection, because the client sends no more. Called by the event loop."""
        self._protocol.receive_eof()
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the session that the connection is closed. Called by the event loop once, however the connection
        ended."""
        self._state.connections.discard(self)
        if self._timer is not None:
            self._timer.cancel()
        session, self._session = self._session, None
        if session is not None:
            session.client_gone()
        room, self._room = self._room, None
        if room is not None:
            self._budget.release(room)

    def pause_writing(self) -> None:
        """Stop reading, and tell the session that the client reads more slowly than data is sent. Called by the event
        loop for a full buffer."""
        self._is_full = True
        self._follow_pauses()
        self._unsent_bytes, self._unsent_since = self.transport.get_write_buffer_size(), self._loop.time()
        if self._session is not None:
            self._session.client_full()

    def resume_writing(self) -> None:
        """Read again, and tell the session that the client has read enough of what was sent. Called by the event
        loop."""
        self._is_full = False
        self._follow_pauses()
        self._unsent_bytes = 0
        if self._session is not None:
            self._session.client_ready()

    # From the session, and from uvicorn

    def send_messages(self, messages: Sequence[bytes]) -> None:
        """Send JSON texts in UTF-8, each as one message. Does nothing once the connection is closing.

        What the client has not read yet is buffered: heed `MessageSession.client_full`.
        """
        if self._protocol.state is State.OPEN:
            for message in messages:
                self._protocol.send_text(message)
            self._flush()

    def close(self, code: int, reason: str = "") -> None:
        """Send a close frame with `code` (RFC 6455, 7.4) and `reason`, and return at once. Does nothing if the
        connection is closing. The transport is closed when the client answers, or after `CLOSE_S` (5 s);
        `MessageSession.client_gone` follows then. Raises `websockets.exceptions.ProtocolError` for a code that no close
        frame may have, or a reason above 123 bytes."""
        if self._protocol.state is State.OPEN and not self.transport.is_closing():
            self._protocol.send_close(code, reason)
            self._flush()

    def pause_reading(self) -> None:
        """Stop reading from the client until `resume_reading`; the client is not pinged meanwhile.

        Messages that have arrived already may still be passed to the session. Repeated calls do nothing.
        """
        self._is_held = True
        self._follow_pauses()

    def resume_reading(self) -> None:
        """Resume reading after `pause_reading`, once the client has read enough of what was sent. Does nothing if
        reading is not paused or the connection is closing."""
        self._is_held = False
        self._follow_pauses()

    def _follow_pauses(self) -> None:
        lacks_room = self._arriving_bytes > LARGE_BYTES and self._room is not None and not self._room.is_granted
        reads = not (self._is_held or self._is_full or lacks_room)
        if reads is self._is_reading or self.transport.is_closing():
            return
        self._is_reading = reads
        self._heard_at = self._arrived_at = self._loop.time()
        self._pinged_at = None  # who is not heard is not mute
        if reads:
            self.transport.resume_reading()
        else:
            self.transport.pause_reading()

    def hold_messages(self, size: int) -> None:
        """Note that the session keeps messages of `size` bytes in all, which count as memory if one of them was large.
        Call with 0 once it keeps none."""
        self._kept_bytes = size
        self._settle_room()

    def _settle_room(self) -> None:
        """Have as much room as the messages take. Until there is room for a large one, nothing more of it is read."""
        arriving_bytes = len(self._message) + len(self._protocol.reader.buffer)
        if arriving_bytes != self._arriving_bytes:
            self._arriving_bytes, self._arrived_at = arriving_bytes, self._loop.time()
        room, size = self._room, WHOLE_COPIES * self._kept_bytes
        if arriving_bytes > LARGE_BYTES:
            size += READING_COPIES * self.max_message_bytes
        if room is not None and not size:
            self._room = None
            self._budget.release(room)
        elif room is not None and size != room.size:
            self._budget.resize(room, size)
        elif room is None and max(arriving_bytes, self._kept_bytes) > LARGE_BYTES and self._session is not None:
            self._room = self._budget.reserve(size, self._follow_pauses)
        self._follow_pauses()

    def shutdown(self) -> None:
        """Ask the session to close the connection once it is idle. Called by uvicorn when the server stops."""
        if self._session is not None:
            self._session.begin_stop()

    def _flush(self) -> None:
        """Write what the protocol wants to send, and close the connection if the protocol is at its end."""
        data = self._protocol.data_to_send()
        if self.transport.is_closing():
            return
        is_at_end = b"" in data
        if out := b"".join(data):
            self.transport.write(out)
        if is_at_end:
            self.transport.close()
        is_over = is_at_end or self._protocol.close_expected()
        if is_over and not self._is_abort_set and self._timer is not None:
            self._is_abort_set = True
            self._timer.cancel()
            self._timer = self._loop.call_later(CLOSE_S, self.transport.abort)

    # Time

    @property
    def _pause_s(self) -> float:
        return min(PING_S, self._client_timeout_s) / 2

    def _check_time(self) -> None:
        """Ping a silent client, or end the connection of one that exceeds its time limit. Called by the one timer."""
        self._timer = self._loop.call_later(self._pause_s, self._check_time)
        now = self._loop.time()
        unsent_bytes = self.transport.get_write_buffer_size()
        if unsent_bytes == 0 or unsent_bytes < self._unsent_bytes:
            self._unsent_bytes, self._unsent_since = unsent_bytes, now
        self._unsent_bytes = unsent_bytes
        is_mute = self._pinged_at is not None and now - self._pinged_at >= self._client_timeout_s
        is_stuck = self._is_reading and self._arriving_bytes > LARGE_BYTES
        is_stuck = is_stuck and now - self._arrived_at >= self._client_timeout_s
        if is_mute or is_stuck or (unsent_bytes and now - self._unsent_since >= self._client_timeout_s):
            self._timer.cancel()
            self.transport.abort()
            return
        if self._is_reading and self._pinged_at is None and now - self._heard_at >= PING_S:
            self._pinged_at = now
            self._protocol.send_ping(b"")
            self._flush()
        if self._session is not None:
            self._session.check_age(now - self._began_at)
