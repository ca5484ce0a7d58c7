"""Connections to engines: each writes requests, parses answers and calls listeners, without tasks or timers, but for
the one that watches a relay.

`ConnectionPool` keeps idle ones open for later requests.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Generic, Protocol, TypeVar, cast

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from common.host_tls import is_cut_off
from common.processes import without_tracebacks
from common.unread_input import read_unread
from gateway.upstream.target import Address

logger = logging.getLogger(__name__)


KEEP_S = 60.0
"""Seconds without a request after which a connection is closed, at the latest; at the earliest after half of them."""
PEER_LOOK_S = 5.0
"""Seconds between two looks whether a relay is still reached."""
KEEP_PER_ORIGIN = 256
"""Idle connections that are kept per origin."""


class Pooled(Protocol):
    """A connection as the pool uses it: `connection.EngineConnection`, or a fake in tests."""

    origin: Origin[Any]
    idle_round: int
    """The pool's round in which the connection became idle. Set by the pool."""

    def abort(self) -> None:
        """Close the connection at once, without waiting for the peer; unsent bytes are lost.

        The connection calls `ConnectionPool.remove_connection` in a later turn of the event loop. A request that the
        connection carries fails then, and its listener is told.
        """

    def drop(self) -> None:
        """Close the connection like `abort`, and forget the request that it carries without calling its listener."""


C = TypeVar("C", bound=Pooled)


class Origin(Generic[C]):
    """An address of engines, and the idle connections to it, latest used last.

    Whoever sends a request on an idle connection takes it out of the list first, from its end.
    """

    __slots__ = ("address", "idle_connections")

    def __init__(self, address: Address) -> None:
        self.address = address
        self.idle_connections: list[C] = []


class ConnectionPool(Generic[C]):
    """Counts the connections to all origins, keeps idle ones for later requests, and closes those idle for too long.

    It opens none. Idle time is counted in rounds of one timer, which runs only while some are idle. Belongs to one
    event loop.
    """

    def __init__(self, keep_s: float = KEEP_S, keep_per_origin: int = KEEP_PER_ORIGIN) -> None:
        """`keep_s`: seconds after which an idle connection is closed at the latest; at the earliest after half of
        them. `keep_per_origin`: maximum number of idle connections to one address; there is no maximum of busy ones."""
        self._round_s = keep_s / 2
        self._keep_per_origin = keep_per_origin
        self._origins: dict[Address, Origin[C]] = {}
        self._open: set[C] = set()
        self._round = 0
        self._timer: asyncio.TimerHandle | None = None
        self._all_lost: asyncio.Future[None] | None = None

    @property
    def open_count(self) -> int:
        """Number of open connections, idle or in use; one counts until its transport has reported the close."""
        return len(self._open)

    @property
    def idle_count(self) -> int:
        """Number of open connections that carry no request and are kept for a later one, over all origins."""
        return sum(len(origin.idle_connections) for origin in self._origins.values())

    def origin_of(self, address: Address) -> Origin[C]:
        """Return the origin with an address; a new one, without connections, on first use or after `forget_unused`."""
        origin = self._origins.get(address)
        if origin is None:
            origin = self._origins[address] = Origin(address)
        return origin

    def forget_unused(self, awaited: Iterable[Origin[C]]) -> None:
        """Forget origins without open connections. `awaited`: origins to keep, because one is being opened to them."""
        used_addresses = {connection.origin.address for connection in self._open}
        used_addresses.update(origin.address for origin in awaited)
        self._origins = {address: origin for address, origin in self._origins.items() if address in used_addresses}

    def add_connection(self, connection: C) -> None:
        """Count a new open connection. It is not idle: the caller sends a request on it."""
        self._open.add(connection)

    def keep_idle(self, connection: C) -> None:
        """Keep a connection whose request has ended for the next request to its origin. It is closed if it stays idle
        for `keep_s`. Close it instead if `keep_per_origin` connections are idle there already."""
        idle_connections = connection.origin.idle_connections
        if len(idle_connections) >= self._keep_per_origin:
            connection.abort()
            return
        connection.idle_round = self._round
        idle_connections.append(connection)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._round_s, self._sweep)

    def withdraw_idle(self, connection: C) -> None:
        """Remove a connection that is closing from its origin's idle ones; do nothing if it is not among them."""
        idle_connections = connection.origin.idle_connections
        if connection in idle_connections:
            idle_connections.remove(connection)

    def remove_connection(self, connection: C) -> None:
        """Stop counting a connection whose transport is closed, and no longer keep it idle. Do nothing if the
        connection was never added."""
        self.withdraw_idle(connection)
        self._open.discard(connection)
        if self._all_lost is not None and not self._open and not self._all_lost.done():
            self._all_lost.set_result(None)

    async def close(self) -> None:
        """Close every connection, also those that carry requests, and wait until all transports are closed.

        No listener is called. Use no connection afterwards; calls must not overlap.
        """
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for origin in self._origins.values():
            origin.idle_connections.clear()
        for connection in self._open:
            connection.drop()
        if self._open:
            self._all_lost = asyncio.get_running_loop().create_future()
            await self._all_lost

    def _sweep(self) -> None:
        self._round += 1
        has_idle = False
        for origin in self._origins.values():
            idle_connections = origin.idle_connections
            old_count = 0
            while old_count < len(idle_connections) and idle_connections[old_count].idle_round <= self._round - 2:
                idle_connections[old_count].abort()
                old_count += 1
            del idle_connections[:old_count]
            has_idle = has_idle or bool(idle_connections)
        self._timer = asyncio.get_running_loop().call_later(self._round_s, self._sweep) if has_idle else None


Headers = list[tuple[bytes, bytes]]
RequestBody = bytes | list[bytes | memoryview]
"""A body in one piece, or a large one in parts, which are sent as fast as the engine reads them."""

MAX_HEAD_BYTES = 64 * 1024
"""Maximum size in bytes of an answer's headers, and of informational answers or trailers with no body byte between."""
_ONE_PIECE_BYTES = 32 * 1024
"""Bodies up to this size are copied behind their head, which is cheaper than two writes."""
_PART_BYTES = 128 * 1024
"""Maximum number of bytes of a large body that are passed to the transport at once."""
_ONE_TURN_BYTES = 512 * 1024
"""Maximum number of bytes of a large body that are written in one turn, however fast the engine reads."""


class EngineFailureError(Exception):
    """A request to an engine failed; passed to `EngineListener.engine_failed`, never raised.

    The text says in words what the engine did. `__cause__` is the exception behind it, such as an OSError, the parser's
    error or what the listener raised; None: none.
    """


class EngineRefusedError(EngineFailureError):
    """No connection to the engine could be opened, so the request never reached it.

    The connection was refused or timed out, its TLS failed, the endpoint's URL or token cannot be used, or the gateway
    stops. `Attempt` also uses it for a 401 to a replica's own token, which another engine at its address answers.
    """

    def __init__(self, text: str = "it accepts no connection") -> None:
        super().__init__(text)


class EngineBrokenError(EngineFailureError):
    """The connection was closed before the answer's first byte; the engine may have read the request or not.

    Also used when the engine closed an idle connection just before the request was sent on it.
    """

    def __init__(self) -> None:
        super().__init__("it closed the connection before it answered")


class EngineGarbledError(EngineFailureError):
    """Bytes arrived, but no usable head of an HTTP answer: it is invalid, incomplete or above `MAX_HEAD_BYTES`.

    Also used if what came with the head in one read is invalid HTTP, since then nothing is delivered.
    """

    def __init__(self, text: str = "what it sent is not an HTTP answer") -> None:
        super().__init__(text)


class EngineDiedError(EngineFailureError):
    """The answer broke off after its head was delivered: it ended too early, went on with invalid HTTP or with trailers
    above `MAX_HEAD_BYTES`, or the listener raised."""

    def __init__(self, text: str = "the connection ended before its answer was complete") -> None:
        super().__init__(text)


class EngineListener(Protocol):
    """Receives the answer to one request, in the event loop; the methods must not block.

    The connection calls `engine_head` once, `engine_data` any number of times, then `engine_end` once. If the request
    fails before its end, it calls `engine_failed` once instead of what is missing. It calls no method from within
    `EngineClient.send_request` or `cancel`, `pause` and `resume` of `EngineCall`, and none after `cancel` or
    `EngineClient.close`. If `engine_head` or `engine_data` raises, the exception is logged, the connection is closed,
    and `engine_failed` is called with `EngineDiedError`.
    """

    def engine_head(self, status: int, headers: Headers) -> None:
        """Take status, 200 to 599, and headers of the final answer; informational answers (1xx) are skipped.

        Header names are in lower case, in the order of the answer, and may repeat. Must not block.
        """

    def engine_data(self, data: bytes) -> None:
        """Take the next bytes of the body, never empty, without the framing of chunks.

        All bytes of one read from the socket come in one call. Must not block.
        """

    def engine_end(self) -> None:
        """Take the end of a complete answer. The listener may send another request from here.

        An exception is logged only. No further call follows.
        """

    def engine_failed(self, failure: EngineFailureError) -> None:
        """Take the failure of the request, before or after `engine_head`; called instead of `engine_end`.

        An exception is logged only. No further call follows.
        """


class EngineCall:
    """Handle of one request to an engine, returned by `EngineClient.send_request`, to cancel or pause it.

    Once the request has ended, its methods do nothing.
    """

    __slots__ = ("connect_task", "connection", "is_paused", "listener")

    def __init__(self, listener: EngineListener) -> None:
        self.listener: EngineListener | None = listener
        """Receives the answer; None: the request has ended."""
        self.connection: EngineConnection | None = None
        """The connection that carries the request; None: not connected yet, or ended."""
        self.connect_task: asyncio.Task[None] | None = None
        """Opens the request's connection; None: it has one, or has ended."""
        self.is_paused = False
        """Whether `pause` was called, and `resume` not since; also while the request is not connected yet."""

    def cancel(self) -> None:
        """Close the connection at once, or stop opening it, so that the engine notices and stops.

        The listener is not called again, not even with a failure. Returns at once, and may be called repeatedly.
        """
        self.listener = None
        if self.connection is not None:
            self.connection.drop()
            self.connection = None
        elif self.connect_task is not None:
            self.connect_task.cancel()
            self.connect_task = None

    def pause(self) -> None:
        """Stop reading from the engine until `resume`, so that a slow client slows the engine down.

        Bytes that were already read are still delivered, and an end among them. Repeated calls do nothing; calls are
        not counted. A request that is still being connected is paused once it is sent.
        """
        self.is_paused = True
        if self.connection is not None:
            self.connection.pause()

    def resume(self) -> None:
        """Resume reading from the engine after one or more calls of `pause`; without these, do nothing."""
        self.is_paused = False
        if self.connection is not None:
            self.connection.resume()

    def fail_call(self, failure: EngineFailureError, cause: BaseException | None) -> None:
        """End the request and call the listener's `engine_failed`, unless the request has ended or was cancelled.

        For `EngineClient` and the connection only: the connection is not closed. `cause` becomes `failure.__cause__`.
        What the listener raises is logged.
        """
        listener = self.listener
        if listener is None:
            return
        self.listener = self.connection = self.connect_task = None
        failure.__cause__ = cause
        try:
            listener.engine_failed(failure)
        except Exception:
            logger.exception("the failure of a request to an engine could not be handled")


class EngineConnection(asyncio.Protocol):
    """One TCP or TLS connection to an engine: writes a request at a time, and parses the answer for its listener.

    Made by `EngineClient`. After a complete answer it goes to the pool of idle connections, if the engine keeps it
    open, else it is closed. It is also closed when bytes or the end of the stream arrive while no request is running.
    """

    __deletable__ = ("_parser", "_transport")  # for mypyc
    __slots__ = (
        "_bytes_without_body",
        "_call",
        "_ends_at_eof",
        "_head",
        "_headers",
        "_is_complete",
        "_is_lost",
        "_keeps_alive",
        "_parser",
        "_parts",
        "_pool",
        "_status",
        "_transport",
        "_unsent_parts",
        "_waits_for_engine",
        "idle_round",
        "on_body",
        "origin",
    )

    def __init__(self, origin: Origin[EngineConnection], pool: ConnectionPool[EngineConnection]) -> None:
        self.origin = origin
        self.idle_round = 0
        """Number of the pool's round (half its idle time) in which the connection became idle. Set by the pool."""
        self._pool = pool
        self._call: EngineCall | None = None
        self._transport: asyncio.Transport
        self._is_lost = False
        self._headers: Headers = []
        self._head: Headers | None = None
        """Headers of the final answer that are parsed and not delivered yet."""
        self._parts: list[bytes] = []
        """Bytes of the body that are parsed and not delivered yet."""
        self.on_body: Callable[[bytes], None] = self._parts.append
        """Called by the parser."""
        self._status = 0
        """Status of the final answer; 0 until its headers are parsed."""
        self._keeps_alive = False
        self._ends_at_eof = False
        self._is_complete = False
        self._bytes_without_body = 0
        """Bytes of the answer since the last byte of its body."""
        self._unsent_parts: deque[bytes | memoryview] = deque()
        """Parts of a large request that the transport does not have yet."""
        self._waits_for_engine = False
        """Whether the transport's buffer is full."""
        self._parser: HttpResponseParser
        """Exists while the connection is open. It refers back to the connection, as the transport does."""

    @property
    def is_lost(self) -> bool:
        """Whether the connection is closed or closing, so that it must not get another request."""
        return self._is_lost

    def give_up(self) -> None:
        """Drop parser and transport after connecting failed or was cancelled. uvloop does not call `connection_lost`
        then, and their references back to the connection would leave it to the cyclic garbage collector."""
        for name in ("_parser", "_transport"):
            if hasattr(self, name):
                delattr(self, name)

    def send_request(self, call: EngineCall, head: bytes, body: RequestBody) -> None:
        """Begin to send a request, and return at once. What the engine cannot take yet is sent later.

        The connection must be new, or idle and taken out of the pool's list; this is not checked. `head`: request line
        and headers, up to and with the empty line. A failure is passed to the call's listener later.
        """
        self._call = call
        call.connection = self
        self._status = 0
        self._is_complete = False
        self._bytes_without_body = 0
        if not isinstance(body, bytes):
            self._unsent_parts.append(head)
            for part in body:
                view = memoryview(part)
                self._unsent_parts += [view[at : at + _PART_BYTES] for at in range(0, len(view), _PART_BYTES)]
            self._send_parts()
        elif len(body) <= _ONE_PIECE_BYTES:
            self._transport.write(head + body)
        else:
            self._transport.writelines((head, body))

    def _send_parts(self) -> None:
        """Write parts of a large request until the transport is full or `_ONE_TURN_BYTES` are written."""
        size = 0
        while self._unsent_parts and not self._waits_for_engine and not self._is_lost:
            if size > _ONE_TURN_BYTES:
                asyncio.get_running_loop().call_soon(self._send_parts)
                return
            part = self._unsent_parts.popleft()
            size += len(part)
            self._transport.write(part)

    def pause(self) -> None:
        """Stop reading from the engine; does nothing if reading is stopped or the connection is closed."""
        self._transport.pause_reading()

    def resume(self) -> None:
        """Resume reading from the engine after `pause`; does nothing without it or if the connection is closed."""
        self._transport.resume_reading()

    def drop(self) -> None:
        """Close the connection at once, and cancel its request without calling the listener."""
        self._call = None
        self.abort()

    def abort(self) -> None:
        """Close the connection at once, and discard unsent bytes: a clean close could wait for the peer forever.

        A request that the connection carries fails in a later turn of the event loop (`EngineListener.engine_failed`).
        """
        self._is_lost = True
        self._unsent_parts.clear()
        self._transport.abort()

    def watch_peer(self) -> None:
        """Abort the connection once the other machine is no longer reached, which is looked at until it is lost."""
        connection = self._transport.get_extra_info("socket")
        if self._is_lost or connection is None:  # uvloop tells of the end of TLS a turn after it has let the socket go
            return
        if is_cut_off(connection):
            self._pool.withdraw_idle(self)
            self.abort()
        else:
            asyncio.get_running_loop().call_later(PEER_LOOK_S, self.watch_peer)

    # From the transport

    def pause_writing(self) -> None:
        self._waits_for_engine = True

    def resume_writing(self) -> None:
        self._waits_for_engine = False
        self._send_parts()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass of it
        self._parser = HttpResponseParser(self)
        if transport.get_extra_info("sslcontext") is not None:
            # While paused, the TLS layer reads ahead, and loses that when the peer closes. So let the layer take one
            # read, and leave the rest, and the peer's close, in the socket.
            self._transport.set_read_buffer_limits(high=1, low=0)  # type: ignore[attr-defined] # TLS transports have it

    def data_received(self, data: bytes) -> None:
        call = self._call
        if call is None:
            self._close_unasked()
            return
        error: Exception | None = None
        try:
            self._parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade) as parser_error:
            error = without_tracebacks(parser_error)
        size = self._bytes_without_body + len(data)
        self._bytes_without_body = 0 if self._parts else size
        if size > MAX_HEAD_BYTES and self._is_too_long():
            self._fail(call, self._too_long_error(), error)
            return
        try:
            self._deliver(call, error)
        except Exception as failure:
            logger.exception("an engine's answer could not be handled")
            self._fail(call, EngineDiedError("its answer could not be handled"), failure)

    def eof_received(self) -> None:
        call = self._call
        if call is None:
            self._close_unasked()
        elif self._status and self._ends_at_eof:
            self._end(call, is_clean=False)
        else:
            self._fail(call, self._broken_off_error(), None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_lost = True
        if exc is not None and self._call is not None:
            self._read_early_answer()
        self._unsent_parts.clear()
        self._pool.remove_connection(self)
        if hasattr(self, "_parser"):
            del self._parser  # it refers back to the connection
        if self._call is not None:
            self._fail(self._call, self._broken_off_error(), exc)

    def _read_early_answer(self) -> None:
        """Take the answer of an engine that refused the request before it had read all of it, and closed."""
        is_answered = False
        for part in read_unread(self._transport):
            is_answered = True
            self.data_received(part)
            if self._call is None:
                return
        if is_answered and self._status and self._ends_at_eof:
            self.eof_received()

    # From the parser, in the middle of a read: nothing may be delivered here

    def on_message_begin(self) -> None:
        if self._is_complete:
            raise ValueError("a second answer")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        headers = self._headers
        self._headers = []
        status = self._parser.get_status_code()
        if not 100 <= status <= 599:
            raise ValueError("no status of HTTP")
        if status >= 200:
            self._status = status
            self._head = headers
            self._keeps_alive = self._parser.should_keep_alive()
            self._ends_at_eof = not self._keeps_alive and _is_without_length(headers)

    def on_message_complete(self) -> None:
        if self._status:  # the final answer, not an informational one before it
            self._is_complete = True
            self._headers.clear()  # trailers

    # To the listener

    def _deliver(self, call: EngineCall, error: Exception | None) -> None:
        head = self._head
        if error is not None and not self._is_complete and (head is not None or not self._status):
            self._fail(call, EngineGarbledError(), error)
            return
        listener = call.listener
        assert listener is not None
        if head is not None:
            self._head = None
            listener.engine_head(self._status, head)
        parts = self._parts
        if parts and self._call is call:  # the listener may have cancelled
            data = parts[0] if len(parts) == 1 else b"".join(parts)
            parts.clear()
            listener.engine_data(data)
        if self._call is not call:
            return
        if self._is_complete:
            self._end(call, is_clean=error is None)
        elif error is not None:
            self._fail(call, EngineDiedError("its answer went on with what is not HTTP"), error)

    def _end(self, call: EngineCall, *, is_clean: bool) -> None:
        listener = call.listener
        transport = self._transport
        self._call = call.listener = call.connection = None
        # An answer such as 413 may come before the whole request was sent: the rest must not precede another request.
        is_sent = not self._unsent_parts and not transport.get_write_buffer_size()
        if is_clean and self._keeps_alive and is_sent and not self._is_lost:
            if call.is_paused:
                transport.resume_reading()
            self._pool.keep_idle(self)
        else:
            self.abort()
        assert listener is not None
        try:
            listener.engine_end()  # may send another request on this connection
        except Exception:
            logger.exception("the end of an engine's answer could not be handled")

    def _fail(self, call: EngineCall, failure: EngineFailureError, cause: BaseException | None) -> None:
        self._call = None
        self.abort()
        call.fail_call(failure, cause)

    def _close_unasked(self) -> None:
        # The peer closes an idle connection, or sends an answer without a request, which the next one must not get.
        if not hasattr(self, "_transport"):
            return  # it was given up, and TLS tells of its end all the same
        self._pool.withdraw_idle(self)
        self.abort()

    def _broken_off_error(self) -> EngineFailureError:
        if not self._status and not self._bytes_without_body:
            return EngineBrokenError()
        if self._is_head_delivered():
            return EngineDiedError()
        return EngineGarbledError("it closed the connection before its answer's headers were complete")

    def _too_long_error(self) -> EngineFailureError:
        if self._is_head_delivered():
            return EngineDiedError("its answer's trailers are too long")
        return EngineGarbledError("its answer's headers are too long")

    def _is_head_delivered(self) -> bool:
        return self._status != 0 and self._head is None

    def _is_too_long(self) -> bool:
        if not self._parts:
            return True
        return self._head is not None and sum(len(name) + len(value) + 4 for name, value in self._head) > MAX_HEAD_BYTES


def _is_without_length(headers: Headers) -> bool:
    """Return whether only the close of the connection ends an answer: it has neither a length nor chunks.

    Raises:
        ValueError: the answer has a transfer coding other than chunked.
    """
    codings = [value.lower() for name, value in headers if name == b"transfer-encoding"]
    if codings and codings != [b"chunked"]:
        raise ValueError("an unknown transfer coding")
    return not codings and all(name != b"content-length" for name, _ in headers)
