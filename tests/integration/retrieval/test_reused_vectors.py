"""A change of metadata alone: nothing is parsed or embedded again, and searches see the old or the new attributes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from retrieval.vector_store.base import VectorStore
from retrieval.vector_store.edge.store import EdgeStore
from retrieval.vector_store.server import ServerStore
from tests.fakes.fake_models import FakeModels
from tests.fakes.fake_qdrant_server import FakeQdrantServer
from tests.fakes.memory_vector_store import MemoryVectorStore
from tests.support.retrieval_harness import RetrievalHarness, retrieval_harness
from tests.support.wait import until

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
