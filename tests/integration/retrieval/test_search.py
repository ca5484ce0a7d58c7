"""Searches: modes, filters, reranking, thresholds, what they see while documents change; and tenants, of whom none sees
another's."""

# ruff: noqa: RUF001 - letters of other scripts look alike
from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from contract.retrieval import TENANT_HEADER
from retrieval.catalog.records import Collection
from retrieval.parsing.pool import ParserPool
from retrieval.vector_store.base import CollectionSpec, VectorStore, VectorStoreError
from retrieval.vector_store.edge.store import EdgeStore
from retrieval.vector_store.tokenizer import Bm25Options
from tests.fakes.fake_retrieval_parts import FakeModels, MemoryVectorStore
from tests.support.document_files import make_xlsx
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


PEOPLE: list[list[str | float]] = [[f"Person{number}", "Rail", 1000 + number] for number in range(1, 601)]
STAFF: dict[str, bytes | str] = {
    "staff.csv": "Employee,Team,Salary\n" + "".join(f"{name},{team},{pay}\n" for name, team, pay in PEOPLE),
    "staff.md": "| Employee | Team | Salary |\n|-|-|-|\n" + "".join(f"| {a} | {b} | {c} |\n" for a, b, c in PEOPLE),
    "staff.xlsx": make_xlsx({"Staff": [["Employee", "Team", "Salary"], *PEOPLE]}),
}


async def test_a_row_of_a_long_table_is_found_by_its_column_and_says_which_it_is(tmp_path: Path) -> None:
    store = await EdgeStore.open(tmp_path / "edge")
    async with retrieval_harness(tmp_path, store=store, parser=ParserPool()) as harness:
        for name, data in STAFF.items():
            headers = {TENANT_HEADER: name}
            form = {"file": (name, data)}
            added = await harness.client.post("/v1/documents?wait=true", files=form, headers=headers)
            assert added.status_code == 200, added.text
            for number in (7, 450):
                [hit, *_] = await harness.search(f"Person{number} salary", tenant=name)
                assert f"Person{number}" in hit["text"]
                row = hit["text"].split("\n")[0] if hit["chunk"] == 0 else hit["headings"][-1]
                assert "Salary" in row or hit["text"].startswith("# Staff")


async def test_filters_and_thresholds_leave_out(harness: RetrievalHarness) -> None:
    await harness.add("A fox.", "en", metadata={"lang": "en", "year": 2023})
    await harness.add("A fox, ein Fuchs.", "de", metadata={"lang": "de", "year": 2024})
    assert await harness.texts("fox", filter={"lang": "de"}) == ["A fox, ein Fuchs."]
    assert await harness.texts("fox", filter={"type": "lt", "key": "year", "value": 2024}) == ["A fox."]
    later = {"type": "gt", "key": "date", "value": "2024-03-01T08:30:00.5Z"}
    await harness.add("A fox at ten.", "ten", metadata={"date": "2024-03-01T10:30:01+02:00"})
    await harness.add("A fox at nine.", "nine", metadata={"date": ["2024-03-01", "no date"]})
    assert await harness.texts("fox", filter=later) == ["A fox at ten."]
    assert await harness.texts("fox", filter={**later, "type": "lte"}) == ["A fox at nine."]
    assert await harness.texts("fox", filter={"date": "2024-03-01T10:30:01+02:00"}) == ["A fox at ten."]
    refused = await harness.request("POST", "/v1/search", {"query": "fox", "filter": {**later, "value": "March"}})
    assert "a date (2024-03-01)" in refused.json()["error"]["message"]
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


async def test_a_search_whose_collection_is_replaced_meanwhile_goes_to_the_new_one(tmp_path: Path) -> None:
    store = MemoryVectorStore()
    async with retrieval_harness(tmp_path, store=store) as harness:
        await harness.add("A fox.", "d")
        search = store.search_sparse

        async def replace_first(collection: str, *rest: Any) -> Any:
            if collection == "bm25":
                await harness.retrieval.index.reindex()
                raise VectorStoreError("the collection was closed")
            return await search(collection, *rest)

        store.search_sparse = replace_first  # type: ignore[assignment,method-assign]
        assert await harness.texts("fox") == ["A fox."]


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


DOCUMENTS = {
    "zh": "北京市的地铁十三号线在早上六点开始运营。乘客需要提前购买车票。",
    "zh2": "上海的博物馆星期一不开放。参观者可以在网上预约门票。",
    "ja": "東京の図書館は月曜日に閉まっています。本を借りるには会員カードが必要です。",
    "ja2": "大阪の水族館ではジンベエザメを見ることができます。",
    "ko": "서울의 박물관은 월요일에 문을 닫습니다. 입장권은 온라인으로 구매할 수 있습니다.",
    "th": "พิพิธภัณฑ์ในกรุงเทพปิดทุกวันจันทร์ ผู้เข้าชมสามารถซื้อตั๋วออนไลน์ได้",
    "ar": "يغلق المتحف أبوابه يوم الاثنين. يمكن للزوار شراء التذاكر عبر الإنترنت.",
    "he": "המוזיאון סגור בימי שני. אפשר לקנות כרטיסים באתר.",
    "ru": "Музей закрыт по понедельникам. Билеты можно купить на сайте.",
    "de": "Das Museum ist montags geschlossen. Fußgänger benutzen die Straße nach Köln.",
    "vi": "Bảo tàng đóng cửa vào thứ Hai. Khách có thể mua vé trực tuyến.",
    "fr": "Cafe\u0301 ole\u0301, servi dans les e\u0301curies.",
    "en": "The Donau\u00addampf\u00adschiff leaves the o\ufb03ce at noon.",
    "lo": "ພິພິທະພັນປິດໃນວັນຈັນ",
    "km": "សារមន្ទីរបិទនៅថ្ងៃចន្ទ",
    "my": "ပြတိုက်သည် တနင်္လာနေ့တွင် ပိတ်ထားသည်။",
    "hi": "संग्रहालय सोमवार को बंद रहता है। टिकट ऑनलाइन खरीदे जा सकते हैं।",
    "el": "Τα σπίτια της Αθήνας είναι λευκά.",
    "tr": "Müze pazartesi günleri kapalıdır. Biletler gişeden alınır.",
    "mixed": "新的ＧＰＵ服务器有３台，ｻｰﾊﾞｰ",
}
QUERIES = {
    "地铁": "zh",
    "车票": "zh",
    "図書館": "ja",
    "ジンベエザメ": "ja2",
    "박물관": "ko",
    "입장권": "ko",
    "ตั๋ว": "th",
    "متحف": "ar",
    "билет": "ru",
    "koln": "de",
    "bao tang": "vi",
    "café olé": "fr",
    "CAFE OLE": "fr",
    "écurie": "fr",
    "strasse": "de",
    "STRASSE": "de",
    "Straßen": "de",
    "Donaudampfschiff": "en",
    "offices": "en",
    "מוזיאון": "he",
    "ພິພິທະພັນ": "lo",
    "សារមន្ទីរ": "km",
    "ပြတိုက်": "my",
    "टिकट": "hi",
    "ΑΘΗΝΑΣ": "el",
    "σπίτι": "el",
    "KAPALIDIR": "tr",
    "bilet": "tr",
    "gpu服务器": "mixed",
    "サーバー": "mixed",
    "借": "ja",
    "13号线": None,
}


async def test_words_of_every_script_are_found_first(tmp_path: Path) -> None:
    async with retrieval_harness(tmp_path, store=await EdgeStore.open(tmp_path / "edge")) as harness:
        await asyncio.gather(*(harness.add(text, name) for name, text in DOCUMENTS.items()))
        for query, expected in QUERIES.items():
            hits = await harness.search(query)
            assert expected is None or hits[0]["document_id"] == expected, query


@pytest.mark.parametrize("query", ["😀", "?!", "—", "\u00ad"])
async def test_a_query_without_words_says_so(harness: RetrievalHarness, query: str) -> None:
    await harness.add("A fox. 😀", "d")
    answer = (await harness.request("POST", "/v1/search", {"query": query})).json()
    words = "The query has neither letters nor digits, so no words could be searched."
    assert (answer["data"], answer["notice"]) == (
        [],
        f"{words} The tenant alice has 1 document, of which none fits.",
    )
    store = (await harness.request("POST", "/v1/vector_stores", {"name": "s"})).json()["id"]
    for name in (store, "documents"):
        found = await harness.request("POST", f"/v1/vector_stores/{name}/search", {"query": [query, "fox"]})
        assert found.json()["notice"] == words
    for served, notice in (("fox", None), ("the", "The tenant alice has 1 document, of which none fits.")):
        assert (await harness.request("POST", "/v1/search", {"query": served})).json()["notice"] == notice


async def test_a_query_without_words_may_have_a_meaning(tmp_path: Path) -> None:
    async with retrieval_harness(tmp_path, retrieval_embedding_model="m") as harness:
        await harness.add("A fox.", "d")
        for mode, is_said in (("dense", False), ("hybrid", True), ("sparse", True)):
            answer = (await harness.request("POST", "/v1/search", {"query": "?", "mode": mode})).json()
            assert (answer["notice"] is not None, bool(answer["data"])) == (is_said, mode != "sparse")


async def test_another_language_is_said_and_the_index_follows_it(tmp_path: Path) -> None:
    store = MemoryVectorStore()
    async with retrieval_harness(tmp_path, store=store) as harness:
        await harness.add("Häuser", "d")
        answer = (await harness.request("POST", "/v1/search", {"query": "Haus"})).json()
        assert answer["notice"] == "The tenant alice has 1 document, of which none fits."
    async with retrieval_harness(tmp_path, store=store, retrieval_language="german") as harness:
        await until("the new index serves alone", lambda: [*store.collections] == ["bm25-2"])
        answer = (await harness.request("POST", "/v1/search", {"query": "Häuser"})).json()
        assert ([hit["document_id"] for hit in answer["data"]], answer["notice"]) == (["d"], None)
        status = (await harness.request("GET", "/v1/retrieval", is_admin=True)).json()
        assert (status["language"], status["index"]["language"], status["building"]) == ("german", "german", None)
        assert await store.list_collections() == [CollectionSpec("bm25-2", None, Bm25Options("german"))]


async def keep_first_version(
    folder: Path, store: VectorStore, documents: Mapping[str, str], **settings: Any
) -> Collection:
    """Leave the state of a program whose words were Qdrant's."""
    async with retrieval_harness(folder, store=store, **settings) as harness:
        index = harness.retrieval.index
        index.wanted_bm25 = Bm25Options("english", version=1)
        await asyncio.gather(*(harness.add(text, name) for name, text in documents.items()))
        assert index.active is not None
        assert index.active.bm25.version == 1
        return index.active


def remove_version(folder: Path, collection: Collection) -> None:
    """Make the state that of a program of before words had versions."""
    record_path = folder / "edge" / collection.name / "collection.json"
    record = json.loads(record_path.read_text())
    del record["bm25"]["version"]
    record_path.write_text(json.dumps(record))
    with sqlite3.connect(folder / "retrieval" / "catalog.db") as db:
        db.execute("UPDATE collections SET bm25 = ?", (json.dumps(record["bm25"]),))
    db.close()


async def test_an_index_of_an_earlier_version_is_made_anew_without_its_model(tmp_path: Path) -> None:
    """Searches use the old one meanwhile, and say so; its vectors are taken, so no model is asked."""
    settings: dict[str, Any] = {"retrieval_embedding_model": "m"}
    documents = {"metro": "地铁", "fox": "A fox.", "city": "Köln liegt am Rhein"}
    first = await keep_first_version(tmp_path, await EdgeStore.open(tmp_path / "edge"), documents, **settings)
    remove_version(tmp_path, first)
    store = await EdgeStore.open(tmp_path / "edge")
    may_flush, flush = asyncio.Event(), store.flush_collection

    async def flush_later(collection: str) -> None:
        await may_flush.wait()
        await flush(collection)

    store.flush_collection = flush_later  # type: ignore[method-assign]
    models = FakeModels(away=True)
    async with retrieval_harness(tmp_path, store=store, models=models, **settings) as harness:
        answer = (await harness.request("POST", "/v1/search", {"query": "foxes", "mode": "sparse"})).json()
        assert [hit["document_id"] for hit in answer["data"]] == ["fox"]
        assert "language english, and set is auto. It is being built anew; until then" in answer["notice"]
        assert answer["notice"].endswith("serves, and ranges of dates miss older documents.")
        assert await harness.texts("koln", mode="sparse") == []
        may_flush.set()
        await until("the new index serves", lambda: not harness.retrieval.index.needs_reindex)
        answer = (await harness.request("POST", "/v1/search", {"query": "koln", "mode": "sparse"})).json()
        assert ([hit["document_id"] for hit in answer["data"]], answer["notice"]) == (["city"], None)
        assert models.requests == []
        models.away = False
        assert len(await harness.search("fox", mode="dense")) == 3


async def test_an_index_of_an_earlier_version_is_finished_after_a_crash(tmp_path: Path) -> None:
    store = MemoryVectorStore()
    await keep_first_version(tmp_path, store, {f"d{number}": f"fox {number}" for number in range(70)})
    stops = asyncio.Event()

    async def flush_never(collection: str) -> None:
        stops.set()
        await asyncio.Event().wait()

    flush, store.flush_collection = store.flush_collection, flush_never  # type: ignore[method-assign]
    async with retrieval_harness(tmp_path, store=store) as harness:
        await stops.wait()
        assert harness.retrieval.index.needs_reindex
        assert sorted(store.collections) == ["bm25", "bm25-2"]
        assert len(await harness.texts("fox", top_k=100)) == 70
    store.flush_collection = flush  # type: ignore[method-assign]
    async with retrieval_harness(tmp_path, store=store) as harness:
        await until("the new index serves alone", lambda: [*store.collections] == ["bm25-2"])
        assert len(await harness.texts("fox", top_k=100)) == 70
        assert not harness.retrieval.index.needs_reindex


@pytest.mark.parametrize("is_missing", [False, True])
async def test_an_index_of_an_earlier_version_follows_another_dimension(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_missing: bool
) -> None:
    """A vector that cannot be taken is made anew, and shows it."""
    monkeypatch.setattr("retrieval.assembly.RETRY_S", 0.05)
    store = MemoryVectorStore()
    settings: dict[str, Any] = {"retrieval_embedding_model": "m"}
    await keep_first_version(tmp_path, store, {"d": "A fox.", "e": "A dog."}, **settings)
    points = store.points("m-26")
    if is_missing:
        del store.collections["m-26"]
    else:
        del points[next(id_ for id_, point in points.items() if point.text == "A dog.")]
    models = FakeModels(dimension=20)
    async with retrieval_harness(tmp_path, store=store, models=models, **settings) as harness:
        await until("the new index serves alone", lambda: [*store.collections] == ["m-20"])
        assert not harness.retrieval.index.needs_reindex
        assert sorted(await harness.texts("a", mode="dense")) == ["A dog.", "A fox."]


async def test_a_reindex_of_an_earlier_version_is_finished_and_then_its_words_are_made_anew(tmp_path: Path) -> None:
    store = MemoryVectorStore()
    await keep_first_version(tmp_path, store, {"d": "A fox."})
    models = FakeModels(gate=asyncio.Event(), gated="fox")
    async with retrieval_harness(tmp_path, store=store, models=models, retrieval_embedding_model="m") as harness:
        harness.retrieval.index.wanted_bm25 = Bm25Options("english", version=1)
        await harness.request("POST", "/v1/retrieval/reindex", is_admin=True)
        await until("it is being built", lambda: len(models.requests) > 1)
    async with retrieval_harness(tmp_path, store=store, retrieval_embedding_model="m") as harness:
        await until("the new index serves alone", lambda: [*store.collections] == ["m-26-2"])
        assert (harness.retrieval.index.needs_reindex, harness.retrieval.index.notice) == (False, None)


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
