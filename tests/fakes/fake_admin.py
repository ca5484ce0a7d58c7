"""A fake: the controller's admin routes, which answer what a test tells them to and remember what they were asked."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, cast

from aiohttp import web

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True)
class ReceivedRequest:
    method: str
    target: str
    headers: dict[str, str]
    body: bytes


@dataclass
class FakeAdmin:
    """Everything under `/v1/admin/`, and `/openapi.json`."""

    requests: list[ReceivedRequest] = field(default_factory=list)
    answer: Answer | None = None
    """Gives the answer to everything; None: a small JSON object."""
    downloads: Answer | None = None
    """Gives the answers to what every gateway asks about downloads by itself; None: downloads are switched off. Such
    requests are not in `requests`, those of clients are."""
    document: dict[str, Any] | None = None
    """None: there is none."""
    running: int = 0
    cancelled: int = 0
    """Requests whose client closed the connection before the answer was complete."""
    parts: asyncio.Queue[bytes | None] = field(default_factory=asyncio.Queue)
    """What `stream` sends; None ends it."""
    _open: set[asyncio.Transport] = field(default_factory=set)

    def declare(self, app: web.Application) -> None:
        app.router.add_route("*", "/v1/admin/{rest:.*}", self._answer)
        app.router.add_get("/openapi.json", self._document)

    def drop_connections(self) -> None:
        """Break every connection that waits for an answer, as a killed process would."""
        for transport in list(self._open):
            transport.abort()

    def stream(self, content_type: str) -> Answer:
        """An answer made of `parts`, each sent as it is put there."""

        async def answer(request: web.Request) -> web.StreamResponse:
            response = web.StreamResponse(headers={"content-type": content_type, "cache-control": "no-store"})
            await response.prepare(request)
            while (part := await self.parts.get()) is not None:
                await response.write(part)
            return response

        return answer

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        if _is_of_the_feed(request):
            return await self.downloads(request) if self.downloads else web.json_response({}, status=403)
        headers = {name.lower(): value for name, value in request.headers.items()}
        self.requests.append(ReceivedRequest(request.method, request.raw_path, headers, await request.read()))
        transport = cast("asyncio.Transport", request.transport)
        self._open.add(transport)
        self.running += 1
        try:
            return await self.answer(request) if self.answer else web.json_response({"models": []})
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.running -= 1
            self._open.discard(transport)

    async def _document(self, _request: web.Request) -> web.Response:
        return web.json_response(self.document) if self.document is not None else web.Response(status=404)


def _is_of_the_feed(request: web.Request) -> bool:
    """Whether the gateway follows the downloads with it. What a client asks names the client as the actor."""
    is_own = request.headers.get("x-roundhouse-actor", "gateway") == "gateway"
    return is_own and request.method == "GET" and request.path.startswith("/v1/admin/downloads")
