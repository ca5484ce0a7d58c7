"""A TLS server context that answers clients that speak plain HTTP in plain HTTP, instead of closing their connection.

A TLS connection begins with a record of type 22; HTTP begins with a method, in capital letters. The event loop offers
no hook between a connection and its TLS, so the handshake itself looks at the first bytes. For plain HTTP, it sends the
answer in place of its own bytes, and waits until the client leaves or the loop's time for handshakes is over.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import Final

DROPPED_BYTES: Final = 1024 * 1024
"""Bytes after a plain request that are read and dropped; closing earlier could lose the answer."""


def begins_plain_http(data: bytes) -> bool:
    """Return whether a connection that begins with these bytes is HTTP without TLS, by its first byte alone.

    False for empty `data`.
    """
    return b"A" <= data[:1] <= b"Z"


class HttpsContext(ssl.SSLContext):
    """TLS context of a server. If `answer_plain_http` is set, a client that speaks plain HTTP on the TLS port gets what
    that function returns, in plain HTTP; else the client's handshake fails.

    Use it as any `ssl.SSLContext` of a server, with an event loop's streams or protocols.
    """

    answer_plain_http: Callable[[], bytes] | None = None
    """Makes the whole answer, head and body, to a client that speaks plain HTTP.

    None: its handshake fails, as usual.
    """

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = True,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        """Make the TLS side of one connection, which answers plain HTTP as `answer_plain_http` says at this moment.
        Called by the event loop; see `ssl.SSLContext.wrap_bio`."""
        connection = super().wrap_bio(incoming, outgoing, server_side, server_hostname, session)
        assert isinstance(connection, _ServerHandshake)
        connection.watch_first_bytes(incoming, outgoing, self.answer_plain_http)
        return connection


class _ServerHandshake(ssl.SSLObject):
    """The server's TLS side of one connection."""

    def watch_first_bytes(
        self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, answer: Callable[[], bytes] | None
    ) -> None:
        """Check the first bytes of `incoming` before TLS reads them. Call once, before the handshake.

        `answer`: makes the bytes that a client of plain HTTP is sent; None: such a client is not answered.
        """
        self._incoming = incoming
        self._outgoing = outgoing
        self._answer = answer
        self._is_first_look = True
        self._is_plain = False
        self._dropped_bytes = 0

    def do_handshake(self) -> None:
        """Continue the handshake; see `ssl.SSLObject.do_handshake`. Called for new bytes until it ends or fails.

        Raises:
            ssl.SSLWantReadError: more bytes are needed; always for a client of plain HTTP, which never gets further.
            ssl.SSLError: the handshake failed, or a client of plain HTTP sent more than `DROPPED_BYTES`.
        """
        if self._is_first_look and self._incoming.pending:
            self._is_first_look = False
            self._check_first_bytes()
        if self._is_plain:
            self._dropped_bytes += len(self._incoming.read())
            if self._dropped_bytes > DROPPED_BYTES:
                raise ssl.SSLError("plain HTTP on a TLS connection")
            raise ssl.SSLWantReadError
        super().do_handshake()

    def _check_first_bytes(self) -> None:
        data = self._incoming.read()
        self._incoming.write(data)
        if self._answer is not None and begins_plain_http(data):
            self._is_plain = True
            self._outgoing.write(self._answer())


HttpsContext.sslobject_class = _ServerHandshake
