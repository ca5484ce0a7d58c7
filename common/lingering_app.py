"""Reads on for a while where an answer comes before the request's body has: an earlier close could lose the answer.

uvicorn closes a connection that the client does not want to keep as soon as the answer is written. Bytes of the request
that nobody read yet make the system reset it, and the client, which still writes, may never see the answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from typing import Any, Final

LINGER_S: Final = 2.0
"""Seconds in which the rest of a body is read and dropped."""

_Message = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[_Message]]
_Send = Callable[[_Message], Awaitable[None]]
_App = Callable[[Any, Any, Any], Awaitable[None]]


class LingeringApp:
    """ASGI application that serves every scope by another one. Where this answers a request whose connection closes
    then (`Connection: close`, HTTP/1.0) before the whole body came, the end of the answer waits until the rest was
    read and dropped, the client has left, or `LINGER_S` (2 s) have passed; the answer itself is sent at once."""

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
