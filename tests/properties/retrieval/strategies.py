"""Attributes and filters, drawn so that they meet: few keys, few values, and the values that are equal in one language
and not in another."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from retrieval.filters import Combination, Comparison, Filter, Scalar
from retrieval.vector_store.base import AttributeValue

KEYS = ("lang", "a.b", "a b", "a:b", "a/b-c", "a", "b", "tenant", "0", "numbers", "x.0", "terms", "a..b")
TEXTS = (
    "",
    "en",
    "1",
    "1.0",
    "true",
    "True",
    "n:1.0",
    "=s:en",
    "en=s:en",
    '"',
    "\\",
    "\x00",
    "ß",
    "日本",
    "2024-01-01",
)
NUMBERS = (0, -0.0, 1, 1.0, -1, 0.1, 2**53, 2**53 + 1, -(2**53) - 1, 2**63, 2**64, 10**30, 1e300, -1e-300, 2024)

keys = st.sampled_from(KEYS)
DATES = (
    "2024-01-01",
    "2024-01-01T00:00:00Z",
    "2024-01-01 02:00+02:00",
    "2023-12-31T19:00:00.000-0500",
    "2024-01-01T00:00:00.0009Z",
    "2024-01-01t00:00:00,001z",
    "0001-01-01T00:00:00+23:59",
    "9999-12-31T23:59:59.999999999-23:59",
    "1969-12-31T23:59:59.5Z",
)
dates = st.sampled_from(DATES) | st.datetimes().map(lambda moment: moment.isoformat())
NO_DATES = (
    "2024-13-01",
    "2024-02-30",
    "2024-1-1",
    "20240101",
    "2024-01-01T25:00",
    " 2024-01-01",
    "2024-01-01T00:00+24:00",
)
texts = st.sampled_from((*TEXTS, *NO_DATES)) | dates | st.text(max_size=3)
# Of up to 15 digits: more, a store may order either way (see `retrieval.filters.Comparison`).
_fractions = st.builds(
    lambda digits, power: float(f"{digits}e{power}"), st.integers(-(10**15), 10**15), st.integers(-22, 5)
)
numbers: st.SearchStrategy[int | float] = (
    st.sampled_from(NUMBERS) | st.integers(-3, 3) | st.integers(-(2**53), 2**53) | _fractions
)
scalars: st.SearchStrategy[Scalar] = texts | numbers | st.booleans()
attribute_values: st.SearchStrategy[AttributeValue] = (
    scalars | st.lists(texts, max_size=3) | st.lists(st.integers(-3, 3) | st.booleans(), max_size=3)
)
attributes: st.SearchStrategy[dict[str, AttributeValue]] = st.dictionaries(keys, attribute_values, max_size=5)


@st.composite
def _comparisons(draw: st.DrawFn) -> Filter:
    operator: Any = draw(st.sampled_from(("eq", "ne", "gt", "gte", "lt", "lte", "in", "nin")))
    if operator in ("in", "nin"):
        return Comparison(draw(keys), operator, tuple(draw(st.lists(scalars, min_size=1, max_size=4))))
    return Comparison(draw(keys), operator, (draw((numbers | dates) if operator not in ("eq", "ne") else scalars),))


def _combine(inner: st.SearchStrategy[Filter]) -> st.SearchStrategy[Filter]:
    return st.builds(Combination, st.sampled_from(("and", "or")), st.lists(inner, min_size=1, max_size=3).map(tuple))


filters: st.SearchStrategy[Filter] = st.recursive(_comparisons(), _combine, max_leaves=6)
