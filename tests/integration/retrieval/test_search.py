"""Searches: modes, filters, reranking, thresholds, what they see while documents change; and tenants, of whom none sees
another's."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from retrieval.vector_store.base import CollectionSpec, VectorStore
from retrieval.vector_store.bm25_options import Bm25Options
from retrieval.vector_store.edge.store import EdgeStore
from tests.fakes.fake_retrieval_parts import FakeModels, MemoryVectorStore
from tests.support.retrieval_harness import RetrievalHarness, retrieval_harness
from tests.support.wait import until


async def test_words_alone_are_searched_without_an_embedding_model(harness: RetrievalHarness) -> None:
    await harness.add("A fox and a dog.", "d")
    answer = (await harness.request("POST", "/v1/search", {"query": "dog"})).json()
    assert (answer["mode"], answer["embedding_model"], answer["complete"]) == ("sparse", None, True)
    [hit] = answer["data"]
    assert (hit["scores"]["sparse"], hit["scores"]["sparse_rank"], hit["scores"]["dense"]) == (1.0, 1, None)
    for mode in ("dense", "hybrid"):
        refused = await harness.request("POST", "/v1/search", {"query": "dog", "mode": mode})
        assert refused.json()["error"]["param"] == "mode"
        assert "ROUNDHOUSE_RETRIEVAL_EMBEDDING_MODEL" in refused.json()["error"]["message"]


async def test_every_mode_says_why(tmp_path: Path) -> None:
    async with retrieval_harness(
        tmp_path, retrieval_embedding_model="e5-tiny", retrieval_rerank_model="ranker"
    ) as harness:
        await harness.add("zzzz\n\nA fox.\n\nA dog.", "d")
        [first, *_] = await harness.search("zz", mode="dense")
        assert (first["text"], first["scores"]["dense_rank"], first["scores"]["sparse"]) == ("zzzz", 1, None)
        [fox, *rest] = await harness.search("fox")
        assert fox["text"] == "A fox."
        assert fox["scores"]["sparse_rank"] == 1
        assert fox["scores"]["dense_rank"] >= 1
        assert all(each["scores"]["sparse"] is None for each in rest)
        [dog, *_] = await harness.search("a dog.", rerank=True)
        assert (dog["text"], dog["score"], dog["scores"]["rerank"]) == ("A dog.", 2.0, 2.0)
        queries = [texts for _, texts, is_background in harness.models.requests if not is_background]
        assert queries == [["query: zz"], ["query: fox"], ["query: a dog."]]
        passages = [texts for _, texts, is_background in harness.models.requests if is_background]
        assert passages[-1] == ["passage: zzzz", "passage: A fox.", "passage: A dog."]


async def test_filters_and_thresholds_leave_out(harness: RetrievalHarness) -> None:
    await harness.add("A fox.", "en", metadata={"lang": "en", "year": 2023})
    await harness.add("A fox, ein Fuchs.", "de", metadata={"lang": "de", "year": 2024})
    assert await harness.texts("fox", filter={"lang": "de"}) == ["A fox, ein Fuchs."]
    assert await harness.texts("fox", filter={"type": "lt", "key": "year", "value": 2024}) == ["A fox."]
    assert await harness.texts("fox fuchs", score_threshold=2) == ["A fox, ein Fuchs."]
    assert len(await harness.texts("fox", top_k=1)) == 1


async def test_a_model_that_is_away_is_said(tmp_path: Path) -> None:
    models = FakeModels()
    async with retrieval_harness(
        tmp_path, models=models, retrieval_embedding_model="m", retrieval_rerank_model="r"
    ) as harness:
        await harness.add("A fox.", "d")
        models.away = True
        answer = await harness.request("POST", "/v1/search", {"query": "fox"})
        assert answer.json()["error"]["code"] == "embedding_unavailable"
        assert answer.headers["retry-after"] == "5"
        answer = await harness.request("POST", "/v1/search", {"query": "fox", "mode": "sparse", "rerank": True})
        assert answer.json()["error"]["code"] == "rerank_unavailable"
        assert await harness.texts("fox", mode="sparse") == ["A fox."]


async def test_a_store_that_is_away_is_said(tmp_path: Path) -> None:
    store = MemoryVectorStore()
    async with retrieval_harness(tmp_path, store=store) as harness:
        await harness.add("A fox.", "d")
        store.fails = True
        answer = await harness.request("POST", "/v1/search", {"query": "fox"})
        assert answer.json()["error"]["code"] == "vector_store_unavailable"
        # What is accepted meanwhile is made later.
        assert (await harness.request("POST", "/v1/documents", {"text": "A dog.", "id": "e"})).status_code == 202
        await until("the store was tried", lambda: harness.retrieval.pipeline.retried)
        store.fails = False
        harness.skip_time(1)
        await harness.request("GET", "/v1/documents/e/events")
        assert await harness.texts("dog") == ["A dog."]


async def test_a_replacement_during_a_search_hides_the_document_never(tmp_path: Path) -> None:
    """The search has noted the new version as hidden, and then it is published: the search is made again."""
    models, store = FakeModels(), MemoryVectorStore()
    async with retrieval_harness(tmp_path, models=models, store=store, retrieval_embedding_model="m") as harness:
        await harness.add("The old fox.", "d")
        models.gate = asyncio.Event()
        await harness.request("POST", "/v1/documents", {"text": "The new fox.", "id": "d"})
        await until("it is being embedded", lambda: harness.retrieval.writer.versions_in_use)
        search_began, go_on = asyncio.Event(), asyncio.Event()
        real_search = store.search_sparse

        async def slow_search(*arguments):  # type: ignore[no-untyped-def]
            search_began.set()
            await go_on.wait()
            return await real_search(*arguments)

        store.search_sparse = slow_search  # type: ignore[method-assign]
        task = asyncio.create_task(harness.texts("fox", mode="sparse"))
        await search_began.wait()
        models.gate.set()
        await harness.request("GET", "/v1/documents/d/events")
        await until("the old points are gone", lambda: len(store.points("m-26")) == 1)
        go_on.set()
        assert await task == ["The new fox."]


async def test_another_model_is_told_and_takes_over_when_it_has_everything(tmp_path: Path) -> None:
    store = MemoryVectorStore()
    async with retrieval_harness(tmp_path, store=store) as harness:
        await harness.add("A fox.", "d")
    models = FakeModels()
    async with retrieval_harness(tmp_path, store=store, models=models, retrieval_embedding_model="m") as harness:
        assert harness.retrieval.index.needs_reindex
        answer = await harness.request("POST", "/v1/search", {"query": "fox", "mode": "dense"})
        assert answer.json()["error"]["code"] == "embedding_model_changed"
        assert await harness.texts("fox") == ["A fox."]
        before = (await harness.request("GET", "/v1/retrieval", is_admin=True)).json()
        assert (before["index"]["name"], before["needs_reindex"], before["versions"]) == ("bm25", True, {"ready": 1})
        assert (await harness.request("POST", "/v1/retrieval/reindex", is_admin=True)).status_code == 202
        await harness.add("Another fox.", "e")
        await until("the new index serves", lambda: not harness.retrieval.index.needs_reindex)
        assert sorted(await harness.texts("fox", mode="hybrid")) == ["A fox.", "Another fox."]
        assert sorted(store.collections) == ["m-26"]
        assert not harness.retrieval.index.needs_reindex


async def test_another_language_is_said_and_a_reindex_follows_it(tmp_path: Path) -> None:
    store: VectorStore = await EdgeStore.open(tmp_path / "edge")
    async with retrieval_harness(tmp_path, store=store) as harness:
        await harness.add("Die Häuser stehen.", "d")
        assert (await harness.request("POST", "/v1/search", {"query": "Haus"})).json()["notice"] is None
    store = await EdgeStore.open(tmp_path / "edge")
    async with retrieval_harness(tmp_path, store=store, retrieval_language="german") as harness:
        answer = (await harness.request("POST", "/v1/search", {"query": "Häuser"})).json()
        assert [hit["document_id"] for hit in answer["data"]] == ["d"]
        assert "language english, and set is german. `roundhouse rag reindex`" in answer["notice"]
        status = (await harness.request("GET", "/v1/retrieval", is_admin=True)).json()
        assert (status["language"], status["index"]["language"], status["needs_reindex"]) == ("german", "english", True)
        await harness.add("Ein Haus.", "e")  # into the old one, which serves
        await harness.request("POST", "/v1/retrieval/reindex", is_admin=True)
        await until("the new index serves", lambda: not harness.retrieval.index.needs_reindex)
        answer = (await harness.request("POST", "/v1/search", {"query": "Häusern"})).json()
        assert (sorted(hit["document_id"] for hit in answer["data"]), answer["notice"]) == (["d", "e"], None)
    store = await EdgeStore.open(tmp_path / "edge")
    async with retrieval_harness(tmp_path, store=store, retrieval_language="german") as harness:
        assert await harness.store.list_collections() == [CollectionSpec("bm25-2", None, Bm25Options("german"))]
        assert len(await harness.texts("Haus")) == 2


async def test_a_store_with_another_language_than_the_catalog_says_is_made_anew(tmp_path: Path) -> None:
    store = MemoryVectorStore()
    async with retrieval_harness(tmp_path, store=store) as harness:
        await harness.add("A fox.", "d")
    points = store.points("bm25")
    store.collections["bm25"] = (CollectionSpec("bm25", None, Bm25Options("german")), points)
    async with retrieval_harness(tmp_path, store=store) as harness:
        await until(
            "it is made anew", lambda: not harness.retrieval.index.missing and harness.retrieval.writer.points_written
        )
        assert await store.list_collections() == [CollectionSpec("bm25", None)]


async def test_a_reindex_goes_on_after_a_crash(tmp_path: Path) -> None:
    store = MemoryVectorStore()
    async with retrieval_harness(tmp_path, store=store) as harness:
        for number in range(3):
            await harness.add(f"Fox {number}.", f"d{number}")
    models = FakeModels(gate=asyncio.Event(), gated="Fox 1")
    async with retrieval_harness(tmp_path, store=store, models=models, retrieval_embedding_model="m") as harness:
        task = asyncio.create_task(harness.retrieval.index.reindex())
        await until("the first document is in it", lambda: "m-26" in store.collections and store.points("m-26"))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    async with retrieval_harness(tmp_path, store=store, retrieval_embedding_model="m") as harness:
        await until("it serves", lambda: not harness.retrieval.index.needs_reindex)
        assert len(await harness.texts("fox", mode="hybrid")) == 3


@pytest.mark.parametrize("method", ["rrf", "weighted"])
async def test_fusion_is_chosen(tmp_path: Path, method: str) -> None:
    async with retrieval_harness(tmp_path, retrieval_embedding_model="m") as harness:
        await harness.add("A fox.\n\nA dog.", "d")
        fusion = {"method": method, "dense_weight": 0, "sparse_weight": 2}
        [first, *_] = await harness.search("dog", fusion=fusion)
        assert (first["text"], first["score"]) == ("A dog.", 2.0 if method == "weighted" else pytest.approx(2 / 3))


async def test_documents_of_the_embedded_store_are_found_and_kept(tmp_path: Path) -> None:
    folder = tmp_path / "edge"
    settings: dict[str, Any] = {"retrieval_embedding_model": "m"}
    async with retrieval_harness(tmp_path, store=await EdgeStore.open(folder), **settings) as harness:
        await harness.add("The quick brown fox.\n\nA lazy dog sleeps.", "d", metadata={"lang": "en", "draft": True})
        await harness.add("Another fox runs.", "e", metadata={"lang": "de", "draft": False})
        await harness.add("A fox of somebody else.", "d", tenant="bob")
        assert (await harness.texts("sleeping dogs", mode="sparse")) == ["A lazy dog sleeps."]
        assert sorted(await harness.texts("fox")) == ["A lazy dog sleeps.", "Another fox runs.", "The quick brown fox."]
        assert await harness.texts("fox", filter={"draft": True}, mode="sparse") == ["The quick brown fox."]
        assert await harness.texts("fox", filter={"type": "ne", "key": "lang", "value": "en"}) == ["Another fox runs."]
        await harness.add("The new fox.", "d")
    async with retrieval_harness(tmp_path, store=await EdgeStore.open(folder), **settings) as harness:
        assert sorted(await harness.texts("foxes", mode="sparse")) == ["Another fox runs.", "The new fox."]
        assert await harness.texts("fox", tenant="bob") == ["A fox of somebody else."]


async def test_tenants_are_listed_and_deleted(harness: RetrievalHarness) -> None:
    await harness.add("A fox.\n\nA dog.", "d")
    await harness.add("A cat.", "d", tenant="bob/β")
    own = (await harness.request("GET", "/v1/tenants")).json()["data"]
    assert own == [{"id": "alice", "object": "tenant", "documents": 1, "chunks": 2, "bytes": 14}]
    everybody = (await harness.request("GET", "/v1/tenants", is_admin=True)).json()["data"]
    assert [each["id"] for each in everybody] == ["alice", "bob/β"]

    refused = await harness.request("DELETE", "/v1/tenants/bob%2F%CE%B2")
    assert refused.json()["error"]["code"] == "tenant_not_found"
    assert await harness.texts("cat", tenant="bob/β") == ["A cat."]
    deleted = await harness.request("DELETE", "/v1/tenants/bob%2F%CE%B2", is_admin=True)
    assert deleted.json() == {"id": "bob/β", "object": "tenant.deleted", "deleted": True, "documents": 1}
    assert await harness.texts("cat", tenant="bob/β") == []
    assert (await harness.request("DELETE", "/v1/tenants/alice")).status_code == 200
    assert (await harness.request("GET", "/v1/tenants", is_admin=True)).json()["data"] == []


async def test_a_foreign_document_is_none(harness: RetrievalHarness) -> None:
    await harness.add("A fox.", "d")
    for method, path in (
        ("GET", "/v1/documents/d"),
        ("DELETE", "/v1/documents/d"),
        ("GET", "/v1/documents/d/chunks"),
        ("GET", "/v1/documents/d/text"),
        ("GET", "/v1/documents/d/content"),
        ("GET", "/v1/documents/d/events"),
    ):
        foreign = await harness.request(method, path, tenant="bob")
        unknown = await harness.request(method, path.replace("/d", "/x", 2).replace("/xocuments", "/documents"))
        assert foreign.status_code == unknown.status_code == 404, path
    assert (await harness.request("GET", "/v1/documents", tenant="bob")).json()["data"] == []
    assert await harness.texts("fox", tenant="bob") == []
    assert await harness.texts("fox") == ["A fox."]
