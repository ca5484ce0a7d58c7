"""Keeps all routes of a vLLM server but its health and its metrics for whoever has its key.

vLLM checks its key below `/v1` alone. With sleep, it also serves development routes that put it to sleep and call
methods of its engine. This file is written beside the engine and imported there (`--middleware`), by vLLM's Python; it
knows nothing of Roundhouse.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Message, Receive, Send], Awaitable[None]]

OPEN_PATHS = frozenset({"/health", "/metrics"})
"""Routes that answer a GET without a key, as vLLM has them."""


class RouteGuard:
    """ASGI middleware: answers 401 to a request without `Authorization: Bearer KEY`, where KEY is the environment's
    `VLLM_API_KEY`. Without that variable nobody gets in."""

    def __init__(self, app: Application) -> None:
        self._app = app
        self._key = os.environ.get("VLLM_API_KEY", "").encode()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        if scope["type"] == "lifespan" or self._may_enter(scope):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            await send({"type": "http.response.start", "status": 401, "headers": [(b"content-length", b"0")]})
            await send({"type": "http.response.body", "body": b""})

    def _may_enter(self, scope: Message) -> bool:
        if scope["type"] == "http" and scope["method"] == "GET" and scope["path"] in OPEN_PATHS:
            return True
        credentials = [value for name, value in scope["headers"] if name == b"authorization"]
        expected = b"Bearer " + self._key
        return bool(self._key) and len(credentials) == 1 and hmac.compare_digest(credentials[0], expected)
