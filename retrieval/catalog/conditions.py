"""Filters of lists as conditions of SQL over the newest versions `v`. Pure.

A condition may hold for more documents than the filter matches, never for fewer: whoever reads the rows compares them
exactly. SQLite spares it the documents that are far off. Everything that a client said is a parameter.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from retrieval.filters import Combination, Comparison, Filter, Scalar, read_instant

_MARGIN: Final = 1e-12
"""How far SQLite's reading of a decimal number may be off, as a part of it: it promises 15 digits."""
_LEAST_MARGIN: Final = 1e-300


@dataclass(frozen=True, slots=True)
class SqlCondition:
    """A condition for a WHERE clause over the newest versions `v`: `values` are the parameters of the `?` in `sql`, in
    their order."""

    sql: str
    values: tuple[str | float, ...] = ()


ANY: Final = SqlCondition("1")


def combine_conditions(operator: str, conditions: Sequence[SqlCondition]) -> SqlCondition:
    """Join conditions: with the operator `AND`, all must hold; with `OR`, at least one. `conditions` is not empty."""
    if any(each == ANY for each in conditions):
        if operator == "OR":
            return ANY
        conditions = [each for each in conditions if each != ANY] or [ANY]
    sql = f" {operator} ".join(f"({each.sql})" for each in conditions)
    return SqlCondition(sql, tuple(value for each in conditions for value in each.values))


def build_state_condition(state: str | None) -> SqlCondition:
    """Return the condition that the version has this `VersionState`; None: a condition that always holds (`ANY`)."""
    return ANY if state is None else SqlCondition("v.state = ?", (state,))


def build_filter_condition(node: Filter | None) -> SqlCondition:
    """Return a condition that holds for every version whose metadata match the filter, and perhaps for others: the
    caller must apply `retrieval.filters.matches_filter` to each row that it reads. For None, and for `ne` and `nin`,
    the condition always holds."""
    if node is None:
        return ANY
    if isinstance(node, Combination) and not node.filters:
        return ANY
    if isinstance(node, Combination):
        return combine_conditions(node.operator.upper(), [build_filter_condition(each) for each in node.filters])
    if node.operator in ("ne", "nin"):
        return ANY
    condition = _build_ordered(node) if node.operator not in ("eq", "in") else _build_equal(node.values)
    if condition == ANY:
        return ANY
    # A list has a row for each of its values, and any other value has one. No key has a quote in it (see KEY).
    sql = f"EXISTS (SELECT 1 FROM json_each(v.metadata, ?) AS j WHERE {condition.sql})"
    return SqlCondition(sql, (f'$."{node.key}"', *condition.values))


def _build_ordered(node: Comparison) -> SqlCondition:
    value = node.values[0]
    if isinstance(value, str):
        return _build_dated(node.operator, read_instant(value) or 0)
    bound = float(value)
    comparison, limit = (">=", _lower(bound)) if node.operator in ("gt", "gte") else ("<=", _raise(bound))
    return SqlCondition(f"j.type IN ('integer', 'real') AND CAST(j.value AS REAL) {comparison} ?", (limit,))


def _build_dated(operator: str, instant: int) -> SqlCondition:
    """Compare the days alone: with its zone, an instant may be of the day before or after."""
    is_lower = operator in ("gt", "gte")
    try:
        day = datetime(1970, 1, 1) + timedelta(milliseconds=instant, days=-1 if is_lower else 1)  # noqa: DTZ001 - a day
    except OverflowError:
        return SqlCondition("j.type = 'text'")
    comparison = ">=" if is_lower else "<="
    return SqlCondition(f"j.type = 'text' AND substr(j.value, 1, 10) {comparison} ?", (day.date().isoformat(),))


def _build_equal(values: Sequence[Scalar]) -> SqlCondition:
    texts = [value for value in values if isinstance(value, str)]
    booleans = [value for value in values if isinstance(value, bool)]
    numbers = [float(value) for value in values if not isinstance(value, bool | str)]
    if not all(map(_is_plain, texts)):
        return ANY
    conditions = []
    if texts:
        conditions.append(
            SqlCondition("j.type = 'text' AND j.value IN (SELECT value FROM json_each(?))", (json.dumps(texts),))
        )
    if booleans:
        types = ", ".join(sorted({"'true'" if value else "'false'" for value in booleans}))
        conditions.append(SqlCondition(f"j.type IN ({types})"))
    if numbers:
        between = "j.type IN ('integer', 'real') AND CAST(j.value AS REAL) BETWEEN ? AND ?"
        conditions.append(SqlCondition(between, (_lower(min(numbers)), _raise(max(numbers)))))
    return combine_conditions("OR", conditions)


def _is_plain(text: str) -> bool:
    """Whether SQLite surely reads the text from JSON as Python does: it has no NUL, and no half of a surrogate pair."""
    return "\0" not in text and not any("\ud800" <= each <= "\udfff" for each in text)


def _lower(number: float) -> float:
    return number - abs(number) * _MARGIN - _LEAST_MARGIN


def _raise(number: float) -> float:
    return number + abs(number) * _MARGIN + _LEAST_MARGIN
