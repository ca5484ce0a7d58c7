"""A fake: the controller's routes for downloads, declarations and models, behind `FakeAdmin`."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from aiohttp import web

from controller.schema.downloads import Download, DownloadFile, Inspection
from controller.schema.errors import RoundhouseError
from controller.schema.model_files import InspectedModel, MemoryForecast

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


def download(state: str = "downloading", done: int = 0, *, source: str = PINNED, created_at: float = 1.0) -> Download:
    """A download of one file of 100 bytes."""
    files = [DownloadFile(path="user/tiny-GGUF/tiny.gguf", size=100, done_bytes=done)]
    return Download.model_validate(
        {"id": "dl_1", "reference": source, "state": state, "files": files, "created_at": created_at}
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
