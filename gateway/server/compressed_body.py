"""Bodies of requests that are compressed by gzip, decompressed part by part within bounds."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Final

from contract.errors import RoundhouseError
from gateway.server.asgi import Header, Message, Receive, Scope

GZIP_START: Final = b"\x1f"
"""First byte of every gzip body, with which no JSON begins."""
GZIP_CODINGS: Final = (b"gzip", b"x-gzip")
_GZIP_WINDOW: Final = zlib.MAX_WBITS | 16
MOST_EXPANSION: Final = 50
"""How many times larger a body may become, beyond `FREE_BYTES`. Chats expand 3 to 20 times; zlib's bound is 1,032."""
MOST_MEMBERS: Final = 100
"""Members of one body: each costs a copy of what follows it."""
FREE_BYTES: Final = 1024 * 1024
"""Decompressed bytes that are not held against the expansion."""


def find_codings(headers: Iterable[Header]) -> bytes:
    """Return the content codings of a request, lower-case and joined by a comma; empty: none, or `identity`. `headers`:
    with names in lower case."""
    coding = b", ".join(value for name, value in headers if name == b"content-encoding").strip().lower()
    return b"" if coding == b"identity" else coding


def is_gzip(headers: Iterable[Header]) -> bool:
    """Return whether a request's body is compressed by gzip, and by nothing else."""
    return find_codings(headers) in GZIP_CODINGS


def explain_coding(codings: bytes) -> RoundhouseError:
    """Return the error `invalid_request` for a body with these content codings, which is not read."""
    text = f"Bodies with Content-Encoding: {codings.decode('latin-1'):.100} are not decoded: send gzip, or none."
    return RoundhouseError("invalid_request", text)


class GzipBody:
    """Decompresses one body. Feed it each part in order, and ask `find_problem` at the body's end."""

    def __init__(self, limit: int) -> None:
        """`limit`: most decompressed bytes. Of a body that is too large, little more than that is made."""
        self._limit = limit
        self._decompressor = zlib.decompressobj(_GZIP_WINDOW)
        self._fed = self._made = self._members = 0

    def decompress(self, part: bytes) -> bytes:
        """Return what a part decompresses to; perhaps nothing yet.

        Raises:
            RoundhouseError: `body_too_large`: there are more bytes than the limit, or than `MOST_EXPANSION` times what
                was sent; `invalid_request`: this is no gzip.
        """
        self._fed += len(part)
        most = min(self._limit, max(FREE_BYTES, self._fed * MOST_EXPANSION))
        made: list[bytes] = []
        try:
            while part:
                if self._decompressor.eof:
                    self._begin_member()
                made.append(self._decompressor.decompress(part, most - self._made + 1))
                self._made += len(made[-1])
                if self._made > most:
                    raise RoundhouseError(
                        "body_too_large", f"The body is larger than {most} bytes when it is decompressed."
                    )
                part = self._decompressor.unused_data or self._decompressor.unconsumed_tail
        except zlib.error as error:
            message = f"The body has Content-Encoding: gzip, and cannot be decompressed ({error})."
            raise RoundhouseError("invalid_request", message) from None
        return b"".join(made)

    def _begin_member(self) -> None:
        self._members += 1
        if self._members == MOST_MEMBERS:
            raise zlib.error(f"it has more than {MOST_MEMBERS} members")
        self._decompressor = zlib.decompressobj(_GZIP_WINDOW)

    def find_problem(self) -> RoundhouseError | None:
        """Return the error `invalid_request` if the body's end is missing; None: it is whole, or empty."""
        if not self._fed or self._decompressor.eof:
            return None
        return RoundhouseError("invalid_request", "The body has Content-Encoding: gzip, and its end is missing.")


def decompress_request(scope: Scope, receive: Receive, limit: int) -> tuple[Scope, Receive]:
    """Return the scope and `receive` of a request as if its body had not been compressed; without a content coding, the
    same two. What is returned as `receive` raises what `GzipBody` raises. `limit`: most decompressed bytes.

    Raises:
        RoundhouseError: `invalid_request` for a coding other than gzip.
    """
    codings = find_codings(scope["headers"])
    if not codings:
        return scope, receive
    if codings not in GZIP_CODINGS:
        raise explain_coding(codings)
    body = GzipBody(limit)

    async def receive_plain() -> Message:
        message = await receive()
        if message["type"] == "http.request":
            message = {**message, "body": body.decompress(message.get("body", b""))}
            if not message.get("more_body", False) and (problem := body.find_problem()) is not None:
                raise problem
        return message

    # The length is that of the compressed body.
    headers = [each for each in scope["headers"] if each[0] not in (b"content-encoding", b"content-length")]
    return {**scope, "headers": headers}, receive_plain
