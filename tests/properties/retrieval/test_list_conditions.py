"""Conditions of lists in SQL: they hold wherever a filter matches, and nothing of a filter is ever SQL."""

from __future__ import annotations

import json
import re
import sqlite3

from hypothesis import given
from hypothesis import strategies as st

from retrieval.catalog.conditions import ANY, build_filter_condition
from retrieval.filters import Combination, Comparison, Filter, matches_filter
from retrieval.vector_store.base import AttributeValue
from tests.properties.retrieval.strategies import attributes, filters, keys, texts


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
def test_equality_of_plain_values_is_exact(
    key: str, value: str | int | bool, operator: str, found: dict[str, AttributeValue]
) -> None:
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
