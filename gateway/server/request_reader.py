"""The reading half of a client's connection: uvicorn's protocol, with limits. The half that answers is `connection`.

The parser is uvicorn's, which is strict. What it refuses (two lengths, a length beside chunks, folded lines, lines
without CR) could be read in two ways by two servers, and hide one request inside another. So could transfer codings
other than `chunked`, of which the parser refuses some, and `request_head` all.
"""

from __future__ import annotations

import asyncio
import logging
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

import httptools
from uvicorn import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from common.processes import without_tracebacks
from contract.errors import RoundhouseError
from gateway.server.asgi import Header
from gateway.server.body_budget import BodyBudget
from gateway.server.call import ClientCall, Handler
from gateway.server.request_head import (
    check_protocol,
    check_transfer_coding,
    head_size,
    in_origin_form,
    wants_websocket,
    with_declared_path,
    without_prefix,
    without_spare_slashes,
    without_upgrade,
)
from gateway.server.websocket import MessageSession, WebSocketConnection

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ClientLimits:
    """Limits of a client's connection in bytes and seconds, from the settings; the same for all connections.
    `client_timeout_s`: for a whole head, between two parts of a body, and to read what was sent. `keep_alive_s`:
    without any request."""

    max_header_bytes: int
    """Maximum number of bytes of a request line with headers, and of trailers."""
    client_timeout_s: float
    """Seconds that a client has for a request's whole head, between two parts of its body, and to read what it is
    sent."""
    keep_alive_s: float
    """Seconds without a request after which the connection is closed."""
    max_body_bytes: int
    """Maximum number of bytes of a request's body, and of a WebSocket message."""
    path_prefix: bytes = b""
    """What the path of a request may begin with, and is taken off; empty: nothing."""

    @property
    def shortest_s(self) -> float:
        """The shorter of `client_timeout_s` and `keep_alive_s`."""
        return min(self.client_timeout_s, self.keep_alive_s)


class WebSocketOpener(Protocol):
    """Authorizes the clients of WebSockets at one path, and makes the sessions that serve their messages."""

    def __call__(
        self, headers: list[Header], local_address: str | None
    ) -> Callable[[WebSocketConnection], MessageSession]:
        """Authorize a client by the headers of its handshake.

        Returns a function that makes the session of the connection; call it once, when the handshake is accepted.
        `local_address`: the gateway's IP address on the connection; None: the socket has none.

        Raises:
            RoundhouseError: the client is not authorized, or the gateway stops.
        """


class InferenceRoutes(Protocol):
    """Serves the requests that bypass FastAPI. Implemented by `exchange.dispatcher.InferenceDispatcher`."""

    def open_request(self, method: bytes, path: bytes) -> Callable[[ClientCall], Handler] | None:
        """Return a function that makes the handler of the request; None: FastAPI serves the request.

        None also for a known path with another method. `path`: without its query, perhaps percent-encoded; another name
        of a route (`/chat/completions`) was replaced by the declared one already. Call the function once per request;
        it refuses a caller without access by answering the call.
        """

    def find_websocket(self, path: bytes) -> WebSocketOpener | None:
        """Return what opens a WebSocket at this path; None: the path has no WebSocket.

        `path`: as sent, perhaps percent-encoded, without its query.
        """

    @property
    def body_budget(self) -> BodyBudget:
        """Budget of memory for large bodies, shared by all connections."""

    def next_request_id(self) -> str:
        """Return a new request id, unique among all of this gateway, for an answer to input that is no request."""


class _StopReadingError(Exception):
    """Makes the parser stop within a callback. `RequestReader` keeps the reason."""


class RequestReader(HttpToolsProtocol):
    """Reads requests from a connection, and decides whether FastAPI or a `ClientCall` serves each.

    The abstract half of `connection.ClientConnection`, which calls `read_requests` and serves the requests in turn.
    uvicorn makes it, with its own first four arguments; `direct` serves the requests that bypass FastAPI.
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
        super().__init__(config, server_state, app_state, _loop)
        self._direct = direct
        self._limits = limits
        self.max_body_bytes = limits.max_body_bytes
        """Maximum number of bytes of a request's body, and of a WebSocket message."""
        self._read_bytes = 0
        """Bytes of the present read."""
        self._idle_bytes = 0
        """Bytes read since a request's head began, or since the last part of its body."""
        self._head_slack_bytes = 0
        """Bytes of the read in which the head began; some may belong to the head and be missing in `_idle_bytes`."""
        self._dropped_bytes = 0
        """Bytes of the body that arrived after the request was answered."""
        self._is_reading_head = True
        self._wants_upgrade = False
        """Whether the request asks for another protocol."""
        self._stop_error: RoundhouseError | None = None
        """Error with which the parser was stopped."""

    @abstractmethod
    def _begin_call(
        self, opener: Callable[[ClientCall], Handler], method: bytes, path: bytes, query: bytes, *, is_http_1_1: bool
    ) -> None:
        """Make the `ClientCall` of a request whose head was read, and set it as `cycle`; the body follows."""

    @abstractmethod
    def _begin_websocket(self, opener: WebSocketOpener, headers: list[Header], data: bytes) -> bool:
        """Answer a WebSocket handshake with these headers. Returns whether that was done; else it is a usual request.

        `data`: bytes that followed the handshake.
        """

    def _switch_protocol(self, data: bytes) -> bool:
        """Switch to the protocol that a request asks for, and return whether it did. `data`: bytes after the head."""
        if not wants_websocket(self.parser.get_method(), self.parser.get_http_version(), self.headers):
            return False
        path = without_prefix(self.url, self._limits.path_prefix).partition(b"?")[0]
        opener = self._direct.find_websocket(path)
        return opener is not None and self._begin_websocket(opener, self.headers, data)

    def read_requests(self, data: bytes) -> RoundhouseError | None:
        """Parse bytes of the client, and begin the requests whose heads are complete.

        Returns the error with which to refuse the request that is being read, which is not raised; pass no bytes after
        it. None: nothing is wrong so far.
        """
        self._read_bytes = len(data)
        self._idle_bytes += self._read_bytes
        try:
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                rest = memoryview(data)[upgrade.args[0] :]
                if not self._switch_protocol(bytes(rest)):
                    self._read_without_upgrade(rest)
        except httptools.HttpParserError as error:
            return self._stop_error or _unreadable_error(error)
        return self._headers_too_large_error() if self._idle_bytes > self._limits.max_header_bytes else None

    def _read_without_upgrade(self, data: memoryview) -> None:
        """Read on as if the request had no Upgrade header.

        The parser has ended such a request with its head. So a new parser reads the head without that header, then the
        body, and perhaps further requests with such a header.
        """
        while True:
            head = without_upgrade(self.parser.get_method(), self.url, self.parser.get_http_version(), self.headers)
            self.parser = httptools.HttpRequestParser(self)
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
            self.parser.feed_data(head)
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                data = data[upgrade.args[0] :]
            else:
                return

    # The parser's callbacks

    def on_message_begin(self) -> None:
        """Reset the state for a new request. Called by the parser."""
        self.url = b""
        self.expect_100_continue = False
        self.headers = []
        self._is_reading_head = True
        self._head_slack_bytes = self._read_bytes

    def on_headers_complete(self) -> None:
        """Check the head of a request, and decide whether FastAPI or a `ClientCall` serves it. Called by the parser.

        A head that is refused stops the parser, so that `read_requests` returns the error. A request with an Upgrade
        header is only checked here: `read_requests` goes on with it.
        """
        limit = self._limits.max_header_bytes
        if self._idle_bytes + self._head_slack_bytes > limit and head_size(self.url, self.headers) > limit:
            self._stop_reading(self._headers_too_large_error())
        method, version = self.parser.get_method(), self.parser.get_http_version()
        self._wants_upgrade = self.parser.should_upgrade()
        try:
            if self._wants_upgrade or version != "1.1":
                check_protocol(method, version)
            check_transfer_coding(self.headers)
        except RoundhouseError as error:
            self._stop_reading(error)
        if self._wants_upgrade:
            return
        self._is_reading_head = False
        self._idle_bytes = 0
        if self.url[:1] != b"/":
            self.url, self.headers = in_origin_form(self.url, self.headers)
        if self._limits.path_prefix:
            self.url = without_prefix(self.url, self._limits.path_prefix)
        self.url = with_declared_path(method, self.url)
        path, _, query = self.url.partition(b"?")
        opener = self._direct.open_request(method, path)
        if opener is None and (path[-1:] == b"/" or b"//" in path):
            opener, path = self._open_without_spare_slashes(method, path)
        if opener is None:
            self._begin_framework()
        else:
            self._begin_call(opener, method, path, query, is_http_1_1=version == "1.1")
        self.headers = []  # trailers are no headers

    def _open_without_spare_slashes(
        self, method: bytes, path: bytes
    ) -> tuple[Callable[[ClientCall], Handler] | None, bytes]:
        """Return what serves an inference request whose path has doubled slashes or ends with one, None if nothing
        does, and the path."""
        tidy = with_declared_path(method, without_spare_slashes(path))
        opener = self._direct.open_request(method, tidy)
        if opener is None and path[:2] == b"//":
            # The parser would take its first part for a host.
            self.url = with_declared_path(method, b"/" + self.url.lstrip(b"/"))
        return opener, path if opener is None else tidy

    def _begin_framework(self) -> None:
        url, headers, expects_continue = self.url, self.headers, self.expect_100_continue
        super().on_message_begin()
        self.url, self.expect_100_continue = url, expects_continue
        self.headers.extend(headers)
        try:
            super().on_headers_complete()
        except httptools.HttpParserInvalidURLError:
            self._stop_reading(RoundhouseError("invalid_request", "The request's target is not a URL."))
        if expects_continue:
            self.cycle.keep_alive = False  # a client that is refused before its body may send the body or not
        if self.pipeline:
            self.flow.resume_reading()  # uvicorn reads nothing ahead

    def _stop_reading(self, reason: RoundhouseError) -> NoReturn:
        """Stop the parser from within one of its callbacks. `read_requests` then returns `reason`."""
        self._stop_error = without_tracebacks(reason)
        raise _StopReadingError

    def on_body(self, body: bytes) -> None:
        """Pass a part of a body on to its request. Called by the parser. A body that goes on for more than
        `max_body_bytes` after FastAPI's answer stops the parser with `body_too_large`."""
        self._idle_bytes = 0
        if isinstance(self.cycle, ClientCall):
            self.cycle.take_body(body)
            return
        super().on_body(body)
        if self.cycle.response_complete:
            self._dropped_bytes += len(body)
            if self._dropped_bytes > self.max_body_bytes:
                self._stop_reading(RoundhouseError("body_too_large", "The request was answered long ago."))

    def on_message_complete(self) -> None:
        """Mark the request's body as complete. Called by the parser. A request with an Upgrade header is left as it is.

        A `ClientCall` is not served here: `ClientConnection.data_received` does so after the read.
        """
        if self._wants_upgrade:
            return  # the request is read again
        self._idle_bytes = self._dropped_bytes = 0
        if isinstance(self.cycle, ClientCall):
            self.cycle.body_complete = True
        else:
            super().on_message_complete()

    def _headers_too_large_error(self) -> RoundhouseError:
        limit = self._limits.max_header_bytes
        part = "request line and headers" if self._is_reading_head else "trailers"
        return RoundhouseError("headers_too_large", f"The {part} are more than {limit} bytes.")


def _unreadable_error(error: httptools.HttpParserError) -> RoundhouseError:
    if isinstance(error, httptools.HttpParserCallbackError):  # the gateway's fault
        logger.error("a request could not be read", exc_info=error.__context__)
        return RoundhouseError("internal_error", "The gateway failed on this request.")
    return RoundhouseError("invalid_request", "What was sent is not an HTTP/1.1 request.")
