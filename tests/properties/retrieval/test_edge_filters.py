"""Qdrant Edge selects exactly the points that `matches_filter` does."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from retrieval.filters import Combination, Comparison, Filter, matches_filter
from retrieval.vector_store.base import AttributeValue, Point, SearchScope
from retrieval.vector_store.bm25_options import Bm25Options
from retrieval.vector_store.edge.shard import Shard
from retrieval.vector_store.payload import make_payload, make_search_filter, make_tenant_filter
from tests.properties.retrieval.strategies import attributes, filters

LIMIT = 100


@pytest.fixture(scope="module")
def shard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shard]:
    """A shard without points."""
    shard = Shard.create(tmp_path_factory.mktemp("shard"), 2, Bm25Options())
    yield shard
    shard.close()


@settings(max_examples=150)
@given(st.lists(attributes, min_size=1, max_size=8), st.lists(filters, min_size=1, max_size=4))
@example([{"a": True}, {"a": 1}, {"a": 1.0}, {"a": "1"}, {"a": [1, 2]}], [Comparison("a", "eq", (1.0,))])
@example([{"a": True}, {"a": 1}, {}], [Comparison("a", "ne", (True,)), Comparison("a", "nin", (1, "1"))])
@example([{"a.b": 3}, {"a": 3}], [Comparison("a.b", "gte", (3,))])
@example([{"a": 2**53}, {"a": 2**53 + 1}], [Comparison("a", "gt", (2**53,)), Comparison("a", "eq", (2**53 + 1,))])
@example([{"tenant": "t"}, {}], [Comparison("tenant", "eq", ("t",))])
@example([{}, {"a": []}], [Combination("or", (Comparison("a", "ne", ("x",)), Comparison("a", "gt", (0,))))])
def test_a_search_finds_what_matches(
    shard: Shard, documents: list[dict[str, AttributeValue]], wanted: list[Filter]
) -> None:
    points = [
        Point(str(uuid.UUID(int=number)), "t", "", number, 0, "word", (1.0, 0.0), held)
        for number, held in enumerate(documents)
    ]
    shard.upsert(
        [{"id": point.id, "text": point.text, "payload": make_payload(point), "dense": True} for point in points],
        [[1.0, 0.5] for _ in points],
    )
    try:
        for node in wanted:
            expected = {number for number, held in enumerate(documents) if matches_filter(node, held)}
            where = make_search_filter(SearchScope("t", [""], node, frozenset()))
            found = shard.search_dense([1.0, 0.5], where, LIMIT)
            assert {version for version, _, _ in found} == expected
            assert shard.count(where) == len(expected)
            worded = shard.search_sparse("word", where, make_tenant_filter("t"), LIMIT)
            assert {version for version, _, _ in worded} == expected
    finally:
        shard.delete(make_tenant_filter("t"))
