"""The index: repaired, published in groups, and filled again from vectors that are there."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from retrieval.catalog.versions import count_states, find_version
from retrieval.vector_store.base import CollectionSpec, Point, VectorStore, VectorStoreError
from retrieval.vector_store.edge.store import EdgeStore
from retrieval.vector_store.server import ServerStore
from tests.fakes.fake_qdrant_server import FakeQdrantServer
from tests.fakes.fake_retrieval_parts import FakeModels, MemoryVectorStore
from tests.support.outcomes import present
from tests.support.retrieval_harness import RetrievalHarness, retrieval_harness
from tests.support.wait import until


async def reindex(harness: RetrievalHarness) -> None:
    """Ask for a reindex, as the route does."""
    assert (await harness.request("POST", "/v1/retrieval/reindex", is_admin=True)).status_code == 202


async def test_a_collection_that_is_lost_while_the_program_runs_comes_back(tmp_path: Path) -> None:
    store = MemoryVectorStore()
    async with retrieval_harness(tmp_path, store=store) as harness:
        await harness.add("A fox.", "d")
        await harness.add("A dog.", "e")
        store.collections.clear()
        answer = await harness.request("POST", "/v1/search", {"query": "fox"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "vector_store_unavailable")
        await until("it is made anew", lambda: "bm25" in store.collections and len(store.points("bm25")) == 2)
        await until("it is whole", lambda: not harness.retrieval.index.missing)
        assert await harness.texts("fox") == ["A fox."]


@pytest.mark.parametrize("is_at_start", [True, False], ids=["at-start", "while-it-runs"])
@pytest.mark.parametrize("is_made", [True, False], ids=["after-it", "before-it"])
async def test_a_lost_collection_is_filled_although_its_renewal_broke_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_at_start: bool, is_made: bool
) -> None:
    monkeypatch.setattr("retrieval.assembly.RETRY_S", 0.02)
    store = MemoryVectorStore()
    async with retrieval_harness(tmp_path, store=store) as harness:
        await harness.add("A fox.", "d")
    real_create, broken = store.create_collection, [True]

    async def break_off(spec: CollectionSpec) -> None:
        if is_made or not broken:
            await real_create(spec)
        if broken:
            broken.clear()
            raise VectorStoreError("the disk is full")

    store.create_collection = break_off  # type: ignore[method-assign]
    if is_at_start:
        store.collections.clear()
    async with retrieval_harness(tmp_path, store=store) as harness:
        if not is_at_start:
            store.collections.clear()
            await harness.request("POST", "/v1/search", {"query": "fox"})
        await until("it was made anew", lambda: not broken and "bm25" in store.collections)
        await until("it is whole", lambda: store.points("bm25") and not harness.retrieval.index.missing)
        assert await harness.texts("fox") == ["A fox."]


async def test_a_version_that_is_written_while_the_collection_is_lost_is_whole_when_visible(tmp_path: Path) -> None:
    models, store = FakeModels(gate=asyncio.Event(), gated="Fox 5"), MemoryVectorStore()
    async with retrieval_harness(
        tmp_path, store=store, models=models, retrieval_embedding_model="m", retrieval_embed_batch=4
    ) as harness:
        text = "\n\n".join(f"Fox {number}." for number in range(9))
        await harness.request("POST", "/v1/documents", {"text": text, "id": "d"})
        await until("its first part is written", lambda: harness.retrieval.writer.points_written >= 4)
        store.collections.clear()
        await harness.request("POST", "/v1/search", {"query": "fox"})
        await until("the collection is made anew", lambda: "m-26" in store.collections)
        assert models.gate is not None
        models.gate.set()
        await harness.request("GET", "/v1/documents/d/events")
        assert len(await harness.search("fox", top_k=50)) == 9


async def test_another_dimension_is_told_and_a_reindex_helps(tmp_path: Path) -> None:
    models, store = FakeModels(), MemoryVectorStore()
    async with retrieval_harness(tmp_path, store=store, models=models, retrieval_embedding_model="m") as harness:
        await harness.add("A fox.", "d")
        models.dimension = 20
        await harness.request("POST", "/v1/documents", {"text": "A dog.", "id": "e"})
        await until("it was tried", lambda: harness.retrieval.pipeline.retried)
        document = (await harness.request("GET", "/v1/documents/e")).json()
        assert (document["status"], document["error"]["code"]) == ("queued", "embedding_model_changed")
        assert "20 dimensions now, and the index has 26; `roundhouse rag reindex`" in document["error"]["message"]
        await reindex(harness)
        await until("the new index serves", lambda: list(store.collections) == ["m-20"])
        harness.skip_time(100)
        await harness.request("GET", "/v1/documents/e/events")
        assert sorted(await harness.texts("fox dog", mode="dense")) == ["A dog.", "A fox."]


async def test_another_dimension_restarts_a_reindex(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("retrieval.assembly.RETRY_S", 0.1)
    models, store = FakeModels(), MemoryVectorStore()
    async with retrieval_harness(tmp_path, store=store, models=models, retrieval_embedding_model="m") as harness:
        await harness.add("A fox.", "d")
        models.dimension = 20
        real_create = store.create_collection

        async def change_model(spec):  # type: ignore[no-untyped-def]
            models.dimension = 15
            await real_create(spec)

        store.create_collection = change_model  # type: ignore[method-assign]
        await reindex(harness)
        await until("the new index serves", lambda: list(store.collections) == ["m-15"])
        assert await harness.texts("fox", mode="dense") == ["A fox."]


async def test_another_dimension_restarts_an_interrupted_reindex(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("retrieval.assembly.RETRY_S", 0.1)
    store = MemoryVectorStore()
    async with retrieval_harness(tmp_path, store=store) as harness:
        await harness.add("A fox.", "d")
    models = FakeModels(gate=asyncio.Event(), gated="fox")
    async with retrieval_harness(tmp_path, store=store, models=models, retrieval_embedding_model="m") as harness:
        await reindex(harness)
        await until("it is being built", lambda: "m-26" in store.collections and len(models.requests) > 1)
    models = FakeModels(dimension=20)
    async with retrieval_harness(tmp_path, store=store, models=models, retrieval_embedding_model="m") as harness:
        await until("the new index serves", lambda: list(store.collections) == ["m-20"])
        assert await harness.texts("fox", mode="dense") == ["A fox."]


async def test_a_reindex_beside_a_build_that_goes_on_leaves_one_collection_that_serves(tmp_path: Path) -> None:
    store = MemoryVectorStore()
    async with retrieval_harness(tmp_path, store=store) as harness:
        for number in range(3):
            await harness.add(f"Fox {number}.", f"d{number}")
    models = FakeModels(gate=asyncio.Event(), gated="Fox 1")
    async with retrieval_harness(tmp_path, store=store, models=models, retrieval_embedding_model="m") as harness:
        await reindex(harness)
        await until("it is being built", lambda: "m-26" in store.collections and store.points("m-26"))
    models = FakeModels(gate=asyncio.Event(), gated="Fox 1")
    async with retrieval_harness(tmp_path, store=store, models=models, retrieval_embedding_model="m") as harness:
        await until("the build goes on", lambda: len(models.requests) > 0)
        await reindex(harness)
        assert models.gate is not None
        models.gate.set()
        await until("both have ended", lambda: len(store.collections) == 1 and not harness.retrieval.index.building)
        # Where the store loses it, it is made anew as what it is.
        assert present(harness.retrieval.index.active).state == "active"
        assert len(await harness.texts("fox", mode="hybrid")) == 3


async def test_an_index_in_which_nothing_is_visible_is_replaced_at_once(tmp_path: Path) -> None:
    store = MemoryVectorStore()
    async with retrieval_harness(tmp_path, store=store) as harness:
        await harness.add("A fox.", "d")
        assert (await harness.request("DELETE", "/v1/documents/d")).status_code == 200
    async with retrieval_harness(tmp_path, store=store, retrieval_embedding_model="m") as harness:
        assert harness.retrieval.index.needs_reindex
        await harness.add("A dog.", "e")
        assert list(store.collections) == ["m-26"]
        assert await harness.texts("dog", mode="dense") == ["A dog."]


async def test_a_reindex_has_ended_although_the_old_collection_cannot_be_deleted(tmp_path: Path) -> None:
    store = MemoryVectorStore()
    async with retrieval_harness(tmp_path, store=store) as harness:
        await harness.add("A fox.", "d")

        async def refuse(name: str) -> None:
            raise VectorStoreError(f"{name}: permission denied")

        real_delete, store.delete_collection = store.delete_collection, refuse  # type: ignore[method-assign]
        await harness.retrieval.index.reindex()
        assert present(harness.retrieval.index.active).name == "bm25-2"
    store.delete_collection = real_delete  # type: ignore[method-assign]
    async with retrieval_harness(tmp_path, store=store) as harness:
        assert list(store.collections) == ["bm25-2"]
        assert await harness.texts("fox") == ["A fox."]


async def test_a_new_index_is_optimized_whatever_was_written_when_it_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("retrieval.assembly.OPTIMIZE_EVERY_S", 0.02)
    monkeypatch.setattr("retrieval.assembly.OPTIMIZE_FROM", 3)
    store, optimized = MemoryVectorStore(), list[str]()

    async def note(collection: str) -> None:
        optimized.append(collection)

    async with retrieval_harness(tmp_path, store=store) as harness:
        for number in range(4):
            await harness.add(f"Fox {number}.", f"d{number}")
    store.optimize_collection = note  # type: ignore[method-assign]
    models = FakeModels(gate=asyncio.Event(), gated="Fox 3")
    async with retrieval_harness(tmp_path, store=store, models=models, retrieval_embedding_model="m") as harness:
        await reindex(harness)
        await until("most of the new one is written", lambda: optimized == ["bm25"])
        assert models.gate is not None
        models.gate.set()
        await until("the new one is optimized", lambda: optimized == ["bm25", "m-26"])


@dataclass
class HeldStore(MemoryVectorStore):
    """Holds writes at a gate, all or the first only, and can refuse them then."""

    gate: asyncio.Event = field(default_factory=asyncio.Event)
    holds_one: bool = False
    refuses: bool = False
    held: int = 0

    async def upsert_points(self, collection: str, points: Sequence[Point]) -> None:
        if not (self.holds_one and self.held):
            self.held += 1
            await self.gate.wait()
        if self.refuses:
            raise VectorStoreError("the disk is slow")
        await super().upsert_points(collection, points)


async def test_a_version_with_two_writers_is_in_use_until_both_have_ended(tmp_path: Path) -> None:
    store = HeldStore(holds_one=True)
    async with retrieval_harness(tmp_path, store=store) as harness:
        store.gate.set()
        await harness.add("A fox.", "d")
        store.gate, store.held = asyncio.Event(), 0
        writer, active = harness.retrieval.writer, present(harness.retrieval.index.active)
        version = present(await harness.retrieval.catalog.read(lambda db: find_version(db, 1)))
        first = asyncio.create_task(writer.write_version(active, version, lambda _: None))
        await until("the first one writes", lambda: store.held)
        await writer.write_version(active, version, lambda _: None)
        assert list(writer.versions_in_use) == [1]
        store.gate.set()
        await first
        assert not writer.versions_in_use


@pytest.mark.parametrize("is_filled", [True, False], ids=["by-the-index", "by-the-pipeline"])
async def test_what_is_deleted_while_it_is_written_is_removed_when_that_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_filled: bool
) -> None:
    monkeypatch.setattr("retrieval.assembly.RETRY_S", 0.02)
    async with retrieval_harness(tmp_path) as harness:
        if is_filled:
            await harness.add("A fox.", "d")
    store = HeldStore(refuses=not is_filled)
    async with retrieval_harness(tmp_path, store=store) as harness:
        if not is_filled:
            await harness.request("POST", "/v1/documents", {"text": "A fox.", "id": "d"})
        await until("it is written", lambda: store.held)
        assert (await harness.request("DELETE", "/v1/documents/d")).status_code == 200
        assert await harness.retrieval.collector.collect() == 0
        store.gate.set()

        async def is_gone() -> bool:
            return not await harness.retrieval.catalog.read(count_states)

        await until("it is removed", is_gone)


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


async def test_a_program_that_can_publish_nothing_any_more_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("retrieval.ingestion.pipeline.flush_delay_s", lambda *_, **__: dict[str, float]()["a defect"])
    async with retrieval_harness(tmp_path, fails=True) as harness:
        await harness.request("POST", "/v1/documents", {"text": "A fox."}, tenant="alice")
        await asyncio.wait_for(harness.retrieval.has_failed.wait(), 10)


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


async def test_what_was_filled_before_a_failure_is_not_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("retrieval.assembly.RETRY_S", 0.02)
    async with retrieval_harness(tmp_path, retrieval_embedding_model="m") as harness:
        for number in range(10):
            await harness.add(f"Fox {number}.", str(number))
    models, broken = FakeModels(), ["Fox 7."]

    def fail(points: Sequence[Point]) -> None:
        if any(point.text in broken for point in points):
            raise VectorStoreError("it fails")

    store = MemoryVectorStore(on_upsert=fail)
    async with retrieval_harness(tmp_path, store=store, models=models, retrieval_embedding_model="m") as harness:
        await until("it failed", lambda: any("Fox 7." in texts for _, texts, _ in models.requests))
        await until("the others are known", lambda: harness.retrieval.index.missing == 3)
        assert len(await harness.search("fox", top_k=100)) == 7
        broken.clear()
        models.requests.clear()
        await until("the rest is written", lambda: not harness.retrieval.index.missing)
        assert sorted(texts for _, texts, _ in models.requests) == [[f"Fox {number}."] for number in (7, 8, 9)]


async def test_what_was_filled_before_a_defect_is_known_at_the_next_start(tmp_path: Path) -> None:
    async with retrieval_harness(tmp_path) as harness:
        for number in range(3):
            await harness.add(f"Fox {number}.", str(number))

    def fail(points: Sequence[Point]) -> None:
        if points[0].text == "Fox 2.":
            raise RuntimeError("a defect")

    async with retrieval_harness(tmp_path, fails=True, store=MemoryVectorStore(on_upsert=fail)) as harness:
        await asyncio.wait_for(harness.retrieval.has_failed.wait(), 10)
        assert harness.retrieval.index.missing == 1


async def test_a_document_that_the_model_refuses_is_in_no_reindex_s_way(tmp_path: Path) -> None:
    models = FakeModels()
    async with retrieval_harness(tmp_path, models=models, retrieval_embedding_model="m") as harness:
        for text in ("A fox.", "A dog.\n\nA cat.", "A hen."):
            await harness.add(text, text[2:5])
        models.refuses = "cat"
    async with retrieval_harness(tmp_path, models=models, retrieval_embedding_model="n") as harness:
        await reindex(harness)
        await until("it serves", lambda: present(harness.retrieval.index.active).model == "n")
        assert (await harness.request("GET", "/v1/documents/dog")).json()["notice"].startswith("1 of 2 chunks")
        assert await harness.texts("cat", mode="sparse") == ["A cat."]
        assert "A hen." in await harness.texts("hen", mode="dense")


async def test_a_model_that_refuses_everything_replaces_no_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("retrieval.assembly.RETRY_S", 0.02)
    models = FakeModels()
    async with retrieval_harness(tmp_path, models=models, retrieval_embedding_model="m") as harness:
        await harness.add("A fox.", "d")
        real_create = harness.store.create_collection

        async def refuse(spec: CollectionSpec) -> None:
            models.refuses = ""
            await real_create(spec)

        harness.store.create_collection = refuse
        await reindex(harness)
        await until("it was tried", lambda: harness.retrieval._reindex_error)
        assert "too long" in str(harness.retrieval._reindex_error)
        assert present(harness.retrieval.index.active).name == "m-26"


async def test_a_collection_that_is_made_while_the_store_is_asked_is_not_lost(tmp_path: Path) -> None:
    models, store = FakeModels(), MemoryVectorStore()
    async with retrieval_harness(tmp_path, store=store, models=models, retrieval_embedding_model="m") as harness:
        await harness.add("A fox.", "d")
        index, real_list, asked = harness.retrieval.index, store.list_collections, asyncio.Event()
        models.gate, models.gated = asyncio.Event(), "fox"

        async def answer_late() -> list[CollectionSpec]:
            found = await real_list()
            asked.set()
            await until("another one is being built", lambda: index.building)
            return found

        store.list_collections = answer_late  # type: ignore[method-assign]
        looks = asyncio.create_task(index.replace_lost())
        await asked.wait()
        store.list_collections = real_list  # type: ignore[method-assign]
        await reindex(harness)
        await looks
        number = present(index.building).number
        models.gate.set()
        await until("it serves", lambda: not index.building)
        assert present(index.active).number == number


async def test_a_build_does_not_go_on_for_ever_with_a_collection_that_was_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("retrieval.assembly.RETRY_S", 0.02)
    models, store = FakeModels(), MemoryVectorStore()
    async with retrieval_harness(tmp_path, store=store, models=models, retrieval_embedding_model="m") as harness:
        await harness.add("A fox.", "d")
        index = harness.retrieval.index
        models.gate, models.gated = asyncio.Event(), "fox"
        models.requests.clear()
        models.dimension = 20
        await reindex(harness)
        await until("it is at work", lambda: any("A fox." in texts for _, texts, _ in models.requests))
        del store.collections[present(index.building).name]
        await index.replace_lost()
        models.gate.set()
        await until("it serves", lambda: not index.building, deadline_s=10)
        assert await harness.texts("fox") == ["A fox."]


async def test_a_document_whose_version_is_not_there_keeps_no_build_from_its_end(tmp_path: Path) -> None:
    """As a damaged catalog has it: a build looked for the version again and again, without a pause."""
    async with retrieval_harness(tmp_path) as harness:
        await harness.add("A fox.", "d")
        dangling = (
            "INSERT INTO documents (tenant, space, id, created_at, live, newest) VALUES ('t', '', 'x', 1, 99, 99)"
        )
        await harness.retrieval.catalog.write(lambda db: db.execute(dangling))
        index = harness.retrieval.index
        name = present(index.active).name
        await asyncio.wait_for(index.reindex(), 10)
        assert (present(index.active).name != name, index.building) == (True, None)
        await index.fill()
        assert await harness.texts("fox") == ["A fox."]


TEXT = "A fox.\n\nA dog.\n\nA cat."


def count_embedded(harness: RetrievalHarness) -> int:
    """How many passages were embedded so far; the question after the dimension is none."""
    texts = [text for _, texts, is_background in harness.models.requests if is_background for text in texts]
    return sum("dimension" not in text for text in texts)


async def change_and_check(harness: RetrievalHarness) -> None:
    """Add a document, change its metadata alone, and look at what searches find and what was made anew."""
    await harness.add(TEXT, "d", metadata={"lang": "de"})
    before = sorted((hit["text"], hit["score"]) for hit in await harness.search("fox", mode="dense"))
    parsed, embedded = len(harness.parser.parsed), count_embedded(harness)
    await harness.add(TEXT, "d", metadata={"lang": "en", "year": 2024})
    assert (len(harness.parser.parsed), count_embedded(harness)) == (parsed, embedded)
    hits = await harness.search("fox", mode="dense", filter={"lang": "en", "year": 2024})
    assert sorted((hit["text"], hit["score"]) for hit in hits) == [
        (text, pytest.approx(score, abs=1e-6)) for text, score in before
    ]
    assert all(hit["metadata"] == {"lang": "en", "year": 2024} for hit in hits)
    assert await harness.texts("fox", filter={"lang": "en"}, mode="sparse") == ["A fox."]
    assert await harness.search("fox", filter={"lang": "de"}) == []
    assert (await harness.request("GET", "/v1/documents/d/text")).text == TEXT

    async def is_clean() -> bool:
        names = [spec.name for spec in await harness.store.list_collections()]
        return bool(await harness.store.count_points(names[0]) == len(before))

    await until("the old points are gone", is_clean)


async def test_the_embedded_store_keeps_the_vectors(tmp_path: Path) -> None:
    store: VectorStore = await EdgeStore.open(tmp_path / "edge")
    async with retrieval_harness(tmp_path, store=store, retrieval_embedding_model="m") as harness:
        await change_and_check(harness)


async def test_a_server_keeps_the_vectors(tmp_path: Path) -> None:
    (tmp_path / "server").mkdir()
    async with FakeQdrantServer(tmp_path / "server") as server:
        store = ServerStore.connect(server.url, pause_s=0)
        async with retrieval_harness(tmp_path, store=store, retrieval_embedding_model="m") as harness:
            await change_and_check(harness)


@pytest.mark.parametrize(
    "changed",
    [{"text": TEXT + "\n\nA hen."}, {"chunking": {"max_tokens": 64}}, {"filename": "other.md"}],
)
async def test_another_text_name_or_chunking_is_made_anew(tmp_path: Path, changed: dict[str, Any]) -> None:
    async with retrieval_harness(tmp_path, retrieval_embedding_model="m") as harness:
        await harness.add(TEXT, "d", metadata={"lang": "de"})
        await harness.add(document_id="d", **{"text": TEXT, **changed})
        assert len(harness.parser.parsed) == 2
        assert count_embedded(harness) > 3


async def test_another_tenants_vectors_are_never_taken(tmp_path: Path) -> None:
    async with retrieval_harness(tmp_path, retrieval_embedding_model="m") as harness:
        await harness.add(TEXT, "d", tenant="alice")
        await harness.add(TEXT, "d", tenant="bob")
        assert (len(harness.parser.parsed), count_embedded(harness)) == (2, 6)


async def test_vectors_that_the_store_has_lost_are_made_again(tmp_path: Path) -> None:
    store = MemoryVectorStore()
    async with retrieval_harness(tmp_path, store=store, retrieval_embedding_model="m") as harness:
        await harness.add(TEXT, "d")
        points = store.points("m-26")
        del points[next(id_ for id_, point in points.items() if point.text == "A dog.")]
        await harness.add(TEXT, "d", metadata={"lang": "en"})
        texts = [texts for _, texts, is_background in harness.models.requests if is_background]
        assert texts[-1] == ["A dog."]
        assert sorted(await harness.texts("a", mode="sparse", filter={"lang": "en"})) == sorted(TEXT.split("\n\n"))


async def test_chunks_with_other_texts_than_the_twins_are_embedded(tmp_path: Path) -> None:
    """As where another version of Roundhouse has cut one of the two documents: a new index must not mix them up."""
    store = MemoryVectorStore()
    async with retrieval_harness(tmp_path, store=store) as harness:
        await harness.add(TEXT, "d")
        await harness.add(TEXT, "e", metadata={"lang": "en"})
        await harness.retrieval.catalog.write(
            lambda db: db.execute("UPDATE chunks SET text = 'A zoo.' WHERE version = 1 AND ordinal = 1")
        )
    async with retrieval_harness(tmp_path, store=store, retrieval_embedding_model="m") as harness:
        await harness.request("POST", "/v1/retrieval/reindex", is_admin=True)
        await until("the new index serves", lambda: not harness.retrieval.index.needs_reindex)
        vectors = {point.text: point.vector for point in store.points("m-26").values()}
        for text in ("A zoo.", "A dog."):
            assert [vectors[text]] == await harness.models.embed_texts("m", [text], is_background=False)
        # The chunks that are alike were embedded once.
        assert count_embedded(harness) == 4


async def test_a_change_goes_on_after_a_crash_and_shows_nothing_before(tmp_path: Path) -> None:
    store = MemoryVectorStore()
    async with retrieval_harness(tmp_path, store=store, retrieval_embedding_model="m") as harness:
        await harness.add(TEXT, "d", metadata={"lang": "de"})
        writing, real_upsert = asyncio.Event(), store.upsert_points

        async def write_in_part(collection, points):  # type: ignore[no-untyped-def]
            await real_upsert(collection, points[:1])
            writing.set()
            await asyncio.Event().wait()

        store.upsert_points = write_in_part  # type: ignore[method-assign]
        body = {"text": TEXT, "id": "d", "metadata": {"lang": "en"}}
        assert (await harness.request("POST", "/v1/documents", body)).status_code == 202
        await writing.wait()
        assert await harness.search("fox", filter={"lang": "en"}) == []
        assert len(await harness.search("fox", mode="dense", filter={"lang": "de"})) == 3
    store.upsert_points = real_upsert  # type: ignore[method-assign]
    models = FakeModels()
    async with retrieval_harness(tmp_path, store=store, models=models, retrieval_embedding_model="m") as harness:
        await harness.request("GET", "/v1/documents/d/events")
        assert len(await harness.search("fox", mode="dense", filter={"lang": "en"})) == 3
        assert (harness.parser.parsed, count_embedded(harness)) == ([], 0)
