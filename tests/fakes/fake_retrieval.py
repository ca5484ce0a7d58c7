"""A fake of the retrieval program for gateways: answers searches with hits that a test sets, or with an error."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from contract.documents import SearchHit, SearchResult, SearchScores
from contract.files import TextContent, VectorStoreHit, VectorStoreResults
from tests.fakes.served_app import served_app


def hit(number: int, text: str, **more: Any) -> SearchHit:
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


def file_hit(number: int, text: str, **more: Any) -> VectorStoreHit:
    fields: dict[str, Any] = {
        "file_id": f"file-{number}",
        "filename": f"f{number}.md",
        "score": 1.0 / number,
        "attributes": {"n": number},
        "content": [TextContent(text=text)],
        "chunk": 0,
        "start": 10,
        "end": 10 + len(text.encode()),
        "page": None,
        "headings": [],
    }
    return VectorStoreHit(**fields | more)


@dataclass
class FakeRetrieval:
    url: str = ""
    hits: list[SearchHit] = field(default_factory=list)
    stores: dict[str, list[VectorStoreHit]] = field(default_factory=dict)
    """The hits of each vector store, by its id; others do not exist."""
    notice: str | None = None
    """Of each search."""
    error: tuple[int, dict[str, Any]] | None = None
    health: str | None = None
    """The answer of `/health`; None: there is none."""
    gate: asyncio.Event | None = None
    """Where it is set, searches wait for it."""
    searches: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    """Tenant and body of each search among documents."""
    file_searches: list[tuple[str, str, dict[str, Any]]] = field(default_factory=list)
    """Tenant, vector store and body of each search in one."""

    async def answer_health(self, _: web.Request) -> web.Response:
        return web.Response(status=404) if self.health is None else web.Response(text=self.health)

    async def answer_search(self, request: web.Request) -> web.Response:
        self.searches.append((request.headers["x-roundhouse-tenant"], await request.json()))
        if self.gate is not None:
            await self.gate.wait()
        if self.error is not None:
            status, error = self.error
            return web.json_response({"error": error}, status=status)
        result = SearchResult(
            mode="sparse",
            embedding_model=None,
            rerank_model=None,
            complete=True,
            notice=self.notice,
            data=self.hits,
        )
        return web.json_response(json.loads(result.model_dump_json()))

    async def answer_file_search(self, request: web.Request) -> web.Response:
        """Answer `/v1/vector_stores/{id}/search`."""
        store, body = request.match_info["id"], await request.json()
        self.file_searches.append((request.headers["x-roundhouse-tenant"], store, body))
        if self.gate is not None:
            await self.gate.wait()
        if store not in self.stores:
            error = {"code": "vector_store_not_found", "message": f"There is no {store}.", "param": None}
            return web.json_response({"error": error}, status=404)
        results = VectorStoreResults(search_query=[body["query"]], data=self.stores[store], notice=self.notice)
        return web.json_response(json.loads(results.model_dump_json()))


@asynccontextmanager
async def fake_retrieval() -> AsyncIterator[FakeRetrieval]:
    """Run one on a free port."""
    fake = FakeRetrieval()
    app = web.Application()
    app.router.add_get("/health", fake.answer_health)
    app.router.add_post("/v1/search", fake.answer_search)
    app.router.add_post("/v1/vector_stores/{id}/search", fake.answer_file_search)
    async with served_app(app) as fake.url:
        try:
            yield fake
        finally:
            if fake.gate is not None:
                fake.gate.set()
