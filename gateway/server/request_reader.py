"""Reading requests from a client's connection, within limits. See `connection`, which answers them.

uvicorn's protocol with its parser, which is strict: what it refuses (two lengths, a length besides chunks, folded or
bare-ended lines) could be read in two ways by two servers, and hide a request inside another. So could transfer codings
besides `chunked`, of which it refuses some: `request_head` refuses all.
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

from common.tracebacks import without_tracebacks
from controller.schema.errors import RoundhouseError
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
    without_upgrade,
)
from gateway.server.websocket import MessageSession, WebSocketConnection

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ClientLimits:
    """What a connection may take of us."""

    max_header_bytes: int
    client_timeout_s: float
    """For the headers; between parts of a body; for taking what was sent."""
    keep_alive_s: float
    """Between requests."""

    @property
    def shortest_s(self) -> float:
        """How often to look at the time."""
        return min(self.client_timeout_s, self.keep_alive_s)


class WebSocketOpener(Protocol):
    """Opens one."""

    def __call__(
        self, headers: list[Header], local_address: str | None
    ) -> Callable[[WebSocketConnection], MessageSession]:
        """Let a client with these headers in. What makes the session of its connection.

        Raises:
            RoundhouseError: the client may not come in.
        """


class InferenceRoutes(Protocol):
    """What serves requests without the web framework."""

    def open_request(self, method: bytes, path: bytes) -> Callable[[ClientCall], Handler] | None:
        """What opens such a request; None: it goes through the framework. `path` is as sent, without its query."""

    def find_websocket(self, path: bytes) -> WebSocketOpener | None:
        """What opens a WebSocket at this path; None: there is none. `path` is as sent, without its query."""

    def max_body_bytes(self) -> int:
        """Most bytes of a request's body."""

    @property
    def body_budget(self) -> BodyBudget:
        """Room for large bodies."""

    def next_request_id(self) -> str:
        """An id for the answer to what is no request."""


class _StopReadingError(Exception):
    """Ends the parser's work in the middle. The reason is kept by whoever raises this."""


class RequestReader(HttpToolsProtocol):
    """The reading half of a connection."""

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
        self._read_bytes = 0
        """Bytes of this read."""
        self._idle_bytes = 0
        """Bytes since a request's head began, or since the last part of its body."""
        self._head_slack_bytes = 0
        """Bytes that the head may have besides `_idle_bytes`: of the read in which it began."""
        self._dropped_bytes = 0
        """Bytes of the body of a request that was answered before its end."""
        self._is_reading_head = True
        self._wants_upgrade = False
        self._stop_error: RoundhouseError | None = None
        """Why the parser was stopped."""

    @abstractmethod
    def _begin_call(
        self, opener: Callable[[ClientCall], Handler], method: bytes, path: bytes, query: bytes, *, is_http_1_1: bool
    ) -> None:
        """The head of a request without the framework is there. Its call is `cycle` from now on: the body follows.
        `is_http_1_1`: it is HTTP/1.1."""

    @abstractmethod
    def _begin_websocket(self, opener: WebSocketOpener, headers: list[Header], data: bytes) -> bool:
        """Answer a handshake of WebSocket with these headers, behind which came `data`. Whether that was done: where
        not, the wish is ignored."""

    def _switch_protocol(self, data: bytes) -> bool:
        """Grant the wish for another protocol, if it can be granted; `data` came behind the head."""
        if not wants_websocket(self.parser.get_method(), self.parser.get_http_version(), self.headers):
            return False
        opener = self._direct.find_websocket(self.url.partition(b"?")[0])
        return opener is not None and self._begin_websocket(opener, self.headers, data)

    @property
    def max_body_bytes(self) -> int:
        """Most bytes of a body."""
        return self._direct.max_body_bytes()

    def read_requests(self, data: bytes) -> RoundhouseError | None:
        """Read on. What is wrong with the request that is being read; nothing may be read after it."""
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
        """Go on as if no other protocol had been wished for. For the parser the request ended with such a head: so the
        head is read again without the wish, and then the body, and perhaps further requests of the kind."""
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
        """Forget the last request."""
        self.url = b""
        self.expect_100_continue = False
        self.headers = []
        self._is_reading_head = True
        self._head_slack_bytes = self._read_bytes

    def on_headers_complete(self) -> None:
        """Decide who serves the request."""
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
        self.url = with_declared_path(self.url)
        path, _, query = self.url.partition(b"?")
        opener = self._direct.open_request(method, path)
        if opener is None:
            self._begin_framework()
        else:
            self._begin_call(opener, method, path, query, is_http_1_1=version == "1.1")
        self.headers = []  # a body's trailers are no headers

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
            self.cycle.keep_alive = False  # refused before its body was asked for, it may send it or not
        if self.pipeline:
            self.flow.resume_reading()  # uvicorn reads nothing ahead

    def _stop_reading(self, reason: RoundhouseError) -> NoReturn:
        """End the parser's work, from within one of its callbacks."""
        self._stop_error = without_tracebacks(reason)
        raise _StopReadingError

    def on_body(self, body: bytes) -> None:
        """A part of a body."""
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
        """The end of a request."""
        if self._wants_upgrade:
            return  # it is read again
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
    if isinstance(error, httptools.HttpParserCallbackError):  # ours, not the client's
        logger.error("a request could not be read", exc_info=error.__context__)
        return RoundhouseError("internal_error", "The gateway failed on this request.")
    return RoundhouseError("invalid_request", "What was sent is not an HTTP/1.1 request.")
