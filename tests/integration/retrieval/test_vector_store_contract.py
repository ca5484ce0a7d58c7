"""What `retrieval.vector_store.base` promises, of both stores."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from retrieval.filters import Filter, parse_filter
from retrieval.vector_store.base import (
    AttributeValue,
    CollectionMismatchError,
    CollectionSpec,
    Point,
    ScoredPoint,
    SearchScope,
    VectorStore,
)
from retrieval.vector_store.edge.store import EdgeStore
from retrieval.vector_store.server import ServerStore
from retrieval.vector_store.tokenizer import Bm25Options
from tests.fakes.fake_qdrant_server import FakeQdrantServer

KINDS = ("edge", "server")
DENSE = CollectionSpec("dense", 4)
WORDS = CollectionSpec("words", None)


@asynccontextmanager
async def open_edge(folder: Path) -> AsyncIterator[VectorStore]:
    """An embedded store."""
    store = await EdgeStore.open(folder)
    try:
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def open_server(folder: Path) -> AsyncIterator[VectorStore]:
    """A store on a server."""
    folder.mkdir()
    async with FakeQdrantServer(folder, api_key="k3y") as server:
        store = ServerStore.connect(server.url, "k3y", pause_s=0)
        yield store
        await store.close()


def open_store(kind: str, folder: Path) -> AbstractAsyncContextManager[VectorStore]:
    """A store of either kind, empty."""
    return (open_edge if kind == "edge" else open_server)(folder / "store")


@pytest.fixture(params=KINDS)
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[VectorStore]:
    """Each kind in turn, with the collections `dense` and `words`."""
    async with open_store(request.param, tmp_path) as opened:
        await opened.create_collection(DENSE)
        await opened.create_collection(WORDS)
        yield opened


def make_point(
    number: int,
    text: str = "word",
    vector: Sequence[float] | None = (1, 0, 0, 0),
    *,
    tenant: str = "t",
    space: str = "",
    version: int | None = None,
    ordinal: int = 0,
    attributes: Mapping[str, AttributeValue] | None = None,
) -> Point:
    """A point whose id is its number, and by default its version too."""
    version = number if version is None else version
    return Point(str(uuid.UUID(int=number)), tenant, space, version, ordinal, text, vector, attributes or {})


def scope(
    tenant: str = "t", spaces: Sequence[str] = ("",), where: Any = None, hidden: Sequence[int] = ()
) -> SearchScope:
    """What a search may see: by default all of tenant `t` outside of vector stores."""
    parsed: Filter | None = parse_filter(where)
    return SearchScope(tenant, spaces, parsed, frozenset(hidden))


def versions(found: Sequence[ScoredPoint]) -> list[int]:
    """Versions of what was found, best first."""
    return [each.version for each in found]


async def test_a_new_store_is_empty_and_lists_what_is_created_by_name(store: VectorStore) -> None:
    assert store.kind in KINDS
    await store.create_collection(CollectionSpec("a_2-b", 7))
    assert await store.list_collections() == [CollectionSpec("a_2-b", 7), DENSE, WORDS]


async def test_a_collection_is_created_once_and_never_with_another_dimension(store: VectorStore) -> None:
    await store.upsert_points("dense", [make_point(1)])
    await store.create_collection(DENSE)
    assert await store.count_points("dense") == 1
    with pytest.raises(CollectionMismatchError, match="dimension 4, not 5"):
        await store.create_collection(CollectionSpec("dense", 5))
    with pytest.raises(CollectionMismatchError, match="dimension 4, not none"):
        await store.create_collection(CollectionSpec("dense", None))
    with pytest.raises(CollectionMismatchError, match="dimension none, not 4"):
        await store.create_collection(CollectionSpec("words", 4))


@pytest.mark.parametrize("name", ["", "A", "../x", "a/b", "a.b", "x" * 101])
async def test_a_name_that_no_collection_can_have_is_refused(store: VectorStore, name: str) -> None:
    with pytest.raises(ValueError, match="name must match"):
        await store.create_collection(CollectionSpec(name, 4))
    await store.delete_collection(name)
    assert await store.list_collections() == [DENSE, WORDS]


async def test_a_deleted_collection_is_gone_with_its_points(store: VectorStore) -> None:
    await store.upsert_points("dense", [make_point(1)])
    await store.delete_collection("dense")
    await store.delete_collection("dense")
    assert await store.list_collections() == [WORDS]
    await store.create_collection(CollectionSpec("dense", 3))
    assert await store.count_points("dense") == 0


async def test_every_method_says_that_a_collection_is_missing(store: VectorStore) -> None:
    for call in (
        store.upsert_points("gone", [make_point(1)]),
        store.flush_collection("gone"),
        store.delete_versions("gone", [1]),
        store.read_vectors("gone", []),
        store.search_dense("gone", [1, 0, 0, 0], scope(), 1),
        store.search_sparse("gone", "word", scope(), 1),
        store.search_sparse("gone", "", scope(), 1),
        store.count_points("gone"),
        store.optimize_collection("gone"),
    ):
        with pytest.raises(KeyError, match="gone"):
            await call


@pytest.mark.parametrize(
    ("collection", "vector"),
    [("dense", (1, 0, 0)), ("dense", (1, 0, 0, float("nan"))), ("dense", (1, 0, 0, 1e39)), ("words", (1, 0, 0, 0))],
)
async def test_an_unfit_vector_writes_nothing(store: VectorStore, collection: str, vector: Sequence[float]) -> None:
    fitting = make_point(1, vector=(1, 0, 0, 0) if collection == "dense" else None)
    with pytest.raises(ValueError):  # noqa: PT011 - its text is for developers
        await store.upsert_points(collection, [fitting, make_point(2, vector=vector)])
    assert await store.count_points(collection) == 0
    with pytest.raises(ValueError):  # noqa: PT011
        await store.search_dense(collection, vector, scope(), 1)


async def test_a_point_without_a_vector_is_found_by_its_words_alone(store: VectorStore) -> None:
    points = [make_point(1), make_point(2, vector=None), make_point(3, vector=(0, 1, 0, 0))]
    await store.upsert_points("dense", points)
    for _ in range(2):
        assert versions(await store.search_dense("dense", [1, 0, 0, 0], scope(), 9)) == [1, 3]
        assert sorted(versions(await store.search_sparse("dense", "word", scope(), 9))) == [1, 2, 3]
        vectors = await store.read_vectors("dense", [point.id for point in points])
        assert vectors.keys() == {points[0].id, points[2].id}
        await store.flush_collection("dense")
        await store.optimize_collection("dense")
    await store.upsert_points("dense", [make_point(2), make_point(3, vector=None)])
    assert sorted(versions(await store.search_dense("dense", [1, 0, 0, 0], scope(), 9))) == [1, 2]


@pytest.mark.parametrize(
    "refused",
    [
        Point("1", "t", "", 1, 0, "word", (1, 0, 0, 0), {}),
        make_point(1, "\ud800"),
        make_point(1, tenant="\ud800"),
        make_point(1, attributes={"a": "\ud800"}),
        make_point(1, attributes={"a": ["x", "\ud800"]}),
        make_point(1, attributes={"a": 10**400}),
        make_point(1, attributes={"a": float("inf")}),
    ],
)
async def test_one_unfit_point_refuses_all_of_its_call(store: VectorStore, refused: Point) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - its text is for developers
        await store.upsert_points("dense", [*(make_point(i) for i in range(2, 200)), refused])
    assert await store.count_points("dense") == 0


async def test_a_query_that_is_no_unicode_is_refused(store: VectorStore) -> None:
    with pytest.raises(ValueError, match="surrogates"):
        await store.search_sparse("dense", "\ud800", scope(), 1)


async def test_dense_search_orders_by_cosine(store: VectorStore) -> None:
    await store.upsert_points(
        "dense",
        [
            make_point(1, vector=(2, 0, 0, 0), ordinal=5),
            make_point(2, vector=(1, 1, 0, 0)),
            make_point(3, vector=(-3, 0, 0, 0)),
            make_point(4, vector=(0, 0, 1, 0)),
        ],
    )
    found = await store.search_dense("dense", [10, 0, 0, 0], scope(), 10)
    assert [(each.version, each.ordinal) for each in found] == [(1, 5), (2, 0), (4, 0), (3, 0)]
    assert [each.score for each in found] == pytest.approx([1, 0.7071, 0, -1], abs=1e-3)
    assert versions(await store.search_dense("dense", [10, 0, 0, 0], scope(), 2)) == [1, 2]


async def test_sparse_search_finds_shared_words_rare_ones_first(store: VectorStore) -> None:
    texts = ["common rare", "common running", "common", "common other", "elsewhere"]
    await store.upsert_points("words", [make_point(i, text, None) for i, text in enumerate(texts)])
    found = await store.search_sparse("words", "common rare", scope(), 10)
    assert versions(found)[0] == 0
    assert sorted(versions(found)) == [0, 1, 2, 3]
    assert all(each.score > 0 for each in found)
    assert [each.score for each in found] == sorted((each.score for each in found), reverse=True)
    assert versions(await store.search_sparse("words", "run", scope(), 10)) == [1]
    assert await store.search_sparse("words", "the of", scope(), 10) == []
    assert await store.search_sparse("words", "absent", scope(), 10) == []


async def test_a_score_tells_nothing_of_other_tenants(store: VectorStore) -> None:
    await store.upsert_points("words", [make_point(i, text, None) for i, text in enumerate(["x y", "y z", "z"])])
    before = await store.search_sparse("words", "x y", scope(), 10)
    await store.upsert_points("words", [make_point(100 + i, "x x y", None, tenant="other") for i in range(50)])
    assert await store.search_sparse("words", "x y", scope(), 10) == before
    await store.delete_versions("words", [2])
    assert await store.search_sparse("words", "x y", scope(), 10) != before


async def test_a_search_sees_its_tenant_and_spaces_alone(store: VectorStore) -> None:
    await store.upsert_points(
        "dense",
        [
            make_point(1),
            make_point(2, space="vs_1"),
            make_point(3, space="vs_2"),
            make_point(4, tenant="T"),
            make_point(5, tenant="T", space="vs_1"),
            make_point(6, tenant=""),
            make_point(7, tenant="t:x y/ü\n\"'"),
        ],
    )
    for tenant, spaces, expected in (
        ("t", [""], {1}),
        ("t", ["vs_1"], {2}),
        ("t", ["vs_1", "vs_2", "vs_3"], {2, 3}),
        ("T", [""], {4}),
        ("T", ["", "vs_1"], {4, 5}),
        ("", [""], {6}),
        ("t:x y/ü\n\"'", [""], {7}),
        ("nobody", ["", "vs_1"], set()),
    ):
        seen = scope(tenant, spaces)
        assert set(versions(await store.search_dense("dense", [1, 0, 0, 0], seen, 10))) == expected
        assert set(versions(await store.search_sparse("dense", "word", seen, 10))) == expected
    assert await store.count_points("dense") == 7
    assert await store.count_points("dense", "t") == 3
    assert await store.count_points("dense", "nobody") == 0


BETWEEN = [{"type": "gt", "key": "year", "value": 0}, {"type": "lt", "key": "year", "value": 2}]


async def test_filters_compare_attributes(store: VectorStore) -> None:
    await store.upsert_points(
        "dense",
        [
            make_point(1, attributes={"lang": "en", "year": 2024, "tags": ["a", "b"], "draft": True}),
            make_point(
                2, attributes={"lang": "de", "year": 2024.0, "tags": ["b"], "at": ["x", "2024-03-01T01:00+02:00"]}
            ),
            make_point(3, attributes={"lang": "1", "year": 1, "a b.c:d/e-f": 0.5, "at": "2024-03-01"}),
            make_point(4),
        ],
    )
    for where, expected in (
        ({"lang": "en"}, {1}),
        ({"year": 2024}, {1, 2}),
        ({"year": True}, set()),
        ({"lang": 1}, set()),
        ({"draft": True}, {1}),
        ({"tags": ["a", "c"]}, {1}),
        ({"tenant": "t"}, set()),
        ({"type": "gte", "key": "year", "value": 2}, {1, 2}),
        ({"type": "gte", "key": "at", "value": "2024-03-01T00:00:00Z"}, {3}),
        ({"type": "lt", "key": "at", "value": "2024-03-01"}, {2}),
        ({"type": "gt", "key": "at", "value": 0}, set()),
        ({"type": "gt", "key": "year", "value": "1970-01-01"}, set()),
        ({"at": "2024-03-01"}, {3}),
        ({"type": "lt", "key": "a b.c:d/e-f", "value": 1}, {3}),
        ({"type": "ne", "key": "lang", "value": "en"}, {2, 3, 4}),
        ({"type": "nin", "key": "tags", "value": ["a"]}, {2, 3, 4}),
        ({"type": "or", "filters": [{"lang": "de"}, {"type": "and", "filters": BETWEEN}]}, {2, 3}),
    ):
        seen = scope(where=where)
        assert set(versions(await store.search_dense("dense", [1, 0, 0, 0], seen, 10))) == expected, where
        assert set(versions(await store.search_sparse("dense", "word", seen, 10))) == expected, where


async def test_a_repeated_upsert_replaces_the_point(store: VectorStore) -> None:
    await store.upsert_points("dense", [make_point(1, "apple", (1, 0, 0, 0), attributes={"lang": "en"})])
    await store.upsert_points("dense", [make_point(1, "apple", (1, 0, 0, 0), attributes={"lang": "en"})])
    assert await store.count_points("dense") == 1
    await store.upsert_points("dense", [make_point(1, "pear", (0, 1, 0, 0), version=9, ordinal=3)])
    (found,) = await store.search_dense("dense", [0, 1, 0, 0], scope(), 10)
    assert (found.version, found.ordinal) == (9, 3)
    assert await store.search_sparse("dense", "apple", scope(), 10) == []
    assert versions(await store.search_sparse("dense", "pear", scope(), 10)) == [9]
    assert await store.search_dense("dense", [1, 0, 0, 0], scope(where={"lang": "en"}), 10) == []


async def test_versions_are_deleted_with_all_their_points(store: VectorStore) -> None:
    points = [make_point(i, f"word w{i}", version=i % 3, ordinal=i // 3) for i in range(1500)]
    await store.upsert_points("dense", points)
    await store.delete_versions("dense", [1, 2, 777])
    assert await store.count_points("dense") == 500
    assert set(versions(await store.search_dense("dense", [1, 0, 0, 0], scope(), 1500))) == {0}
    assert await store.search_sparse("dense", "w1", scope(), 10) == []
    await store.delete_versions("dense", [])
    assert await store.count_points("dense") == 500


async def test_a_collection_keeps_its_language(store: VectorStore) -> None:
    spec = CollectionSpec("german", None, Bm25Options("german"))
    first = CollectionSpec("first", None, Bm25Options("english", version=1))
    await store.create_collection(first)
    await store.create_collection(spec)
    await store.create_collection(spec)
    assert {spec, first} <= {*await store.list_collections()}
    with pytest.raises(CollectionMismatchError, match="german"):
        await store.create_collection(CollectionSpec("german", None))
    for name in ("german", "words", "first"):
        await store.upsert_points(name, [make_point(1, "die Häuser", None), make_point(2, "house", None)])
    assert versions(await store.search_sparse("german", "Haus", scope(), 10)) == [1]
    assert versions(await store.search_sparse("german", "die", scope(), 10)) == [1]
    assert versions(await store.search_sparse("german", "die und", scope(), 10)) == [1]
    assert versions(await store.search_sparse("german", "die Tür", scope(), 10)) == []
    assert versions(await store.search_sparse("words", "Haus", scope(), 10)) == [1]
    assert versions(await store.search_sparse("first", "Haus", scope(), 10)) == []
    assert versions(await store.search_sparse("first", "houses", scope(), 10)) == [2]
    assert versions(await store.search_sparse("words", "houses", scope(), 10)) == [2]


async def test_vectors_are_read_by_the_ids_of_their_points(store: VectorStore) -> None:
    points = [make_point(number, vector=(number, 1, 0, 0)) for number in range(70)]
    await store.upsert_points("dense", points)
    ids = [point.id for point in points]
    found = await store.read_vectors("dense", [*ids, str(uuid.UUID(int=1000))])
    assert found.keys() == set(ids)
    for number, id_ in enumerate(ids):
        length = (number**2 + 1) ** 0.5
        assert list(found[id_]) == pytest.approx([number / length, 1 / length, 0, 0], abs=1e-6)
    assert await store.read_vectors("dense", []) == {}
    with pytest.raises(ValueError, match="no dense vectors"):
        await store.read_vectors("words", ids)
    with pytest.raises(ValueError, match="UUID"):
        await store.read_vectors("dense", ["1"])


async def test_no_points_and_odd_points_are_fine(store: VectorStore) -> None:
    await store.upsert_points("dense", [])
    await store.flush_collection("dense")
    assert await store.search_dense("dense", [1, 0, 0, 0], scope(), 10) == []
    await store.upsert_points("dense", [make_point(1, "", (0, 0, 0, 0), version=2**63 - 1), make_point(2, "the")])
    assert await store.count_points("dense") == 2
    assert await store.search_sparse("dense", "", scope(), 10) == []


async def test_writes_are_applied_in_the_order_of_their_calls(store: VectorStore) -> None:
    calls = []
    for round_ in range(20):
        calls.append(store.upsert_points("dense", [make_point(i, version=round_) for i in range(100)]))
        if round_ % 3 == 0:
            calls.append(store.delete_versions("dense", [round_]))
    await asyncio.gather(*calls)
    assert await store.count_points("dense") == 100
    found = await store.search_dense("dense", [1, 0, 0, 0], scope(), 100)
    assert set(versions(found)) == {19}


async def test_searches_and_writes_go_on_while_the_collection_is_optimized(store: VectorStore) -> None:
    points = [make_point(i, f"word w{i}", (i % 97, i % 89, 1, 0), version=i % 10) for i in range(6000)]
    await store.upsert_points("dense", points[:4000])
    optimizing = asyncio.create_task(store.optimize_collection("dense"))
    for start in range(4000, 6000, 100):
        await store.upsert_points("dense", points[start : start + 100])
        assert versions(await store.search_sparse("dense", f"w{start + 50}", scope(), 1)) == [(start + 50) % 10]
    await store.delete_versions("dense", [3, 4])
    await store.upsert_points("dense", [make_point(4, "again", (0, 0, 0, 1), version=4)])
    await optimizing
    assert await store.count_points("dense") == 4801
    assert versions(await store.search_dense("dense", [0, 0, 0, 1], scope(), 1)) == [4]
    found = await store.search_dense("dense", [1, 1, 1, 0], scope(), 6000)
    assert len(found) == 4801
    assert set(versions(found)) == {0, 1, 2, 4, 5, 6, 7, 8, 9}
    await store.optimize_collection("dense")
    assert await store.count_points("dense") == 4801
