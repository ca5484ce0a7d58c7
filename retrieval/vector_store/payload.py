"""What is stored with a vector, and the filters that select by it, in the JSON of Qdrant's REST interface. Pure.

Both stores hold the same payload: `tenant`, `space`, `version`, `ordinal`, and the attributes in two forms. `terms` has
one string per value of an attribute (`lang=s:en`, `year=n:2024.0`, `draft=b:true`), under one keyword index for all
attributes of all tenants: equality costs the same whatever attributes there are. `numbers` holds the numbers by name,
without an index, for comparisons of order; `ranks` has one integer per number, under one integer index, whose order is
that of the numbers of one name, nearly: it finds the few points whose numbers are then compared. `dates` holds the
strings that are dates, as milliseconds, with ranks of their own. Attributes are never
fields of their own, so no filter can name `tenant`.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

from retrieval.filters import KEY, LONGEST_TEXT, Combination, Comparison, Filter, Scalar, read_instant
from retrieval.vector_store.base import AttributeValue, Point, SearchScope

DENSE_VECTOR: Final = "dense"
SPARSE_VECTOR: Final = "bm25"

TENANT: Final = "tenant"
SPACE: Final = "space"
VERSION: Final = "version"
ORDINAL: Final = "ordinal"
TERMS: Final = "terms"
NUMBERS: Final = "numbers"
DATES: Final = "dates"
RANKS: Final = "ranks"
_NUMBER_BITS: Final = 41
"""Of a rank: sign, exponent and 29 bits of the number, about 9 digits. A hash of its name has the 12 bits above, so
that a rank is exact as a 64-bit float, which is what a range compares."""
_KEY_BITS: Final = 12
_OF_DATES: Final = "@"
"""Behind a key in ranks of dates: no key has one."""

HNSW_M: Final = 0
"""Edges of a graph over all tenants: there is none."""
HNSW_PAYLOAD_M: Final = 16
"""Edges per point of each tenant's own graph."""
HNSW_EF_CONSTRUCT: Final = 100
HNSW_FULL_SCAN_KIB: Final = 10_000
"""Tenants with fewer KiB of vectors (6,666 points of dimension 384) have no graph: all their vectors are compared."""


def make_payload(point: Point) -> dict[str, Any]:
    """Return the payload that is stored with a point: always `tenant`, `space`, `version` and `ordinal`, and `terms`
    (a list of strings), `numbers` and `dates` (lists of numbers by name) and `ranks` (a list of integers) unless they
    are empty; the module describes them.

    Attributes that no filter can name (see `retrieval.filters.KEY`) and strings that no filter can equal
    (`LONGEST_TEXT`) are left out. Raises OverflowError for an integer that is too large for a 64-bit float.
    """
    named = {key: value for key, value in point.attributes.items() if KEY.fullmatch(key)}
    payload: dict[str, Any] = {
        TENANT: point.tenant,
        SPACE: point.space,
        VERSION: point.version,
        ORDINAL: point.ordinal,
    }
    if terms := [term for key, value in named.items() for term in _make_terms(key, value)]:
        payload[TERMS] = terms
    numbers, dates = _select_numbers(named), _select_dates(named)
    if numbers:
        payload[NUMBERS] = numbers
    if dates:
        payload[DATES] = dates
    if numbers or dates:
        ranks = [_make_rank(key, number) for key, found in numbers.items() for number in found]
        payload[RANKS] = ranks + [_make_rank(key + _OF_DATES, each) for key, found in dates.items() for each in found]
    return payload


def make_tenant_filter(tenant: str) -> dict[str, Any]:
    """Return the filter, as JSON of Qdrant's REST interface, that selects all points of one tenant."""
    return {"must": [_equals(TENANT, tenant)]}


def make_versions_filter(versions: Sequence[int]) -> dict[str, Any]:
    """Return the filter, as JSON of Qdrant's REST interface, that selects the points of these versions. Where
    `versions` is empty, it selects no point."""
    return {"must": [_any_of(VERSION, list(versions))]}


def make_search_filter(scope: SearchScope) -> dict[str, Any]:
    """Return the filter, as JSON of Qdrant's REST interface, that selects the points that a search in this scope may
    return. Where `scope.spaces` is empty, it selects no point."""
    must = [_equals(TENANT, scope.tenant), _any_of(SPACE, list(scope.spaces))]
    if scope.filter is not None:
        must.append(make_attribute_filter(scope.filter))
    if not scope.hidden_versions:
        return {"must": must}
    return {"must": must, "must_not": [_any_of(VERSION, sorted(scope.hidden_versions))]}


def make_attribute_filter(node: Filter) -> dict[str, Any]:
    """Return the filter or condition, as JSON of Qdrant's REST interface, that selects the points whose attributes
    `retrieval.filters.matches_filter` accepts. `node` is as `retrieval.filters.parse_filter` returns it, which checks
    what is not checked here: an ordered comparison with a string that is no date raises ValueError."""
    if isinstance(node, Combination):
        clause = "must" if node.operator == "and" else "should"
        return {clause: [make_attribute_filter(each) for each in node.filters]}
    if node.operator in ("eq", "in"):
        return _has_any_term(node)
    if node.operator in ("ne", "nin"):
        return {"must_not": [_has_any_term(node)]}
    return _is_ordered(node)


def _has_any_term(node: Comparison) -> dict[str, Any]:
    terms = [_make_term(node.key, value) for value in node.values]
    return _equals(TERMS, terms[0]) if len(terms) == 1 else _any_of(TERMS, terms)


def _is_ordered(node: Comparison) -> dict[str, Any]:
    value, operator = node.values[0], node.operator
    is_date = isinstance(value, str)
    instant = read_instant(value) if isinstance(value, str) else None
    bound = float(value) if instant is None else instant
    ranked = node.key + _OF_DATES if is_date else node.key
    lowest = _hash_key(ranked) << _NUMBER_BITS
    highest = lowest + 2**_NUMBER_BITS - 1
    rank = _make_rank(ranked, bound)
    ranks = {"gte": rank, "lte": highest} if operator in ("gt", "gte") else {"gte": lowest, "lte": rank}
    # A key has no quote in it (see KEY), so it is one name of the path in quotes, whatever else is in it.
    numbers = {"key": f'{DATES if is_date else NUMBERS}."{node.key}"', "range": {operator: bound}}
    return {"must": [{"key": RANKS, "range": ranks}, numbers]}


def _make_rank(key: str, number: float) -> int:
    """Return an integer below 2**53. Of two numbers of one key, the larger has no smaller one."""
    bits: int = struct.unpack(">Q", struct.pack(">d", number + 0.0))[0]
    # The bits of floats are ordered as unsigned integers once the sign is turned, and all bits of negative ones.
    ordered = bits ^ (2**64 - 1 if bits >> 63 else 2**63)
    return _hash_key(key) << _NUMBER_BITS | ordered >> (64 - _NUMBER_BITS)


def _hash_key(key: str) -> int:
    return zlib.crc32(key.encode()) >> (32 - _KEY_BITS)


def _make_terms(key: str, value: AttributeValue) -> list[str]:
    values: Sequence[Scalar] = value if isinstance(value, list) else [value]
    return [_make_term(key, each) for each in values if not (isinstance(each, str) and len(each) > LONGEST_TEXT)]


def _make_term(key: str, value: Scalar) -> str:
    # "=" ends the key, for no key has one.
    if isinstance(value, bool):
        return f"{key}=b:{'true' if value else 'false'}"
    if isinstance(value, str):
        return f"{key}=s:{value}"
    return f"{key}=n:{float(value) + 0.0!r}"  # + 0.0: 0 and -0.0 are equal


def _select_numbers(attributes: Mapping[str, AttributeValue]) -> dict[str, list[int | float]]:
    numbers: dict[str, list[int | float]] = {}
    for key, value in attributes.items():
        values: Sequence[Scalar] = value if isinstance(value, list) else [value]
        if found := [_normalize(each) for each in values if not isinstance(each, bool | str)]:
            numbers[key] = found
    return numbers


def _select_dates(attributes: Mapping[str, AttributeValue]) -> dict[str, list[int]]:
    dates: dict[str, list[int]] = {}
    for key, value in attributes.items():
        values: Sequence[Scalar] = value if isinstance(value, list) else [value]
        instants = [read_instant(each) for each in values if isinstance(each, str)]
        if found := [each for each in instants if each is not None]:
            dates[key] = found
    return dates


def _normalize(number: float) -> int | float:
    """Return the 64-bit float, as an integer where it is one: Qdrant reads integers exactly, and floats of more than 15
    digits to the last bit but one."""
    number = float(number)
    return int(number) if number.is_integer() and abs(number) <= 2**53 else number


def _equals(key: str, value: str) -> dict[str, Any]:
    return {"key": key, "match": {"value": value}}


def _any_of(key: str, values: list[str] | list[int]) -> dict[str, Any]:
    return {"key": key, "match": {"any": values}}
