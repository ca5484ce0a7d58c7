"""The client's side of HTTP/1.1: uvicorn's protocol, with limits, time limits, and a short way for inference.

uvicorn serves what goes through the web framework. An inference request leaves its way as soon as the headers are read:
no scope, no task and no queue of messages are made for it, because they would cost more than the rest of the request
(docs/adr/0008-event-driven-hot-path.md). What it needs instead is a `ClientCall` and the `Handler` that serves it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, cast

import httptools
from uvicorn import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from controller.schema.errors import RoundhouseError
from gateway.asgi import Header, error_headers
from gateway.client_call import ClientCall, Handler, header_lines, status_line

LINGER_S: Final = 2.0
"""How long the rest of a refused body is read and dropped, so that the refusal arrives before the connection closes."""
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


@dataclass(frozen=True, slots=True)
class ClientLimits:
    """What a connection may take of us."""

    max_header_bytes: int
    client_timeout_s: float
    """For the headers; between parts of a body; for taking what was sent."""
    keep_alive_s: float
    """Between requests."""


class Direct(Protocol):
    """What serves requests without the web framework."""

    def route(self, method: bytes, path: bytes) -> Callable[[ClientCall], Handler] | None:
        """What opens such a request; None: it goes through the framework. `path` is as sent, without its query."""

    def max_body_bytes(self) -> int:
        """Most bytes of a request's body."""


class ClientConnection(HttpToolsProtocol):
    """One connection of a client."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        direct: Direct,
        limits: ClientLimits,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._direct = direct
        self._limits = limits
        self._head_bytes = 0
        self._reading_head = True
        self._deaf = False
        self._serving: ClientCall | RequestResponseCycle | None = None
        self._watch: asyncio.TimerHandle | None = None
        self._progress_at = 0.0
        self._refused: RoundhouseError | None = None
        self._default_headers: Sequence[Header] = ()
        self._default_lines = b""

    # The connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to watch the time."""
        super().connection_made(transport)
        self._progress_at = self.loop.time()
        self._watch = self.loop.call_later(self._limits.client_timeout_s, self._look_at_time)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell whoever is being served; uvicorn tells only the request that was read last."""
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        serving, self._serving = self._serving, None
        self.pipeline.clear()
        if isinstance(self.cycle, ClientCall):
            self.cycle = cast("RequestResponseCycle", None)  # uvicorn would wake its task, and it has none
        super().connection_lost(exc)
        if isinstance(serving, ClientCall):
            serving.lost()
        elif serving is not None and serving is not self.cycle:
            serving.disconnected = True
            serving.message_event.set()

    def data_received(self, data: bytes) -> None:
        """Read requests; serve the one whose turn it is."""
        if self._deaf:
            return
        self._progress_at = self.loop.time()
        if self._reading_head:
            self._head_bytes += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._ignore_upgrade()
        except httptools.HttpParserError:
            self._refuse(RoundhouseError("invalid_request", "What was sent is not an HTTP/1.1 request."))
            return
        if self._refused is not None:
            self._refuse(self._refused)
        elif self._reading_head and self._head_bytes > self._limits.max_header_bytes:
            self._refuse(self._headers_too_large())
        elif isinstance(self._serving, ClientCall):
            self._serving.go_on()

    def _ignore_upgrade(self) -> None:
        """Answer as if no upgrade had been asked for, then close: the parser takes no further request."""
        if self.cycle is not None:
            self.cycle.keep_alive = False

    # The parser's callbacks

    def on_message_begin(self) -> None:
        """Forget the last request."""
        self.url = b""
        self.expect_100_continue = False
        self.headers = []
        self._reading_head = True

    def on_headers_complete(self) -> None:
        """Decide who serves the request."""
        self._reading_head = False
        # What came with the headers counts only where it may be them.
        if self._head_bytes > self._limits.max_header_bytes and self._exact_head() > self._limits.max_header_bytes:
            self._refused = self._headers_too_large()
            return
        self._head_bytes = 0
        path, _, query = self.url.partition(b"?")
        method = self.parser.get_method()
        opener = self._direct.route(method, path)
        if opener is None:
            self._begin_framework()
            return
        modern = self.parser.get_http_version() == "1.1"
        keep_alive = modern and self.parser.should_keep_alive()
        call = ClientCall(self, opener, method, path, query, self.headers, keep_alive=keep_alive, chunked=modern)
        call.expects_continue = self.expect_100_continue
        before, self.cycle = self.cycle, cast("RequestResponseCycle", call)
        if before is None or before.response_complete:
            self._serving = call
        else:
            self.flow.pause_reading()
            self.pipeline.appendleft((self.cycle, self.app))

    def _exact_head(self) -> int:
        return len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)

    def _begin_framework(self) -> None:
        url, headers, expects = self.url, self.headers, self.expect_100_continue
        super().on_message_begin()
        self.url, self.expect_100_continue = url, expects
        self.headers.extend(headers)
        try:
            super().on_headers_complete()
        except httptools.HttpParserInvalidURLError:
            self._refused = RoundhouseError("invalid_request", "The request's target is not a URL.")

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        """Start a request, perhaps one that waited for those before it on this connection."""
        self._serving = cycle
        if isinstance(cycle, ClientCall):
            cycle.go_on()
        else:
            super()._start_asgi_task(cycle, app)

    def on_body(self, body: bytes) -> None:
        """A part of a body."""
        if isinstance(self.cycle, ClientCall):
            self.cycle.take_body(body)
        elif self._refused is None:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """The end of a request."""
        if isinstance(self.cycle, ClientCall):
            self.cycle.body_complete = True
        elif self._refused is None:
            super().on_message_complete()

    # What a ClientCall asks of its connection

    @property
    def default_lines(self) -> bytes:
        """What every answer has: uvicorn's `date`, which it makes anew each second."""
        headers = self.server_state.default_headers
        if headers is not self._default_headers:
            self._default_headers, self._default_lines = headers, header_lines(headers)
        return self._default_lines

    @property
    def max_body_bytes(self) -> int:
        """Most bytes of a body."""
        return self._direct.max_body_bytes()

    def send_continue(self) -> None:
        """Ask the client for its body."""
        self.transport.write(_CONTINUE)

    def answered(self, call: ClientCall) -> None:
        """`call` is complete: close, linger, or go on with the next request."""
        if not call.body_complete:
            self._linger()
        elif not call.keep_alive:
            self.transport.close()
        self.on_response_complete()

    def on_response_complete(self) -> None:
        """Go on with the next request, or wait for it: the watch knows how long."""
        self._serving = None
        self._progress_at = self.loop.time()
        self.server_state.total_requests += 1
        if not self.transport.is_closing():
            self.flow.resume_reading()
            if self.pipeline:
                self.loop.call_soon(self._next_in_line)  # not at once: refusals would nest as deep as the line is long

    def _next_in_line(self) -> None:
        if self.pipeline and self._serving is None and not self.transport.is_closing():
            cycle, app = self.pipeline.pop()
            self._start_asgi_task(cycle, app)

    # Refusals

    def _refuse(self, error: RoundhouseError) -> None:
        """Say what is wrong with what is being read, and read no more."""
        serving = self._serving
        if self._deaf or self.transport.is_closing():
            return
        if serving is None:
            self._answer_nobody(error)
        elif isinstance(serving, ClientCall) and not serving.body_complete:
            serving.refuse(error)
        elif not isinstance(serving, ClientCall) and serving.more_body:
            self.transport.abort()  # the framework would wait for the rest for ever
        else:
            self._deaf = True  # what is wrong comes after a request that is being served
            serving.keep_alive = False
            self.pipeline.clear()

    def _answer_nobody(self, error: RoundhouseError) -> None:
        """Answer what is no request: there is no request id yet."""
        body = error.json_bytes()
        head = b"%bcontent-length: %d\r\nconnection: close\r\n\r\n" % (header_lines(error_headers(error)), len(body))
        self.transport.write(status_line(error.entry.status) + self.default_lines + head + body)
        self._linger()

    def send_400_response(self, msg: str) -> None:
        """uvicorn's own refusals."""
        self._refuse(RoundhouseError("invalid_request", msg))

    def _headers_too_large(self) -> RoundhouseError:
        limit = self._limits.max_header_bytes
        return RoundhouseError("headers_too_large", f"The request line and headers are more than {limit} bytes.")

    def _linger(self) -> None:
        """Close once the client has stopped sending: closing earlier would take the answer from it."""
        self._deaf = True
        self._unset_keepalive_if_required()
        if not self.transport.is_closing():
            self.flow.resume_reading()
            if self.transport.can_write_eof():
                self.transport.write_eof()
            self.loop.call_later(LINGER_S, self.transport.close)

    # Time

    def _look_at_time(self) -> None:
        """One timer per connection, set anew only when it fires."""
        patience = self._patience()
        left = self._progress_at + patience - self.loop.time()
        if left <= 0 and self._is_late():
            return
        self._watch = self.loop.call_later(max(left, 0.01) if left > 0 else patience, self._look_at_time)

    def _patience(self) -> float:
        idle = self._serving is None and self._head_bytes == 0 and not self.flow.write_paused
        return self._limits.keep_alive_s if idle and self.cycle is not None else self._limits.client_timeout_s

    def _is_late(self) -> bool:
        """End the connection if it is the client's turn. Whether it was."""
        if self.flow.write_paused:
            self.transport.abort()  # takes nothing of what was sent
            return True
        serving = self._serving
        if serving is None:
            if self._head_bytes:
                self._refuse(self._late("headers"))
            else:
                self.transport.close()
            return True
        if isinstance(serving, ClientCall) and not serving.body_complete:
            self._refuse(self._late("body"))
            return True
        return False

    def _late(self, part: str) -> RoundhouseError:
        limit = self._limits.client_timeout_s
        return RoundhouseError("request_timeout", f"The request's {part} did not go on for {limit:g} s.")

    def pause_writing(self) -> None:
        """The client takes less than it is sent."""
        self._progress_at = self.loop.time()
        super().pause_writing()
        if isinstance(self._serving, ClientCall) and self._serving.handler is not None:
            self._serving.handler.client_full()

    def resume_writing(self) -> None:
        """The client has taken what it was sent."""
        self._progress_at = self.loop.time()
        super().resume_writing()
        if isinstance(self._serving, ClientCall) and self._serving.handler is not None:
            self._serving.handler.client_ready()
