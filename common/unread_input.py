"""What a peer sent before its connection broke, and nobody read yet.

A peer may answer before it has read the whole request, and close. Who still writes then gets an error, and the event
loop gives the connection up without another read, although the answer is here: the kernel keeps it until the socket is
closed, which is after `connection_lost`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from typing import Final

_PART_BYTES: Final = 64 * 1024
_MOST_BYTES: Final = 4 * 1024 * 1024
"""Bytes that are read at most; what a socket's buffer takes is usually less."""


def read_unread(transport: asyncio.BaseTransport) -> Iterator[bytes]:
    """Yield the bytes that wait in the socket of a transport which is closing because writing to it failed, and return
    at their end. Does not block, and raises nothing. Use it in `connection_lost` of the transport's protocol, or
    before. Of a connection with TLS nothing is yielded: what waits there is encrypted."""
    connection = transport.get_extra_info("socket")
    if connection is None or transport.get_extra_info("sslcontext") is not None:
        return
    left = _MOST_BYTES
    while left > 0:
        try:
            part = os.read(connection.fileno(), min(left, _PART_BYTES))
        except OSError:  # nothing waits, or the peer's reset, which comes after its bytes
            return
        if not part:
            return
        left -= len(part)
        yield part
