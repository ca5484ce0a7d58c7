"""One inference request on a client's connection: collects its body and writes its answer."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable, Iterable
from http import HTTPStatus
from typing import Final, Protocol

from contract.errors import RoundhouseError
from gateway.protocols.common.large_body import LARGE_BYTES, READING_COPIES, LargeBody
from gateway.server.asgi import Header
from gateway.server.body_budget import BodyRoom
from gateway.server.compressed_body import FREE_BYTES, GZIP_START, MOST_EXPANSION, GzipBody, is_gzip

_STATUS_LINES: Final = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}
_CLOSE: Final = b"connection: close\r\n"
_LAST_CHUNK: Final = b"0\r\n\r\n"
_ONE_WRITE_BYTES: Final = 64 * 1024
"""Larger answers are written apart from their head, which is cheaper than joining the two."""
_RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)


class Handler(Protocol):
    """Serves one `ClientCall`: answers it by the methods of `ClientCall`.

    All methods are called in the event loop's thread; they must not block, and must raise nothing. `take_body`,
    `fail_request` and `client_gone` are called at most once each.
    """

    def take_body(self, body: bytes | LargeBody) -> None:
        """Serve the request, whose body is complete; empty if it has none. The handler must free a `LargeBody`."""

    def fail_request(self, error: RoundhouseError) -> None:
        """End the request with `error`: as its answer, or in the form that an answer that has begun still allows.

        Also called before `take_body`, for a body that is too large, malformed or late. Does nothing after the answer's
        end.
        """

    def client_gone(self) -> None:
        """Stop: the client's connection is closed. Nothing may be sent any more. Not called after the answer's end."""

    def client_full(self) -> None:
        """Send no more than necessary until `client_ready`: the client reads more slowly than data is sent."""

    def client_ready(self) -> None:
        """Send again: the client has read enough of what was sent. Called after a `client_full`."""


class Connection(Protocol):
    """The client's connection as a `ClientCall` uses it. Implemented by `connection.ClientConnection`."""

    transport: asyncio.Transport
    max_body_bytes: int
    """Maximum number of bytes of a request's body."""
    local_address: str | None
    """The gateway's IP address on this connection; None: the socket has none."""

    @property
    def default_lines(self) -> bytes:
        """Header lines that every answer has, such as `date`, each with CRLF."""

    def send_continue(self) -> None:
        """Send `100 Continue`, which asks the client for the body. Call before the answer begins."""

    def reserve_body(self, size: int) -> BodyRoom:
        """Reserve memory for a body of `size` bytes in the budget of all connections, without blocking.

        Until there is room, the connection reads nothing from the client.
        """

    def finish_call(self, call: ClientCall) -> None:
        """Close the connection or go on with its next request. Called once, when the answer to `call` is complete."""


class ClientCall:
    """An inference request on a client's connection: its head and body, and the methods that answer it.

    The connection makes it when the head is read and passes it parts of the body. The `Handler` answers by either
    `send_whole`, or `start_response`, then `send_part`, then `end_response` or `break_off`; nothing is to be sent once
    `response_complete` is True. It stands in for uvicorn's `RequestResponseCycle` on its connection, and so shares some
    of its names.
    """

    __slots__ = (
        "_body",
        "_connection",
        "_gzip",
        "_held_parts",
        "_is_begun",
        "_opener",
        "_refusal",
        "_size",
        "body_complete",
        "disconnected",
        "expects_continue",
        "handler",
        "headers",
        "is_http_1_1",
        "keep_alive",
        "method",
        "path",
        "query",
        "reading_copies",
        "response_complete",
    )

    def __init__(
        self,
        connection: Connection,
        opener: Callable[[ClientCall], Handler],
        method: bytes,
        path: bytes,
        query: bytes,
        headers: list[Header],
        *,
        keep_alive: bool,
        is_http_1_1: bool,
    ) -> None:
        self._connection = connection
        self._opener = opener
        self.method = method
        self.path = path
        """Without the query, perhaps percent-encoded."""
        self.query = query
        """Without `?`, perhaps percent-encoded; empty: none."""
        self.headers = headers
        """The request's, with names in lower case."""
        self.keep_alive = keep_alive
        """Whether the connection stays open after the answer."""
        self.is_http_1_1 = is_http_1_1
        """Whether the request is HTTP/1.1, which requires a Host header and allows chunked answers."""
        self.expects_continue = False
        self.reading_copies = READING_COPIES
        """Room that is reserved for a large body while it is read, as a multiple of its size. The handler may change it
        when it is made."""
        self.handler: Handler | None = None
        self._body: bytes | bytearray | LargeBody = b""
        """The body so far. Most arrive in one part, kept as it is; a list of many parts would take more memory."""
        self._size = 0
        self._gzip: GzipBody | None = None
        """Decompresses the body; None: it came as it is."""
        self._held_parts: list[bytes] = []
        """Parts of a compressed body that came before it was known who asks."""
        self._refusal: RoundhouseError | None = None
        """Why the body is not taken; None: nothing is wrong so far."""
        self._is_begun = False
        self.body_complete = False
        self.response_complete = False
        self.disconnected = False

    @property
    def is_compressed(self) -> bool:
        """Whether the body is decompressed as it comes: each part costs more than its bytes."""
        return self._gzip is not None

    @property
    def local_address(self) -> str | None:
        """The gateway's IP address on the client's connection; None: the socket has none, as a Unix socket."""
        return self._connection.local_address

    # From the connection

    def take_body(self, part: bytes) -> None:
        """Add a part of the body. Parts that arrive after the answer's end are dropped.

        A body above `max_body_bytes`, or one by gzip that cannot be decompressed, is dropped, too, and the next
        `serve_request` refuses it. Raises nothing.
        """
        if self.response_complete or self._refusal is not None:
            return
        if self._gzip is None and part[:1] == GZIP_START and not self._size and is_gzip(self.headers):
            self._gzip = GzipBody(self._connection.max_body_bytes)
        if self._gzip is None:
            self._add_part(part)
        elif self.handler is None:
            self._held_parts.append(part)  # until it is known who asks
        else:
            self._add_part(self._decompress(self._gzip, part))

    def _add_part(self, part: bytes) -> None:
        self._size += len(part)
        if self._size > self._connection.max_body_bytes:
            self._refusal = self._too_large_error()
        if self._refusal is not None:
            self._drop_body()
        elif isinstance(self._body, LargeBody):
            self._body.add_part(part)
        elif self._size > LARGE_BYTES:
            room = self._reserve_room()
            body, self._body = self._body, LargeBody(room.give_back, room.resize)
            self._body.add_part(body)
            self._body.add_part(part)
        elif not self._body:
            self._body = part
        else:
            if isinstance(self._body, bytes):
                self._body = bytearray(self._body)
            self._body += part

    def _decompress(self, gzip: GzipBody, part: bytes) -> bytes:
        try:
            return gzip.decompress(part)
        except RoundhouseError as error:
            self._refusal = error
            return b""

    def _reserve_room(self) -> BodyRoom:
        length = next((int(value) for name, value in self.headers if name == b"content-length"), None)
        if self._gzip is not None and length is not None:
            length = max(FREE_BYTES, MOST_EXPANSION * length)  # at most: how much it will be, nobody has said
        most = self._connection.max_body_bytes
        return self._connection.reserve_body(self.reading_copies * (most if length is None else min(length, most)))

    def _drop_body(self) -> None:
        body, self._body = self._body, b""
        self._held_parts = []
        if isinstance(body, LargeBody):
            body.free()

    def serve_request(self) -> None:
        """Open the handler, and pass it the body once it is complete. Call after each read, in this call's turn only.

        Requests on a connection are served in order, so a call's turn begins when those before it are answered. The
        first call sends `100 Continue` to a client that waits for it. A body that is too large is refused with
        `body_too_large`, as soon as its Content-Length says so. Does nothing once the request is answered.
        """
        if self.response_complete:
            return
        handler = self.handler
        if handler is None:
            handler = self._opener(self)
            if self._is_answered():
                return
            self.handler = handler
            if not self.body_complete:
                self._check_content_length()
        if self._gzip is not None:
            self._take_compressed(self._gzip)
        if self._refusal is not None:
            handler.fail_request(self._refusal)
        elif self.body_complete and not self._is_begun:
            self._is_begun = True
            body, self._body = self._body, b""
            if isinstance(body, LargeBody):
                body.finish()
                handler.take_body(body)
            else:
                handler.take_body(bytes(body))

    def _take_compressed(self, gzip: GzipBody) -> None:
        """Decompress what came before it was known who asks, and check the end of a body that is complete."""
        held_parts, self._held_parts = self._held_parts, []
        for part in held_parts:
            if self._refusal is None:
                self._add_part(self._decompress(gzip, part))
        if self.body_complete and self._refusal is None:
            self._refusal = gzip.find_problem()

    def _is_answered(self) -> bool:
        return self.response_complete

    def _check_content_length(self) -> None:
        content_length = next((value for name, value in self.headers if name == b"content-length"), b"0")
        if int(content_length) > self._connection.max_body_bytes:
            self._refusal = self._too_large_error()
        elif self.expects_continue:
            self._connection.send_continue()

    def _too_large_error(self) -> RoundhouseError:
        limit = self._connection.max_body_bytes
        return RoundhouseError("body_too_large", f"The body is larger than {limit} bytes, the most that is accepted.")

    def lose_client(self) -> None:
        """Set `disconnected` and `response_complete`, drop the body, and tell the handler that the client has gone.
        Call when the connection is lost. Does nothing if the answer is complete."""
        if not self.response_complete:
            self.response_complete = self.disconnected = True
            self._drop_body()
            if self.handler is not None:
                self.handler.client_gone()

    def refuse_request(self, error: RoundhouseError) -> None:
        """Let the handler answer `error`, because the rest of the request will not be read.

        The connection closes after the answer. If the answer is complete already, nothing is sent.
        """
        self.keep_alive = False
        if self.response_complete:
            return
        handler = self.handler or self._opener(self)
        if not self._is_answered():
            self.handler = handler
            handler.fail_request(error)

    # From the handler

    def send_whole(self, status: int, lines: bytes, body: bytes) -> None:
        """Send a complete answer, with its Content-Length. `lines`: further header lines, each with CRLF, the request
        id's among them.

        The connection closes afterwards if the client asked for that or a part of the request's body is missing. Call
        once, and not after `start_response`.
        """
        connection = self._connection
        if not self.body_complete:
            self.keep_alive = False
        close_line = b"" if self.keep_alive else _CLOSE
        head = b"%b%b%b%bcontent-length: %d\r\n\r\n" % (
            status_line(status),
            connection.default_lines,
            lines,
            close_line,
            len(body),
        )
        if len(body) <= _ONE_WRITE_BYTES:
            connection.transport.write(head + body)
        else:
            connection.transport.write(head)
            connection.transport.write(body)
        self._finish_response()

    def start_response(self, status: int, lines: bytes, first_part: bytes) -> None:
        """Begin an answer of unknown length. Call once. `lines`: header lines, each with CRLF. `first_part`: not empty.

        The answer is chunked for HTTP/1.1; for HTTP/1.0 it ends with the connection. End it by `end_response` or
        `break_off`.
        """
        connection = self._connection
        if self.is_http_1_1:
            first_part = b"transfer-encoding: chunked\r\n%b\r\n%x\r\n%b\r\n" % (
                b"" if self.keep_alive else _CLOSE,
                len(first_part),
                first_part,
            )
        else:
            self.keep_alive = False
            first_part = b"connection: close\r\n\r\n" + first_part
        connection.transport.write(b"%b%b%b%b" % (status_line(status), connection.default_lines, lines, first_part))

    def send_part(self, part: bytes) -> None:
        """Send a part of an answer that `start_response` has begun. `part`: not empty; an empty chunk would end the
        answer. The part is buffered if the client reads slowly: heed `Handler.client_full`."""
        self._connection.transport.write(b"%x\r\n%b\r\n" % (len(part), part) if self.is_http_1_1 else part)

    def end_response(self, last_part: bytes = b"") -> None:
        """End an answer that `start_response` has begun, after `last_part`, which may be empty. Call once."""
        if self.is_http_1_1:
            last_part = b"%x\r\n%b\r\n%b" % (len(last_part), last_part, _LAST_CHUNK) if last_part else _LAST_CHUNK
        if last_part:
            self._connection.transport.write(last_part)
        self._finish_response()

    def break_off(self) -> None:
        """Close the connection so that the client sees an incomplete answer. Call once, after `start_response`.
        `Handler.client_gone` is not called then. An answer that has begun and is no event stream cannot report an error
        in any other way."""
        self.response_complete = True
        self._drop_body()
        transport = self._connection.transport
        if self.is_http_1_1 or transport.is_closing():
            transport.close()
            return
        # An HTTP/1.0 answer ends with its connection, so it would look complete after an orderly close.
        sock = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        transport.abort()

    def _finish_response(self) -> None:
        self.response_complete = True
        self._drop_body()
        self._connection.finish_call(self)


def status_line(status: int) -> bytes:
    """Return the HTTP/1.1 status line of an answer, with CRLF. A status without a standard phrase gets an empty one."""
    return _STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status


def header_lines(headers: Iterable[Header]) -> bytes:
    """Encode headers as lines, each with CRLF. Names and values are not checked; empty for no headers."""
    return b"".join(b"%b: %b\r\n" % header for header in headers)
