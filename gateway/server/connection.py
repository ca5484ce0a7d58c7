"""HTTP/1.1 connections of clients: uvicorn's protocol with limits, timeouts, and a shortcut for inference.

uvicorn serves requests to FastAPI. An inference request leaves that path once its headers are read: it gets no ASGI
scope, task or message queue, because they would cost more than the rest of the request
(docs/adr/0008-event-driven-hot-path.md), but a `ClientCall` and the `Handler` that serves it.

The parser's callback makes the call (`_begin_call`: `cycle` is what is being read, `_current_call` what is being
served, `pipeline` what waits). After each read, `data_received` calls `ClientCall.serve_request`, which opens the
handler once and gives it the whole body.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, cast

from uvicorn import Config
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle
from uvicorn.server import ServerState

from contract.errors import RoundhouseError
from gateway.server.asgi import AWAITS_ROOM, Header, error_headers
from gateway.server.body_budget import BodyReservation, BodyRoom
from gateway.server.call import ClientCall, Handler, header_lines, status_line
from gateway.server.request_reader import ClientLimits, InferenceRoutes, RequestReader, WebSocketOpener
from gateway.server.websocket import WebSocketConnection, accept_handshake

AHEAD_BYTES: Final = 64 * 1024
"""Bytes that are read beyond a request that is being served. Without reading, a client's leaving is not noticed."""
TURN_BYTES: Final = 512 * 1024
"""Bytes of a body that are read before other connections have their turn; the transport has no bound of its own."""
LINGER_S: Final = 2.0
"""Seconds in which the rest of a refused request is read and dropped, so that the refusal reaches the client."""
_ONE_READ_BYTES: Final = 16 * 1024
"""Reads up to this size do not count towards `TURN_BYTES`."""
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


class ClientConnection(RequestReader):
    """One connection of a client.

    Made by uvicorn for each connection. Requests are answered in the order in which they arrived. A malformed one is
    refused in its turn, and nothing is read after it, because nobody knows where the next request begins. A client that
    exceeds a time limit gets `request_timeout`, or its connection is closed.
    """

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        direct: InferenceRoutes,
        limits: ClientLimits,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop, direct=direct, limits=limits)
        self._bytes_ahead = 0
        """Bytes read since a request began to wait for those before it on this connection."""
        self._bytes_in_turn = 0
        """Bytes of a body that were read since the event loop last had other work; see `TURN_BYTES`."""
        self._room: BodyReservation | None = None
        """Reservation that must be granted before more of a body is read; None: there is none to wait for."""
        self._ignores_input = False
        """Whether further bytes of the client are dropped."""
        self._current_call: ClientCall | RequestResponseCycle | None = None
        """The request that is being served."""
        self._timer: asyncio.TimerHandle | None = None
        self._progress_at = 0.0
        """Event loop time of the client's last progress, from which its time limit runs."""
        self._unsent_bytes = 0
        """Bytes in the write buffer at the last check."""
        self._last_error: RoundhouseError | None = None
        """Error to send when all earlier requests are answered; the connection then closes."""
        self.local_address: str | None = None
        """The gateway's IP address on this connection; None: the socket has none."""
        self._default_headers: Sequence[Header] = ()
        self._default_lines = b""

    # The connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the timer of the client's time limits. Called by the event loop once, when the connection is
        accepted."""
        super().connection_made(transport)
        self.local_address = self.server[0] if self.server else None
        self._progress_at = self.loop.time()
        self._timer = self.loop.call_later(self._limits.shortest_s, self._check_time)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the request that is being served that the client is gone, and drop the requests behind it.

        Called by the event loop once, however the connection ended. uvicorn tells only the request that was read last.
        """
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        current_call, self._current_call = self._current_call, None
        waiting = [cycle for cycle, _ in self.pipeline]
        self.pipeline.clear()
        for cycle in waiting:
            if isinstance(cycle, ClientCall):
                cycle.lose_client()  # its body may have room reserved
        if isinstance(self.cycle, ClientCall):
            self.cycle = cast("RequestResponseCycle", None)  # uvicorn would wake the cycle's task; a call has none
        super().connection_lost(exc)
        if isinstance(current_call, ClientCall):
            current_call.lose_client()
        elif current_call is not None and current_call is not self.cycle:
            current_call.disconnected = True
            current_call.message_event.set()

    def data_received(self, data: bytes) -> None:
        """Read requests from `data`, and serve the one whose turn it is. Called by the event loop.

        A request that cannot be read is answered with an error. Bytes after a refused request are dropped.
        """
        if self._ignores_input:
            return
        idle_bytes_before = self._idle_bytes
        error = self.read_requests(data)
        if not (idle_bytes_before and self._idle_bytes):
            self._progress_at = self.loop.time()  # a whole head has one time limit: its further parts are no progress
        if error is not None:
            self._refuse_input(error)
        elif self.pipeline:
            self._bytes_ahead += len(data)
            if self._bytes_ahead > AHEAD_BYTES:
                self.flow.pause_reading()
        if isinstance(self._current_call, ClientCall):
            self._current_call.serve_request()
        if len(data) > _ONE_READ_BYTES and isinstance(self.cycle, ClientCall) and not self.cycle.body_complete:
            self._bytes_in_turn += len(data)
            if self._bytes_in_turn > TURN_BYTES or self.cycle.is_compressed:
                self.flow.pause_reading()
                self.loop.call_soon(self._begin_turn)

    def _begin_turn(self) -> None:
        self._bytes_in_turn = 0
        if self._bytes_ahead <= AHEAD_BYTES and not self.transport.is_closing():
            self._resume_reading()

    def _resume_reading(self) -> None:
        if self._room is None:
            self.flow.resume_reading()

    def _enter_room(self) -> None:
        self._room = None
        self._progress_at = self.loop.time()
        self._begin_turn()

    def _begin_call(
        self, opener: Callable[[ClientCall], Handler], method: bytes, path: bytes, query: bytes, *, is_http_1_1: bool
    ) -> None:
        keep_alive = is_http_1_1 and self.parser.should_keep_alive()
        call = ClientCall(
            self, opener, method, path, query, self.headers, keep_alive=keep_alive, is_http_1_1=is_http_1_1
        )
        call.expects_continue = self.expect_100_continue
        previous_cycle, self.cycle = self.cycle, cast("RequestResponseCycle", call)
        # A client that does not read the last answer gets no other.
        if (previous_cycle is None or previous_cycle.response_complete) and not self.flow.write_paused:
            self._current_call = call
        else:
            self.pipeline.appendleft((self.cycle, self.app))

    def _begin_websocket(self, opener: WebSocketOpener, headers: list[Header], data: bytes) -> bool:
        """Serve a WebSocket; see RequestReader. A refused handshake gets an error, and ends the connection."""
        if self._current_call is not None or self.pipeline or self._ignores_input:
            return False
        try:
            head = accept_handshake(headers)
            open_session = opener(headers, self.local_address)
        except RoundhouseError as error:
            self._answer_nobody(error)
            return True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._ignores_input = True
        self.connections.discard(self)
        connection = WebSocketConnection(
            self.transport,
            self.server_state,
            local_address=self.local_address,
            max_message_bytes=self.max_body_bytes,
            client_timeout_s=self._limits.client_timeout_s,
            body_budget=self._direct.body_budget,
        )
        self.transport.write(head)
        connection.serve_session(open_session(connection), data)
        return True

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        """Serve a request in its turn: at once, or after those before it on this connection."""
        self._current_call = cycle
        if isinstance(cycle, ClientCall):
            cycle.serve_request()
        else:
            super()._start_asgi_task(cycle, app)

    # For ClientCall

    @property
    def default_lines(self) -> bytes:
        """Header lines of every answer, each with CRLF: `date`, which uvicorn renews each second."""
        headers = self.server_state.default_headers
        if headers is not self._default_headers:
            self._default_headers, self._default_lines = headers, header_lines(headers)
        return self._default_lines

    def send_continue(self) -> None:
        """Send `100 Continue`, which asks the client for the body."""
        self.transport.write(_CONTINUE)

    def reserve_body(self, size: int) -> BodyRoom:
        """Reserve memory for a body of `size` bytes in the budget of all connections, without blocking.

        Until there is room, nothing is read from the client, and its time limit does not run.
        """
        budget = self._direct.body_budget
        reservation = budget.reserve(size, self._enter_room)
        if not reservation.is_granted:
            self._room = reservation
            self.flow.pause_reading()

        def give_back() -> None:
            if self._room is reservation:
                self._room = None
            budget.release(reservation)

        return BodyRoom(give_back, partial(budget.resize, reservation))

    def finish_call(self, call: ClientCall) -> None:
        """Close the connection or serve its next request: the answer to `call` is complete. Call once per answer.

        If a part of the request's body is missing, the rest is read and dropped for `LINGER_S` (2 s) before the
        connection closes.
        """
        if not call.body_complete:
            self._linger()
        elif not call.keep_alive:
            self.transport.close()
        self.on_response_complete()

    def on_response_complete(self) -> None:
        """Serve the next request, or wait for one, or send the error of a request that could not be read. Called by
        `finish_call`, and by uvicorn after FastAPI's answers."""
        self._current_call = None
        self._progress_at = self.loop.time()
        self.server_state.total_requests += 1
        if self.pipeline:
            self.loop.call_soon(self._start_next_request)  # not directly: refusals would nest as deep as the pipeline
        elif not self.transport.is_closing():
            self._resume_reading()
            if self._last_error is not None:
                self._answer_nobody(self._last_error)

    def _start_next_request(self) -> None:
        if self._current_call is not None or self.flow.write_paused or self.transport.is_closing() or not self.pipeline:
            return
        cycle, app = self.pipeline.pop()
        if not self.pipeline:
            self._bytes_ahead = 0
            self._resume_reading()
        self._start_asgi_task(cycle, app)

    # Refusals

    def _refuse_input(self, error: RoundhouseError) -> None:
        """Refuse the request that is being read with `error`, in its turn, and read no more."""
        if self._ignores_input or self.transport.is_closing():
            return
        cycle = self.cycle
        if not _is_incomplete(cycle):
            self._refuse_in_turn(error)  # a head is being read
        elif cycle.response_complete:
            self._linger()
        elif cycle is not self._current_call:
            self.pipeline.popleft()
            if isinstance(cycle, ClientCall):
                cycle.lose_client()  # nobody serves it, and its body may have room reserved
            self._refuse_in_turn(error)
        elif isinstance(cycle, ClientCall):
            cycle.refuse_request(error)
        else:
            cycle.disconnected = True  # its application is told that the client sends no more
            cycle.message_event.set()
            if cycle.response_started:
                self.transport.abort()
            else:
                self._answer_nobody(error)

    def _refuse_in_turn(self, error: RoundhouseError) -> None:
        if self._current_call is None and not self.pipeline:
            self._answer_nobody(error)
        else:
            self._ignores_input = True
            self._last_error = error

    def _answer_nobody(self, error: RoundhouseError) -> None:
        """Send `error` as the last answer, to input that is no request, and close. The answer has a request id."""
        self.transport.write(last_answer(error, self._direct.next_request_id(), self.default_lines))
        self._linger()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is being read with `invalid_request` and the text `msg`. Called by uvicorn instead of its own
        400."""
        self._refuse_input(RoundhouseError("invalid_request", msg))

    def _linger(self) -> None:
        """Stop writing, drop input, and close after `LINGER_S`: an earlier close could lose the answer."""
        self._ignores_input = True
        if not self.transport.is_closing():
            self.flow.resume_reading()
            if self.transport.can_write_eof():
                self.transport.write_eof()
            self.loop.call_later(LINGER_S, self.transport.close)

    # Time

    def _check_time(self) -> None:
        """Check the client's time limit. Each connection has one timer, which is set again only when it fires."""
        patience_s = self._patience_s()
        left_s = self._progress_at + patience_s - self.loop.time()
        if left_s <= 0:
            self._handle_timeout()
            left_s = patience_s
        if not self.transport.is_closing() or self.transport.get_write_buffer_size():
            self._timer = self.loop.call_later(max(min(left_s, self._limits.shortest_s), 0.01), self._check_time)

    def _patience_s(self) -> float:
        is_idle = self._current_call is None and not self._idle_bytes and not self.transport.get_write_buffer_size()
        return self._limits.keep_alive_s if is_idle and self.cycle is not None else self._limits.client_timeout_s

    def _handle_timeout(self) -> None:
        """End the connection if it waits for the client and not for the gateway."""
        current_call = self._current_call
        is_last = current_call is None or self.transport.is_closing()  # a call that is broken off stays the current one
        if self.flow.write_paused or (is_last and self.transport.get_write_buffer_size()):
            self._check_unsent()
        elif current_call is None:
            if self._idle_bytes:
                self._refuse_input(self._timeout_error("headers"))
            else:
                self.transport.close()
        elif self._room is not None or _awaits_room(current_call):
            self._progress_at = self.loop.time()  # the connection waits for the gateway
        elif _is_incomplete(current_call):
            self._refuse_input(self._timeout_error("body"))

    def _check_unsent(self) -> None:
        """End the connection if the client has read nothing since the last check."""
        unsent_bytes = self.transport.get_write_buffer_size()
        if 0 < self._unsent_bytes <= unsent_bytes:
            self.transport.abort()
        self._unsent_bytes = unsent_bytes
        self._progress_at = self.loop.time()

    def _timeout_error(self, part: str) -> RoundhouseError:
        limit_s = self._limits.client_timeout_s
        return RoundhouseError("request_timeout", f"The request's {part} did not go on for {limit_s:g} s.")

    def pause_writing(self) -> None:
        """Tell the handler that the client reads more slowly than data is sent. Called by the event loop for a full
        write buffer."""
        self._progress_at = self.loop.time()
        self._unsent_bytes = self.transport.get_write_buffer_size()
        super().pause_writing()
        if isinstance(self._current_call, ClientCall) and self._current_call.handler is not None:
            self._current_call.handler.client_full()

    def resume_writing(self) -> None:
        """Tell the handler that the client has read enough of what was sent. Called by the event loop."""
        self._progress_at = self.loop.time()
        self._unsent_bytes = 0
        super().resume_writing()
        if isinstance(self._current_call, ClientCall) and self._current_call.handler is not None:
            self._current_call.handler.client_ready()
        elif self._current_call is None and self.pipeline:
            self.loop.call_soon(self._start_next_request)


def last_answer(error: RoundhouseError, request_id: str, default_lines: bytes) -> bytes:
    """Encode `error` as a whole answer after which the connection closes, for input that is no request.

    `default_lines`: header lines of every answer, each with CRLF.
    """
    body = error.json_bytes(request_id)
    lines = header_lines([(b"x-request-id", request_id.encode()), *error_headers(error)])
    head = b"%bcontent-length: %d\r\nconnection: close\r\n\r\n" % (lines, len(body))
    return status_line(error.entry.status) + default_lines + head + body


def _awaits_room(cycle: RequestResponseCycle | ClientCall) -> bool:
    """Return whether a route of FastAPI waits for memory before it reads more of the body."""
    return isinstance(cycle, RequestResponseCycle) and bool(cycle.scope.get(AWAITS_ROOM))


def _is_incomplete(cycle: RequestResponseCycle | ClientCall | None) -> bool:
    """Return whether a part of the request has not arrived yet."""
    if isinstance(cycle, ClientCall):
        return not cycle.body_complete
    return cycle is not None and cycle.more_body
