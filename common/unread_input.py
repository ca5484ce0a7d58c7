"""Bytes that were sent and that nobody has read: an answer that came before its connection broke, and the body of a
request whose answer comes first. Neither answer is to be lost.

A peer may answer before it has read the whole request, and close. Who still writes then gets an error, and the event
loop gives the connection up without another read, although the answer is here: the kernel keeps it until the socket is
closed, which is after `connection_lost`.

uvicorn closes a connection that the client does not want to keep as soon as the answer is written. Bytes of the request
that nobody read yet make the system reset it, and the client, which still writes, may never see the answer.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from contextlib import suppress
from typing import Any, Final

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


LINGER_S: Final = 2.0
"""Seconds in which the rest of a body is read and dropped."""

_Message = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[_Message]]
_Send = Callable[[_Message], Awaitable[None]]
_App = Callable[[Any, Any, Any], Awaitable[None]]


class LingeringApp:
    """ASGI application that passes every scope to `app`, and keeps its answers from being lost. An answer after which
    the connection closes (`Connection: close`, HTTP/1.0) may be given before the whole body of the request came. The
    end of that answer waits until the rest of the body was read and dropped, the client has left, or `LINGER_S` (2 s)
    have passed; the answer itself is sent at once."""

    def __init__(self, app: _App) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: _Receive, send: _Send) -> None:
        """Serve one scope."""
        if scope["type"] != "http" or not _closes_after_body(scope):
            await self._app(scope, receive, send)
            return
        is_whole = False

        async def receive_and_note() -> _Message:
            nonlocal is_whole
            message = await receive()
            is_whole = message["type"] != "http.request" or not message.get("more_body", False)
            return message

        async def send_and_linger(message: _Message) -> None:
            if message["type"] != "http.response.body" or message.get("more_body", False) or is_whole:
                await send(message)
                return
            await send({**message, "more_body": True})
            with suppress(TimeoutError):
                async with asyncio.timeout(LINGER_S):
                    while not is_whole:
                        await receive_and_note()
            await send({"type": "http.response.body", "body": b"", "more_body": False})

        await self._app(scope, receive_and_note, send_and_linger)


def _closes_after_body(scope: Any) -> bool:
    has_body, closes = False, scope["http_version"] != "1.1"
    for name, value in scope["headers"]:
        has_body = has_body or name == b"transfer-encoding" or (name == b"content-length" and value != b"0")
        closes = closes or (name == b"connection" and b"close" in value.lower())
    return has_body and closes
