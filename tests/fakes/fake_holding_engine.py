"""A fake: an engine that holds each request until the test lets it go, and remembers in which order they came."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from tests.fakes.served_app import served_app

ANSWER = {
    "id": "held-1",
    "object": "chat.completion",
    "created": 1,
    "model": "held",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hello!"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9},
}
EVENTS = (
    b'data: {"choices":[{"index":0,"delta":{"content":"Hello!"},"finish_reason":null}]}\n\n'
    b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
    b"data: [DONE]\n\n"
)


@dataclass
class HoldingEngine:
    """One engine. A request names itself in the field `tag`, which must be its own while it is inside."""

    holds: bool = True
    """False: from now on it answers at once."""
    seen: list[str] = field(default_factory=list)
    """Every tag, in the order in which they came."""
    inside: dict[str, asyncio.Event] = field(default_factory=dict)
    most: int = 0
    """Most that were ever inside at a time."""
    left: list[str] = field(default_factory=list)
    """Tags whose caller went away before the answer."""
    url: str = ""

    def release(self, tag: str) -> None:
        self.inside[tag].set()

    def release_all(self) -> None:
        """Answer all that are inside, and whoever comes, at once."""
        self.holds = False
        for held in self.inside.values():
            held.set()

    async def serve(self, request: web.Request) -> web.StreamResponse:
        body: dict[str, Any] = json.loads(await request.read())
        tag = str(body.get("tag", len(self.seen)))
        assert tag not in self.inside
        self.seen.append(tag)
        self.inside[tag] = held = asyncio.Event()
        self.most = max(self.most, len(self.inside))
        try:
            if self.holds:
                await held.wait()
            if "fail" in body:
                return web.json_response({"error": {"message": "it failed"}}, status=int(body["fail"]))
            if body.get("stream"):
                return web.Response(body=EVENTS, content_type="text/event-stream")
            return web.json_response(ANSWER)
        except asyncio.CancelledError:
            self.left.append(tag)
            raise
        finally:
            del self.inside[tag]


@contextlib.asynccontextmanager
async def holding() -> AsyncIterator[HoldingEngine]:
    """One that listens. Leaving stops it, and whatever it still holds."""
    engine = HoldingEngine()
    app = web.Application()
    app.router.add_post("/v1/{path:.*}", engine.serve)
    async with served_app(app, shutdown_s=0.1, backlog=1024) as engine.url:
        try:
            yield engine
        finally:
            engine.release_all()
