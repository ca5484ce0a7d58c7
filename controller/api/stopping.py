"""Orderly end of answers when the controller stops: streams end, and waiting requests get an error."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from typing import Any

from controller.schema.errors import RoundhouseError

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
AsgiApp = Callable[[Message, Receive, Send], Awaitable[None]]


class StopMiddleware:
    """ASGI middleware that ends requests of the admin API (paths below `/v1/`) when the controller stops: an answer
    that has begun ends where it is, and any other becomes the error `controller_unavailable` (503). Other requests and
    WebSockets are passed on unchanged. `wait_for_end` returns once the controller is to end."""

    def __init__(self, app: AsgiApp, wait_for_end: Callable[[], Awaitable[None]]) -> None:
        self._app = app
        self._wait_for_end = wait_for_end

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer one request, through the app. When the controller stops, cancel the app's work on the request: an
        answer that has begun ends where it is, and any other becomes the error `controller_unavailable` (503). Requests
        of paths outside of `/v1/` and WebSockets are passed on to the app unchanged."""
        # Other routes end by themselves: gateways' links are closed, and the shutdown request is answered.
        if scope["type"] != "http" or not scope["path"].startswith("/v1/"):
            await self._app(scope, receive, send)
            return
        is_started = is_ended = False

        async def noted(message: Message) -> None:
            nonlocal is_started, is_ended
            is_started = True
            is_ended = message["type"] == "http.response.body" and not message.get("more_body", False)
            await send(message)

        answer_task = asyncio.ensure_future(self._app(scope, receive, noted))
        ending_task = asyncio.ensure_future(self._wait_for_end())
        try:
            await asyncio.wait({answer_task, ending_task}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ending_task.cancel()
            if not answer_task.done():
                answer_task.cancel()
        with suppress(asyncio.CancelledError):
            await answer_task
        if not is_ended:
            await _send_end(send, is_started=is_started)


async def _send_end(send: Send, *, is_started: bool) -> None:
    body = b""
    if not is_started:
        error = RoundhouseError("controller_unavailable", "The controller is stopping.")
        body = error.json_bytes()
        headers = [(name.encode(), value.encode()) for name, value in error.build_headers().items()]
        headers += [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": error.entry.status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})
