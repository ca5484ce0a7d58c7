"""Both stores hold what a plain dictionary holds after the same calls, and find it."""

from __future__ import annotations

import asyncio
import tempfile
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retrieval.filters import Filter, matches_filter
from retrieval.vector_store.base import CollectionSpec, Point, SearchScope, VectorStore
from retrieval.vector_store.edge.store import EdgeStore
from retrieval.vector_store.server import ServerStore
from tests.fakes.fake_qdrant_server import FakeQdrantServer
from tests.properties.retrieval.strategies import attributes, filters
from tests.support.campaign import campaign_count

TENANTS = ("a", "b")
SPACES = ("", "vs_1")
WORDS = ("apple", "pear", "plum")
VECTORS = ((1.0, 0.0), (0.0, 1.0), (-1.0, 0.5), (0.6, 0.8))
SPEC = CollectionSpec("c", 2)


@dataclass
class Upsert:
    """Writes points."""

    points: list[Point]


@dataclass
class Delete:
    """Deletes versions."""

    versions: list[int]


@dataclass
class Look:
    """Searches in both ways, and counts."""

    scope: SearchScope
    vector: tuple[float, float]
    words: str
    limit: int


@dataclass
class Call:
    """Another method of the store: `flush`, `optimize`, `reopen` or `recreate`."""

    name: str


@dataclass
class Model:
    """What is stored, by the point's id."""

    points: dict[str, Point] = field(default_factory=dict)

    def select(self, scope: SearchScope) -> list[Point]:
        """The points that a search may return."""
        return [
            point
            for point in self.points.values()
            if point.tenant == scope.tenant
            and point.space in scope.spaces
            and point.version not in scope.hidden_versions
            and matches_filter(scope.filter, point.attributes)
        ]


points = st.builds(
    lambda number, tenant, space, version, words, vector, held: Point(
        str(uuid.UUID(int=number)), tenant, space, version, number, " ".join(words), vector, held
    ),
    st.integers(0, 30),
    st.sampled_from(TENANTS),
    st.sampled_from(SPACES),
    st.integers(0, 5),
    st.lists(st.sampled_from(WORDS), max_size=4),
    st.sampled_from(VECTORS),
    attributes,
)
optional_filters: st.SearchStrategy[Filter | None] = st.none() | filters
scopes = st.builds(
    SearchScope,
    st.sampled_from(TENANTS),
    st.sampled_from([("",), ("vs_1",), SPACES]),
    optional_filters,
    st.frozensets(st.integers(0, 5), max_size=3),
)
looks = st.builds(Look, scopes, st.sampled_from(VECTORS), st.sampled_from(WORDS), st.integers(1, 40))
operations = st.one_of(
    st.builds(Upsert, st.lists(points, max_size=12)),
    st.builds(Delete, st.lists(st.integers(0, 6), max_size=3)),
    looks,
    st.builds(Call, st.sampled_from(("flush", "optimize", "reopen", "recreate"))),
)
histories = st.lists(operations, min_size=3, max_size=15).map(lambda history: [*history, Call("reopen")])


@settings(max_examples=campaign_count(5, 300))
@pytest.mark.parametrize("kind", ["edge", "server"])
@given(st.lists(points, min_size=5, max_size=30), histories, st.lists(looks, min_size=3, max_size=6))
def test_a_store_is_a_dictionary(
    kind: str, first: list[Point], history: list[Upsert | Delete | Look | Call], last: list[Look]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        replay = _replay_on_edge if kind == "edge" else _replay_on_server
        asyncio.run(replay(Path(folder), [Upsert(first), *history, *last]))


async def _replay_on_edge(folder: Path, history: Sequence[Upsert | Delete | Look | Call]) -> None:
    store = await EdgeStore.open(folder)
    await store.create_collection(SPEC)
    model = Model()
    try:
        for operation in history:
            if operation == Call("reopen"):
                await store.close()
                store = await EdgeStore.open(folder)
            await _apply(store, model, operation)
    finally:
        await store.close()


async def _replay_on_server(folder: Path, history: Sequence[Upsert | Delete | Look | Call]) -> None:
    async with FakeQdrantServer(folder) as server:
        store = ServerStore.connect(server.url)
        await store.create_collection(SPEC)
        model = Model()
        for operation in history:
            if operation == Call("reopen"):
                await store.close()
                store = ServerStore.connect(server.url)
            await _apply(store, model, operation)
        await store.close()


async def _apply(store: VectorStore, model: Model, operation: Upsert | Delete | Look | Call) -> None:
    match operation:
        case Upsert(points):
            # One call with the same id twice is no call of ours; the last one would win in two calls.
            unique = {point.id: point for point in points}
            await store.upsert_points("c", list(unique.values()))
            model.points |= unique
        case Delete(versions):
            await store.delete_versions("c", versions)
            model.points = {key: point for key, point in model.points.items() if point.version not in versions}
        case Look():
            await _look(store, model, operation)
        case Call("flush"):
            await store.flush_collection("c")
        case Call("optimize"):
            await store.optimize_collection("c")
        case Call("recreate"):
            await store.delete_collection("c")
            await store.create_collection(SPEC)
            model.points.clear()
    assert await store.list_collections() == [SPEC]


async def _look(store: VectorStore, model: Model, look: Look) -> None:
    visible = model.select(look.scope)
    cosines = {(point.version, point.ordinal): _cosine(point.vector or (), look.vector) for point in visible}
    found = await store.search_dense("c", look.vector, look.scope, look.limit)
    scores = sorted(cosines.values(), reverse=True)[: look.limit]
    assert [each.score for each in found] == pytest.approx(scores, abs=1e-5)
    for each in found:
        assert cosines[each.version, each.ordinal] == pytest.approx(each.score, abs=1e-5)
    assert len({(each.version, each.ordinal) for each in found}) == len(found)

    holding = {(point.version, point.ordinal) for point in visible if look.words in point.text.split()}
    worded = await store.search_sparse("c", look.words, look.scope, look.limit)
    assert {(each.version, each.ordinal) for each in worded} <= holding
    assert len(worded) == min(len(holding), look.limit)
    for tenant in (None, *TENANTS):
        expected = sum(tenant in (None, point.tenant) for point in model.points.values())
        assert await store.count_points("c", tenant) == expected


def _cosine(left: Sequence[float], right: Sequence[float]) -> float:
    product = sum(a * b for a, b in zip(left, right, strict=True))
    return float(product / (sum(a * a for a in left) * sum(b * b for b in right)) ** 0.5)
