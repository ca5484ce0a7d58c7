"""Written versions are made durable and visible in groups, and never before the vector store has flushed them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

from retrieval.vector_store.base import VectorStoreError
from tests.fakes.memory_vector_store import MemoryVectorStore
from tests.support.retrieval_harness import RetrievalHarness, retrieval_harness
from tests.support.wait import until


@dataclass
class FlushedStore(MemoryVectorStore):
    """Counts flushes, holds them at a gate, and can refuse them."""

    gate: asyncio.Event = field(default_factory=asyncio.Event)
    flushes: int = 0
    refuses: bool = False

    async def flush_collection(self, collection: str) -> None:
        self.flushes += 1
        await self.gate.wait()
        if self.refuses:
            raise VectorStoreError("the disk is slow")
        await super().flush_collection(collection)


async def accept(harness: RetrievalHarness, count: int) -> None:
    """Have so many documents accepted, whose ids are their numbers."""
    for number in range(count):
        answer = await harness.request("POST", "/v1/documents", {"text": f"Fox {number}.", "id": str(number)})
        assert answer.status_code == 202


async def count_written(harness: RetrievalHarness) -> int:
    """How many points the store has."""
    return 0 if "bm25" not in harness.store.collections else len(harness.store.points("bm25"))


async def until_written(harness: RetrievalHarness, count: int) -> None:
    async def holds() -> bool:
        return await count_written(harness) == count

    await until("all points are written", holds)


async def test_what_is_written_while_a_flush_lasts_is_flushed_together(tmp_path: Path) -> None:
    store = FlushedStore()
    async with retrieval_harness(tmp_path, store=store) as harness:
        await accept(harness, 40)
        await until_written(harness, 40)
        assert await harness.search("fox") == []
        store.gate.set()
        await until("all are visible", lambda: harness.retrieval.pipeline.published == 40)
        assert store.flushes <= 3
        assert len(await harness.search("fox", top_k=100)) == 40


async def test_a_flush_that_fails_shows_nothing_and_is_tried_again(tmp_path: Path) -> None:
    store = FlushedStore(refuses=True)
    store.gate.set()
    async with retrieval_harness(tmp_path, store=store) as harness:
        await accept(harness, 5)
        await until("all are to be tried again", lambda: harness.retrieval.pipeline.retried == 5)
        assert await harness.search("fox") == []
        document = (await harness.request("GET", "/v1/documents/3")).json()
        assert (document["status"], document["error"]["code"]) == ("queued", "vector_store_unavailable")
        store.refuses = False
        harness.skip_time(1)
        await until("all are visible", lambda: harness.retrieval.pipeline.published == 5)
        assert len(await harness.search("fox")) == 5


async def test_what_is_deleted_or_replaced_before_its_flush_is_never_visible(tmp_path: Path) -> None:
    store = FlushedStore()
    async with retrieval_harness(tmp_path, store=store) as harness:
        await accept(harness, 3)
        await until_written(harness, 3)
        await harness.request("DELETE", "/v1/documents/1")
        assert (await harness.request("POST", "/v1/documents", {"text": "A hen.", "id": "2"})).status_code == 202
        store.gate.set()
        await harness.request("GET", "/v1/documents/2/events")
        await harness.request("GET", "/v1/documents/0/events")
        assert await harness.texts("fox hen", top_k=10) in (["Fox 0.", "A hen."], ["A hen.", "Fox 0."])
        assert harness.retrieval.pipeline.published == 2


async def test_a_lost_index_is_filled_with_a_flush_for_many_documents(tmp_path: Path) -> None:
    async with retrieval_harness(tmp_path) as harness:
        for number in range(20):
            await harness.add(f"Fox {number}.", str(number))
    store = FlushedStore()
    store.gate.set()
    async with retrieval_harness(tmp_path, store=store) as harness:
        await until("all are back", lambda: store.flushes and not harness.retrieval.index.missing)
        assert store.flushes == 1
        assert len(await harness.search("fox", top_k=100)) == 20
