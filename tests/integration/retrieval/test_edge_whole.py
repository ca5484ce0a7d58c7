"""The whole of retrieval on the real Qdrant Edge: what is found, kept over restarts, and told apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from retrieval.vector_store.edge.store import EdgeStore
from tests.support.retrieval_harness import retrieval_harness


async def test_documents_are_found_and_kept(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"retrieval_embedding_model": "m"}
    async with retrieval_harness(tmp_path, store=await EdgeStore.open(tmp_path / "edge"), **settings) as harness:
        await harness.add("The quick brown fox.\n\nA lazy dog sleeps.", "d", metadata={"lang": "en", "draft": True})
        await harness.add("Another fox runs.", "e", metadata={"lang": "de", "draft": False})
        await harness.add("A fox of somebody else.", "d", tenant="bob")
        assert (await harness.texts("sleeping dogs", mode="sparse")) == ["A lazy dog sleeps."]
        assert sorted(await harness.texts("fox")) == ["A lazy dog sleeps.", "Another fox runs.", "The quick brown fox."]
        assert await harness.texts("fox", filter={"draft": True}, mode="sparse") == ["The quick brown fox."]
        assert await harness.texts("fox", filter={"type": "ne", "key": "lang", "value": "en"}) == ["Another fox runs."]
        await harness.add("The new fox.", "d")
    async with retrieval_harness(tmp_path, store=await EdgeStore.open(tmp_path / "edge"), **settings) as harness:
        assert sorted(await harness.texts("foxes", mode="sparse")) == ["Another fox runs.", "The new fox."]
        assert await harness.texts("fox", tenant="bob") == ["A fox of somebody else."]
