"""What becomes of the index when the vector store loses it, when the model changes, and when two builds meet."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.fakes.fake_models import FakeModels
from tests.fakes.memory_vector_store import MemoryVectorStore
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


async def test_a_dimension_that_changes_during_a_reindex_begins_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


async def test_a_dimension_that_changes_while_a_reindex_is_interrupted_begins_it_again(
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
