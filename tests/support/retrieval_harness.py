"""A whole retrieval program in this process, over fakes of the vector store, the parser and the models."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx

from common.clock_agreement import ClockReading
from common.trusted_clock import TrustedClock
from retrieval.assembly import Retrieval
from retrieval.parsing.base import Parser
from retrieval.schema.headers import ADMIN_HEADER, TENANT_HEADER
from retrieval.settings import RetrievalSettings
from retrieval.vector_store.base import VectorStore
from tests.fakes.fake_models import FakeModels
from tests.fakes.fake_parser import FakeParser
from tests.fakes.memory_vector_store import MemoryVectorStore


@dataclass
class ManualClock:
    """Time that passes only when a test says so."""

    now: float = 1_800_000_000.0
    """Unix time in seconds."""
    ahead_s: float = 0.0
    """Seconds by which the wall clock is wrong."""

    def read(self) -> ClockReading:
        return ClockReading(self.now + self.ahead_s, self.now, "boot")


@dataclass
class RetrievalHarness:
    """What a test works with: requests as the gateway sends them."""

    retrieval: Retrieval
    client: httpx.AsyncClient
    store: Any
    models: FakeModels
    parser: Any
    clock: ManualClock

    def skip_time(self, seconds: float) -> None:
        """Let that much time pass at once."""
        self.clock.now += seconds
        self.retrieval.pipeline.wake()

    async def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        tenant: str = "alice",
        is_admin: bool = False,
        **options: Any,
    ) -> httpx.Response:
        headers = {TENANT_HEADER: quote(tenant), ADMIN_HEADER: "1" if is_admin else "0", "x-request-id": "req-1"}
        if body is not None:
            options["content"] = body if isinstance(body, bytes) else json.dumps(body).encode()
            headers["content-type"] = "application/json"
        return await self.client.request(method, path, headers=headers, **options)

    async def add(self, text: str, document_id: str | None = None, *, tenant: str = "alice", **fields: Any) -> Any:
        """Add a document, and wait until it is searchable."""
        body = {"text": text, **({} if document_id is None else {"id": document_id}), **fields}
        answer = await self.request("POST", "/v1/documents?wait=true", body, tenant=tenant)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def search(self, query: str, *, tenant: str = "alice", **fields: Any) -> list[Any]:
        answer = await self.request("POST", "/v1/search", {"query": query, **fields}, tenant=tenant)
        assert answer.status_code == 200, answer.text
        hits: list[Any] = answer.json()["data"]
        return hits

    async def texts(self, query: str, *, tenant: str = "alice", **fields: Any) -> list[str]:
        """Return the texts of a search's hits."""
        return [hit["text"] for hit in await self.search(query, tenant=tenant, **fields)]


@asynccontextmanager
async def retrieval_harness(
    folder: Path,
    *,
    store: VectorStore | None = None,
    models: FakeModels | None = None,
    parser: Parser | None = None,
    clock: ManualClock | None = None,
    fails: bool = False,
    **settings: Any,
) -> AsyncIterator[RetrievalHarness]:
    """Run a retrieval program with its state in `folder`. `fails`: whether its work in the background must fail."""
    store, models, parser = store or MemoryVectorStore(), models or FakeModels(), parser or FakeParser()
    clock = clock or ManualClock()
    trusted_clock = TrustedClock(folder / "clock.json", clock.read)
    retrieval = Retrieval(RetrievalSettings(state=folder, **settings), store, parser, models, trusted_clock)
    async with retrieval:
        transport = httpx.ASGITransport(retrieval.build_app(), raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://retrieval") as client:
            yield RetrievalHarness(retrieval, client, store, models, parser, clock)
        assert retrieval.has_failed.is_set() is fails, "work in the background ended"
