"""A fake of the retrieval program for gateways: answers searches with hits that a test sets, or with an error."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from retrieval.schema.search import SearchHit, SearchResult, SearchScores
from tests.support.ports import free_port


def hit(number: int, text: str, **more: Any) -> SearchHit:
    """A hit of the document `d` and a number."""
    fields: dict[str, Any] = {
        "document_id": f"d{number}",
        "filename": f"d{number}.md",
        "chunk": 0,
        "start": 10,
        "end": 10 + len(text.encode()),
        "page": None,
        "headings": [],
        "text": text,
        "score": 1.0 / number,
        "scores": SearchScores(),
        "metadata": {},
    }
    return SearchHit(**fields | more)


@dataclass
class FakeRetrieval:
    """What it answers, and what it was asked."""

    url: str = ""
    hits: list[SearchHit] = field(default_factory=list)
    error: tuple[int, dict[str, Any]] | None = None
    gate: asyncio.Event | None = None
    """Where it is set, searches wait for it."""
    searches: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    """Tenant and body of each search."""

    async def answer_search(self, request: web.Request) -> web.Response:
        """Answer `/v1/search`."""
        self.searches.append((request.headers["x-roundhouse-tenant"], await request.json()))
        if self.gate is not None:
            await self.gate.wait()
        if self.error is not None:
            status, error = self.error
            return web.json_response({"error": error}, status=status)
        result = SearchResult(mode="sparse", embedding_model=None, rerank_model=None, complete=True, data=self.hits)
        return web.json_response(json.loads(result.model_dump_json()))


@asynccontextmanager
async def fake_retrieval() -> AsyncIterator[FakeRetrieval]:
    """Run one on a free port."""
    fake, port = FakeRetrieval(), free_port()
    app = web.Application()
    app.router.add_post("/v1/search", fake.answer_search)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    fake.url = f"http://127.0.0.1:{port}"
    try:
        yield fake
    finally:
        if fake.gate is not None:
            fake.gate.set()
        await runner.cleanup()
