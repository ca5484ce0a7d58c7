"""Filters and ranks: the vector store, the catalog and `matches_filter` agree."""

from __future__ import annotations

import contextlib
import json
import re
import sqlite3
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from retrieval.catalog.conditions import ANY, build_filter_condition
from retrieval.filters import Combination, Comparison, Filter, matches_filter, parse_filter
from retrieval.vector_store.base import AttributeValue, Point, SearchScope
from retrieval.vector_store.edge.shard_process import Shard
from retrieval.vector_store.payload import make_attribute_filter, make_payload, make_search_filter, make_tenant_filter
from retrieval.vector_store.tokenizer import Bm25Options
from tests.properties.retrieval.strategies import attributes, filters, keys, numbers, texts


def holds(node: Filter | None, found: dict[str, AttributeValue]) -> bool:
    """Whether the condition holds for a version with these attributes."""
    condition = build_filter_condition(node)
    with sqlite3.connect(":memory:") as db:
        [count] = db.execute(
            f"SELECT count(*) FROM (SELECT ? AS metadata) v WHERE {condition.sql}",
            (json.dumps(found), *condition.values),
        ).fetchone()
    db.close()
    return bool(count)


@given(filters, attributes)
def test_a_condition_holds_wherever_the_filter_matches(node: Filter, found: dict[str, AttributeValue]) -> None:
    if matches_filter(node, found):
        assert holds(node, found)


@given(keys, texts | st.booleans() | st.integers(-3, 3), st.sampled_from(("eq", "in")), attributes)
def test_equality_is_exact(key: str, value: str | int | bool, operator: str, found: dict[str, AttributeValue]) -> None:
    node = Comparison(key, "eq" if operator == "eq" else "in", (value,))
    if build_filter_condition(node) != ANY and all("\0" not in str(each) for each in found.values()):
        numbers = [each for each in _flatten(found) if isinstance(each, float)]
        if not numbers:
            assert holds(node, found) == matches_filter(node, found)


@given(filters)
def test_what_a_client_says_is_a_parameter(node: Filter) -> None:
    """The text of a condition has no string but the names of types, whatever the filter says."""
    condition = build_filter_condition(node)
    assert set(re.findall(r"'[^']*'", condition.sql)) <= {"'text'", "'true'", "'false'", "'integer'", "'real'"}
    assert condition.sql.count("?") == len(condition.values)


def test_texts_that_look_like_sql_are_compared() -> None:
    evil = "' OR 1=1; DROP TABLE versions; --"
    assert holds(Comparison("a", "eq", (evil,)), {"a": evil})
    assert not holds(Comparison("a", "eq", (evil,)), {"a": "b"})
    many = Comparison("a", "in", tuple(f"v{number}" for number in range(1000)))
    assert not holds(Combination("and", (many,) * 100), {"a": "w"})


def _flatten(found: dict[str, AttributeValue]) -> list[object]:
    return [each for value in found.values() for each in (value if isinstance(value, list) else [value])]


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


def rank_of(key: str, number: float) -> int:
    """The rank that is stored for an attribute's number."""
    ranks: list[int] = make_payload(Point("", "", "", 0, 0, "", None, {key: number}))["ranks"]
    return ranks[0]


@given(keys, numbers, numbers)
@example("a", -0.0, 0)
@example("a", -1e-300, 5e-324)
@example("a", 1.7976931348623157e308, -1.7976931348623157e308)
def test_the_larger_number_of_a_key_has_no_smaller_rank(key: str, left: float, right: float) -> None:
    if float(left) > float(right):
        left, right = right, left
    assert 0 <= rank_of(key, left) <= rank_of(key, right) < 2**53
    for operator, number, bound in (("lte", left, right), ("gte", right, left)):
        ranks = make_attribute_filter(Comparison(key, operator, (bound,)))["must"][0]["range"]  # type: ignore[arg-type]
        assert ranks["gte"] <= rank_of(key, number) <= ranks["lte"]


@given(st.floats(1e-3, 1e12))
def test_numbers_that_differ_by_a_millionth_differ_in_rank(number: float) -> None:
    assert rank_of("a", number) < rank_of("a", number * 1.000001)


@pytest.mark.parametrize("value", [{}, {"type": "and", "filters": [{}]}, {"type": "or", "filters": [{}, {"a": 1}]}])
def test_a_part_that_holds_always_is_a_condition(value: dict[str, Any]) -> None:
    condition = build_filter_condition(parse_filter(value))
    with contextlib.closing(sqlite3.connect(":memory:")) as db:
        versions = "(SELECT '{}' AS metadata) v"
        assert db.execute(f"SELECT 1 FROM {versions} WHERE {condition.sql}", condition.values).fetchall() == [(1,)]
