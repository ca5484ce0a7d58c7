"""What is stored with a vector, and the filters over it."""

from __future__ import annotations

from typing import Any

import pytest

from retrieval.filters import parse_filter
from retrieval.vector_store.base import Point, SearchScope
from retrieval.vector_store.payload import make_attribute_filter, make_payload, make_search_filter


def payload_of(**attributes: Any) -> dict[str, Any]:
    """The payload of a point with these attributes."""
    return make_payload(Point("id", "t", "vs_1", 7, 3, "text", None, attributes))


def test_a_payload_names_what_searches_select_by() -> None:
    assert payload_of() == {"tenant": "t", "space": "vs_1", "version": 7, "ordinal": 3}


def test_attributes_are_terms_and_numbers_and_never_fields() -> None:
    payload = payload_of(tenant="other", year=2024, draft=True, tags=["a", "b"], sizes=[1, 2.5])
    assert payload["tenant"] == "t"
    assert payload["terms"] == [
        "tenant=s:other",
        "year=n:2024.0",
        "draft=b:true",
        "tags=s:a",
        "tags=s:b",
        "sizes=n:1.0",
        "sizes=n:2.5",
    ]
    assert payload["numbers"] == {"year": [2024], "sizes": [1, 2.5]}
    assert len(payload["ranks"]) == 3
    assert [type(each) for each in (*payload["numbers"]["year"], *payload["numbers"]["sizes"])] == [int, int, float]


def test_what_no_filter_can_ask_is_not_stored() -> None:
    payload = make_payload(Point("id", "t", "", 1, 0, "", None, {'a"b': "x", "a=b": 1, "long": "x" * 513, "empty": []}))
    assert payload.keys() == {"tenant", "space", "version", "ordinal"}


def test_an_integer_that_no_float_holds_is_refused() -> None:
    with pytest.raises(OverflowError):
        payload_of(huge=10**400)


def test_a_search_is_bound_to_its_tenant_and_spaces() -> None:
    assert make_search_filter(SearchScope("t", ["", "vs_1"], None, frozenset())) == {
        "must": [{"key": "tenant", "match": {"value": "t"}}, {"key": "space", "match": {"any": ["", "vs_1"]}}]
    }


def test_hidden_versions_and_filters_are_added() -> None:
    where = make_search_filter(SearchScope("t", [""], parse_filter({"lang": "en"}), frozenset({9, 3})))
    assert where["must"][2] == {"key": "terms", "match": {"value": "lang=s:en"}}
    assert where["must_not"] == [{"key": "version", "match": {"any": [3, 9]}}]


@pytest.mark.parametrize(
    ("asked", "condition"),
    [
        ({"lang": ["en", 1]}, {"key": "terms", "match": {"any": ["lang=s:en", "lang=n:1.0"]}}),
        (
            {"type": "ne", "key": "draft", "value": False},
            {"must_not": [{"key": "terms", "match": {"value": "draft=b:false"}}]},
        ),
        ({"a": -0.0}, {"key": "terms", "match": {"value": "a=n:0.0"}}),
        (
            {"type": "or", "filters": [{"a": "x"}, {"a": "y"}]},
            {
                "should": [
                    {"key": "terms", "match": {"value": "a=s:x"}},
                    {"key": "terms", "match": {"value": "a=s:y"}},
                ]
            },
        ),
    ],
)
def test_filters_become_conditions(asked: dict[str, Any], condition: dict[str, Any]) -> None:
    parsed = parse_filter(asked)
    assert parsed is not None
    assert make_attribute_filter(parsed) == condition


def test_a_comparison_of_order_has_an_index_to_begin_with_and_then_the_number_itself() -> None:
    parsed = parse_filter({"type": "gt", "key": "a b.c:d", "value": 2})
    assert parsed is not None
    ranks, numbers = make_attribute_filter(parsed)["must"]
    assert ranks["key"] == "ranks"
    assert 0 < ranks["range"]["gte"] < ranks["range"]["lte"] < 2**53
    assert numbers == {"key": 'numbers."a b.c:d"', "range": {"gt": 2.0}}
