"""TLS whose server side tells clients that speak plain HTTP so, in plain HTTP, instead of ending their connection.

A TLS connection begins with a record of type 22; HTTP begins with the method, in capital letters. The event loop leaves
no room between a connection and its TLS, so the handshake itself looks at what came first: it answers in place of its
own bytes, and goes on as if it waited for more, until the client leaves or the loop's time for handshakes is over.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import Final

DROPPED_BYTES: Final = 1024 * 1024
"""So much of what follows a plain request is read and dropped: ending earlier would take the answer from the client."""


def begins_plain_http(data: bytes) -> bool:
    """Whether a connection that begins with these bytes, at least one, is HTTP without TLS."""
    return b"A" <= data[:1] <= b"Z"


class HttpsContext(ssl.SSLContext):
    """A server's TLS context."""

    answer_plain_http: Callable[[], bytes] | None = None
    """Makes the whole answer to a client that speaks plain HTTP; None: its connection is ended."""

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = True,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        """See SSLContext. What an event loop makes of each connection."""
        connection = super().wrap_bio(incoming, outgoing, server_side, server_hostname, session)
        assert isinstance(connection, _ServerHandshake)
        connection.watch_first_bytes(incoming, outgoing, self.answer_plain_http)
        return connection


class _ServerHandshake(ssl.SSLObject):
    """The server's side of one connection."""

    def watch_first_bytes(
        self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, answer: Callable[[], bytes] | None
    ) -> None:
        """Look at what comes in before TLS does."""
        self._incoming = incoming
        self._outgoing = outgoing
        self._answer = answer
        self._is_first_look = True
        self._is_plain = False
        self._dropped_bytes = 0

    def do_handshake(self) -> None:
        """See SSLObject. Called for whatever comes, until it neither raises SSLWantReadError nor fails."""
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
