"""One connection to an engine: writes requests, parses answers, calls whoever listens. No task, future or timer."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Protocol, cast

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from common.tracebacks import without_tracebacks
from gateway.upstream.pool import ConnectionPool, Origin

logger = logging.getLogger(__name__)

Headers = list[tuple[bytes, bytes]]
RequestBody = bytes | list[bytes | memoryview]
"""In one piece, or, of a large one, in parts, which are sent as the engine takes them."""

MAX_HEAD_BYTES = 64 * 1024
"""Of an answer's headers, and of all else that comes without a byte of its body: informational answers, trailers."""
_ONE_PIECE_BYTES = 32 * 1024
"""Up to here it is cheaper to copy a body behind its head than to write two pieces."""
_PART_BYTES = 128 * 1024
"""Of a large body, at most so much is given to the transport in one go."""
_ONE_TURN_BYTES = 512 * 1024
"""So much of a large body is written before others have their turn, however fast the engine takes it."""


class EngineFailureError(Exception):
    """The engine's side failed. The text is plain; the library's own error is the cause."""


class EngineRefusedError(EngineFailureError):
    """No connection came about: the request never reached the replica."""

    def __init__(self, text: str = "it accepts no connection") -> None:
        super().__init__(text)


class EngineBrokenError(EngineFailureError):
    """The connection was closed before the answer's first byte. A kept one may merely have been stale."""

    def __init__(self) -> None:
        super().__init__("it closed the connection before it answered")


class EngineGarbledError(EngineFailureError):
    """Something came, but not the whole head of an HTTP answer."""

    def __init__(self, text: str = "what it sent is not an HTTP answer") -> None:
        super().__init__(text)


class EngineDiedError(EngineFailureError):
    """The answer ended before it was complete, or went on with what is not HTTP."""

    def __init__(self, text: str = "the connection ended before its answer was complete") -> None:
        super().__init__(text)


class EngineListener(Protocol):
    """Whoever a request is for. Called in this order, and never from inside `send`, `pause`, `resume` or `cancel`."""

    def engine_head(self, status: int, headers: Headers) -> None:
        """The final answer's head; the names are in lower case."""

    def engine_data(self, data: bytes) -> None:
        """Bytes of the body, never empty; what came in one read is joined."""

    def engine_end(self) -> None:
        """The answer is complete, and the connection is free for the next request. Nothing follows."""

    def engine_failed(self, failure: EngineFailureError) -> None:
        """It failed, in place of `engine_end`. Nothing follows."""


class EngineCall:
    """One request on its way. Good for nothing once it has ended, and harmless."""

    __slots__ = ("connect_task", "connection", "is_paused", "listener")

    def __init__(self, listener: EngineListener) -> None:
        self.listener: EngineListener | None = listener
        """None once it has ended."""
        self.connection: EngineConnection | None = None
        self.connect_task: asyncio.Task[None] | None = None
        self.is_paused = False

    def cancel(self) -> None:
        """Close the connection, which tells the engine that nobody listens. The listener is not called again."""
        self.listener = None
        if self.connection is not None:
            self.connection.drop()
            self.connection = None
        elif self.connect_task is not None:
            self.connect_task.cancel()
            self.connect_task = None

    def pause(self) -> None:
        """Stop reading from the engine. What one read has already brought is still delivered, and the end with it."""
        self.is_paused = True
        if self.connection is not None:
            self.connection.pause()

    def resume(self) -> None:
        """Go on reading."""
        self.is_paused = False
        if self.connection is not None:
            self.connection.resume()

    def fail_call(self, failure: EngineFailureError, cause: BaseException | None) -> None:
        """End it, unless it has ended."""
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
    """Delivers what each read brings of the one answer that is due. Anything else that comes closes it."""

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
        self._pool = pool
        self._call: EngineCall | None = None
        self._transport: asyncio.Transport
        self._is_lost = False
        self._headers: Headers = []
        self._head: Headers | None = None
        """A head that was parsed and is not delivered yet."""
        self._parts: list[bytes] = []
        self.on_body: Callable[[bytes], None] = self._parts.append
        self._status = 0
        """Of the final answer, once its head is parsed."""
        self._keeps_alive = False
        self._ends_at_eof = False
        self._is_complete = False
        self._bytes_without_body = 0
        """Bytes of this answer since its last one of a body."""
        self._unsent_parts: deque[bytes | memoryview] = deque()
        """What the transport was not given yet of a large body."""
        self._waits_for_engine = False
        """The transport has as much to send as it may hold."""
        self._parser: HttpResponseParser
        """Refers back to this, as the transport does. There is one while the connection stands."""

    @property
    def is_lost(self) -> bool:
        """Whether it is closed or closing."""
        return self._is_lost

    def give_up(self) -> None:
        """Its connecting failed or was cancelled. uvloop says nothing of that to one that has just come about: what
        refers back to it would keep it for the cyclic collector."""
        for name in ("_parser", "_transport"):
            if hasattr(self, name):
                delattr(self, name)

    def send_request(self, call: EngineCall, head: bytes, body: RequestBody) -> None:
        """Send a request. The connection must be fresh, or come from the pool."""
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
        """Write on, as far as the engine takes it and others are not kept waiting for long."""
        size = 0
        while self._unsent_parts and not self._waits_for_engine and not self._is_lost:
            if size > _ONE_TURN_BYTES:
                asyncio.get_running_loop().call_soon(self._send_parts)
                return
            part = self._unsent_parts.popleft()
            size += len(part)
            self._transport.write(part)

    def pause(self) -> None:
        """Stop reading."""
        self._transport.pause_reading()

    def resume(self) -> None:
        """Go on reading."""
        self._transport.resume_reading()

    def drop(self) -> None:
        """Close it under the request that it carries, without a word to the listener."""
        self._call = None
        self.abort()

    def abort(self) -> None:
        """Close it at once. What was not sent yet is dropped: a close could wait for the peer forever."""
        self._is_lost = True
        self._unsent_parts.clear()
        self._transport.abort()

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
            # The TLS layer reads ahead while it is paused, and what it read ahead is lost when the peer closes. So
            # let it take one read, and leave the rest, and the peer's close, in the socket.
            self._transport.set_read_buffer_limits(high=1, low=0)  # type: ignore[attr-defined] # of TLS's transports only

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
        self._unsent_parts.clear()
        self._pool.remove_connection(self)
        if hasattr(self, "_parser"):
            del self._parser  # which refers back to this
        if self._call is not None:
            self._fail(self._call, self._broken_off_error(), exc)

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
        if self._status:  # of the final answer, and not of an informational one before it
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
        # An answer may come before the whole request was sent, such as 413: the rest must not precede the next one.
        is_sent = not self._unsent_parts and not transport.get_write_buffer_size()
        if is_clean and self._keeps_alive and is_sent:
            if call.is_paused:
                transport.resume_reading()
            self._pool.keep_idle(self)
        else:
            self.abort()
        assert listener is not None
        try:
            listener.engine_end()  # which may send the next request on this connection
        except Exception:
            logger.exception("the end of an engine's answer could not be handled")

    def _fail(self, call: EngineCall, failure: EngineFailureError, cause: BaseException | None) -> None:
        self._call = None
        self.abort()
        call.fail_call(failure, cause)

    def _close_unasked(self) -> None:
        # The peer ends an idle connection, or answers what nobody asked, which must not meet the next request.
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
    """Whether an answer that closes its connection ends with that: neither its length nor chunks tell its end.

    Raises:
        ValueError: it is coded in a way that was not asked for.
    """
    codings = [value.lower() for name, value in headers if name == b"transfer-encoding"]
    if codings and codings != [b"chunked"]:
        raise ValueError("an unknown transfer coding")
    return not codings and all(name != b"content-length" for name, _ in headers)
