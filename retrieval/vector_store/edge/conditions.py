"""Filters in the JSON of Qdrant's REST interface to Qdrant Edge's objects. Knows what `retrieval.vector_store.payload`
writes, and nothing else of that JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from qdrant_edge import FieldCondition, Filter, MatchAny, MatchValue, RangeFloat

if TYPE_CHECKING:
    from qdrant_edge import ConditionType


def make_edge_filter(node: Mapping[str, Any]) -> Filter:
    """Return Qdrant Edge's object for a filter `{"must": [...], "should": [...], "must_not": [...]}`, each optional.

    A condition in a list is `{"key": ..., "match": {"value": ...}}`, the same with `{"any": [...]}`, `{"key": ...,
    "range": {"gte": ...}}`, or another filter. Raises ValueError for another clause in a filter, KeyError for a
    condition without `match`, and TypeError for an unknown bound of a range.
    """
    if unknown := set(node) - {"must", "should", "must_not"}:
        raise ValueError(f"unknown clauses of a filter: {sorted(unknown)}")
    return Filter(
        must=_make_conditions(node.get("must")),
        should=_make_conditions(node.get("should")),
        must_not=_make_conditions(node.get("must_not")),
    )


def _make_conditions(nodes: Sequence[Mapping[str, Any]] | None) -> list[ConditionType] | None:
    return None if nodes is None else [_make_condition(node) for node in nodes]


def _make_condition(node: Mapping[str, Any]) -> ConditionType:
    if "key" not in node:
        return make_edge_filter(node)
    if "range" in node:
        return FieldCondition(node["key"], range=RangeFloat(**node["range"]))
    match = node["match"]
    return FieldCondition(node["key"], match=MatchAny(match["any"]) if "any" in match else MatchValue(match["value"]))
