"""A fake: an engine of chat completions that says its words no faster than a test allows, on a real socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from tests.fakes.served_app import served_app


@dataclass
class PacedEngine:
    """The engine. Each answer is `words` with blanks between them, and waits before a word that is not allowed yet."""

    words: Sequence[str]
    echoes: bool = False
    """Whether each answer begins with the last message of its request, as its first word."""
    requests: list[dict[str, Any]] = field(default_factory=list)
    running: int = 0
    cancelled: int = 0
    """Answers whose client has left."""
    url: str = ""
    _allowed: int = 0
    _loop: asyncio.AbstractEventLoop | None = None
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def allow(self, count: int) -> None:
        """Allow every answer its first `count` words. May be called from any thread."""
        self._allowed = count
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._changed.set)

    def allow_all(self) -> None:
        self.allow(len(self.words) + 1)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.requests.append(body)
        words = [body["messages"][-1]["content"], *self.words] if self.echoes else self.words
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        self.running += 1
        try:
            for number, word in enumerate(words):
                await self._wait(number)
                await _say(response, {"content": word if number == 0 else f" {word}"})
            await _say(response, {}, "stop")
            await response.write(b"data: [DONE]\n\n")
        except (asyncio.CancelledError, ConnectionError):
            self.cancelled += 1
            raise
        finally:
            self.running -= 1
        return response

    async def _wait(self, number: int) -> None:
        while number >= self._allowed:
            self._changed.clear()
            await self._changed.wait()


async def _say(response: web.StreamResponse, delta: dict[str, str], finish: str | None = None) -> None:
    event = {"id": "x", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}
    await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")


@asynccontextmanager
async def paced_engine(words: Sequence[str]) -> AsyncIterator[PacedEngine]:
    """An engine that listens and allows no word yet."""
    engine = PacedEngine(words, _loop=asyncio.get_running_loop())
    app = web.Application(client_max_size=64 * 1024 * 1024)
    app.router.add_post("/v1/chat/completions", engine.answer)
    app.router.add_get("/v1/models", _list_models)
    async with served_app(app) as engine.url:
        try:
            yield engine
        finally:
            engine.allow_all()


async def _list_models(_: web.Request) -> web.Response:
    return web.json_response({"object": "list", "data": []})
