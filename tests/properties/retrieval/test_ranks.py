"""Ranks of numbers: what the index over comparisons of order holds."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from retrieval.filters import Comparison
from retrieval.vector_store.base import Point
from retrieval.vector_store.payload import make_attribute_filter, make_payload
from tests.properties.retrieval.strategies import keys, numbers


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
