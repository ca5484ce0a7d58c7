"""A fake: the controller's admin routes, which answer what a test decides and keep what was asked, and those for
downloads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, cast

from aiohttp import web

from contract.downloads import Download, DownloadFile, Inspection
from contract.errors import RoundhouseError
from contract.model_files import InspectedModel, MemoryForecast

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


PINNED = "hf:user/tiny-GGUF:Q8_0@0123456789abcdef0123456789abcdef01234567"

INSPECTED = InspectedModel(
    name="tiny",
    inspection=Inspection(
        reference="hf:user/tiny-GGUF:Q8_0",
        pinned=PINNED,
        files=[],
        main="user/tiny-GGUF/tiny.gguf",
        total_bytes=100,
        missing_bytes=100,
        free_bytes=1000,
    ),
    forecast=MemoryForecast(summary="fits in main memory", backend="llama_server"),
    fields={"source": PINNED, "backend": "llama_server"},
)
"""What the reference is."""


def download(state: str = "downloading", done: int = 0) -> Download:
    """A download of one file of 100 bytes."""
    files = [DownloadFile(path="user/tiny-GGUF/tiny.gguf", size=100, done_bytes=done)]
    return Download.model_validate(
        {"id": "dl_1", "reference": PINNED, "state": state, "files": files, "created_at": 1.0}
    )


@dataclass
class FakeDownloads:
    """Answers as the controller does; use it as `FakeAdmin.answer`. Orders change nothing: a test calls `show`."""

    downloads: dict[str, Download] = field(default_factory=dict)
    refusals: dict[str, RoundhouseError] = field(default_factory=dict)
    """By method and path, such as `DELETE /v1/admin/declarations/models/m`: what is answered."""
    _followers: set[asyncio.Queue[Download]] = field(default_factory=set)
    followed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once somebody follows the events."""

    def show(self, changed: Download) -> None:
        """Have a download be so from now on, and tell who follows."""
        self.downloads[changed.id] = changed
        for follower in self._followers:
            follower.put_nowait(changed)

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        error = self.refusals.get(f"{request.method} {request.path}")
        if error is not None:
            return web.json_response(body=error.json_bytes("req-1"), status=error.entry.status)
        if request.path == "/v1/admin/downloads/events":
            return await self._follow(request)
        if request.path == "/v1/admin/downloads" and request.method == "GET":
            listed = [each.model_dump(mode="json") for each in self.downloads.values()]
            return web.json_response({"downloads": listed})
        if request.path == "/v1/admin/downloads/inspect":
            return web.json_response(INSPECTED.model_dump(mode="json"))
        if request.path == "/v1/admin/commands":
            return web.json_response({"models": {"m": ["llama-server", "--port", "1"]}})
        return web.json_response({})

    async def _follow(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        queue: asyncio.Queue[Download] = asyncio.Queue()
        self._followers.add(queue)
        self.followed.set()
        try:
            while True:
                data = (await queue.get()).model_dump_json().encode()
                await response.write(b"event: download\ndata: %b\n\n" % data)
        finally:
            self._followers.discard(queue)
