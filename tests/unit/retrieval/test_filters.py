"""Filters: both forms, what they mean, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from retrieval.filters import FilterError, matches_filter, parse_filter

ATTRIBUTES = {"lang": "en", "year": 2024, "price": 1.5, "draft": False, "tags": ["a", "b"]}


@pytest.mark.parametrize(
    ("value", "matches"),
    [
        (None, True),
        ({}, True),
        ({"lang": "en"}, True),
        ({"lang": "de"}, False),
        ({"lang": ["de", "en"]}, True),
        ({"lang": "en", "year": 2023}, False),
        ({"year": 2024.0}, True),
        ({"draft": 0}, False),
        ({"draft": False}, True),
        ({"tags": "b"}, True),
        ({"missing": "x"}, False),
        ({"type": "ne", "key": "missing", "value": "x"}, True),
        ({"type": "ne", "key": "tags", "value": "a"}, False),
        ({"type": "nin", "key": "lang", "value": ["de", "fr"]}, True),
        ({"type": "in", "key": "year", "value": [2023, 2024]}, True),
        ({"type": "gt", "key": "price", "value": 1.5}, False),
        ({"type": "gte", "key": "price", "value": 1.5}, True),
        ({"type": "lt", "key": "year", "value": 2025}, True),
        ({"type": "lte", "key": "lang", "value": 5}, False),
        (
            {
                "type": "or",
                "filters": [
                    {"type": "eq", "key": "lang", "value": "de"},
                    {"type": "and", "filters": [{"year": 2024}, {"draft": False}]},
                ],
            },
            True,
        ),
        # Attributes of these names are attributes still.
        ({"type": "eq"}, False),
    ],
)
def test_a_filter_matches(value: Any, matches: bool) -> None:
    assert matches_filter(parse_filter(value), ATTRIBUTES) is matches


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ([], "filter: must be an object"),
        ({'"': 1}, "the attribute '\"' must match"),
        ({"type": "eq", "key": "a"}, "filter.value: must be a string, a finite number or a boolean"),
        ({"type": "like", "key": "a", "value": "x"}, "filter.type: must be one of eq, ne"),
        ({"type": "gt", "key": "a", "value": "x"}, "filter.value: must be a number for gt"),
        ({"type": "gt", "key": "a", "value": True}, "filter.value: must be a number for gt"),
        ({"type": "in", "key": "a", "value": []}, "filter.value: must be a list with at least one value"),
        ({"type": "eq", "key": "a", "value": 1, "tenant": "b"}, "filter: has the unknown field 'tenant'"),
        ({"type": "and", "filters": []}, "filter.filters: must be a list with at least one filter"),
        ({"type": "and", "filters": [{"a": {}}]}, "filter.filters[0].a: must be a string"),
        ({"a": "x" * 513}, "filter.a: is longer than 512 characters"),
        ({"a": [1] * 1001}, "filter.a: has more than 1000 values"),
        ({f"a{number}": 1 for number in range(101)}, "filter: has more than 100 comparisons"),
    ],
)
def test_a_malformed_filter_is_refused_with_its_place(value: Any, problem: str) -> None:
    with pytest.raises(FilterError) as error:
        parse_filter(value)
    assert problem in str(error.value)


def test_a_filter_that_is_nested_too_deeply_is_refused() -> None:
    value: dict[str, Any] = {"a": 1}
    for _ in range(9):
        value = {"type": "and", "filters": [value]}
    with pytest.raises(FilterError, match="is nested deeper than 8"):
        parse_filter(value)
