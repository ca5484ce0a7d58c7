"""Filters over documents' metadata: OpenAI's filters of vector stores, and a short form. Pure.

`{"type": "eq", "key": "lang", "value": "en"}` compares one attribute; `{"type": "and", "filters": [...]}` combines.
The short form `{"lang": "en", "year": 2024}` means that all of these are equal; a list means any of its values.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, Literal

Scalar = str | int | float | bool
Operator = Literal["eq", "ne", "gt", "gte", "lt", "lte", "in", "nin"]

KEY: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_ .:/-]{0,63}")
"""Matches a whole name of an attribute: 1 to 64 characters."""
MOST_CONDITIONS: Final = 100
DEEPEST: Final = 8
MOST_VALUES: Final = 1000
LONGEST_TEXT: Final = 512
_DATE: Final = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)(?:[Tt ](\d\d):(\d\d)(?::(\d\d)(?:[.,](\d{1,9}))?)?(?:([Zz])|([+-])(\d\d)(?::?(\d\d))?)?)?",
    re.ASCII,
)
_EPOCH: Final = datetime(1970, 1, 1)  # noqa: DTZ001 - zones are subtracted as numbers, which no date overflows
_ORDERED: Final = ("gt", "gte", "lt", "lte")
_SET: Final = ("in", "nin")
_OPERATORS: Final = ("eq", "ne", *_ORDERED, *_SET)


class FilterError(ValueError):
    """A filter is malformed; a ValueError. The text says where (`filter.filters[1].value`) and what is expected."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One condition on one attribute of a document: `gt` means that the attribute is greater than the value.

    An attribute with a list matches where one of its values does, but `ne` and `nin` only where none of them equals one
    of `values`. A document without the attribute matches `ne` and `nin`, and nothing else. `gt`, `gte`, `lt` and `lte`
    compare numbers with numbers, and texts with texts, if both are dates (see `read_instant`). Numbers are compared as
    64-bit floats, as in JavaScript: 1 equals 1.0, and integers beyond 2**53 lose their last digits. Where numbers with
    fractions of more than 15 digits differ in their last bit alone, a vector store may order them either way.
    """

    key: str
    operator: Operator
    values: Sequence[Scalar]
    """One or more for `in` and `nin`, else exactly one. A number or the text of a date for `gt`, `gte`, `lt` and
    `lte`."""


@dataclass(frozen=True, slots=True)
class Combination:
    """Several filters joined. `and` matches where every filter does; `or` where at least one does."""

    operator: Literal["and", "or"]
    filters: Sequence[Filter]
    """Empty only for `{}` within a combination of a request: then the operator is `and`, and every document matches."""


Filter = Comparison | Combination


def parse_filter(value: object, where: str = "filter") -> Filter | None:
    """Parse a filter from a request's decoded JSON. It is a comparison `{"type": OPERATOR, "key": KEY, "value": VALUE}`
    (see `Comparison`), a combination `{"type": "and", "filters": [...]}` or with `or`, or the short form `{KEY: VALUE,
    ...}`, in which all must be equal and a list means any of its values.

    Return None for None and `{}`: every document matches. `where`: the field's name, with which the text of an error
    begins.

    Raises:
        FilterError: the filter is malformed, is nested deeper than `DEEPEST` levels, has more than `MOST_CONDITIONS`
            comparisons, a list of values that is empty or longer than `MOST_VALUES`, or a string longer than
            `LONGEST_TEXT` characters.
    """
    if value is None or value == {}:
        return None
    parsed = _parse(value, where, 1)
    if _count(parsed) > MOST_CONDITIONS:
        raise FilterError(f"{where}: has more than {MOST_CONDITIONS} comparisons")
    return parsed


def read_instant(text: str) -> int | None:
    """Return the milliseconds from 1970 to a date (`2024-03-01`: its first moment) or a date and time
    (`2024-03-01T10:00:00.5+02:00`) of ISO 8601, cut to whole ones; without a zone in UTC. None: the text is neither."""
    found = _DATE.fullmatch(text)
    if found is None:
        return None
    year, month, day, hour, minute, second = (int(each or 0) for each in found.groups()[:6])
    fraction, _, sign, hours, minutes = found.groups()[6:]
    try:
        moment = datetime(year, month, day, hour, minute, second)  # noqa: DTZ001 - as above
    except ValueError:
        return None
    offset = timedelta(hours=int(hours or 0), minutes=int(minutes or 0))
    if offset >= timedelta(days=1) or int(minutes or 0) > 59:
        return None
    since = (moment - _EPOCH) // timedelta(milliseconds=1) + int((fraction or "")[:3].ljust(3, "0"))
    return since - (offset if sign != "-" else -offset) // timedelta(milliseconds=1)


def matches_filter(node: Filter | None, attributes: Mapping[str, Any]) -> bool:
    """Return whether a document with these attributes matches; True where `node` is None. Every vector store must give
    a filter this meaning. Never raises for attributes that `check_metadata` accepts."""
    if node is None:
        return True
    if isinstance(node, Combination):
        results = (matches_filter(each, attributes) for each in node.filters)
        return all(results) if node.operator == "and" else any(results)
    found = attributes.get(node.key)
    candidates = found if isinstance(found, list) else [] if found is None else [found]
    if node.operator in ("ne", "nin"):
        return not any(_equal(candidate, value) for candidate in candidates for value in node.values)
    return any(_compare(node.operator, candidate, value) for candidate in candidates for value in node.values)


def _parse(value: object, where: str, depth: int) -> Filter:
    if not isinstance(value, dict):
        raise FilterError(f"{where}: must be an object")
    if depth > DEEPEST:
        raise FilterError(f"{where}: is nested deeper than {DEEPEST}")
    kind = value.get("type")
    if kind in ("and", "or") and "filters" in value:
        return _parse_combination(value, where, depth)
    if "type" in value and "key" in value:
        return _parse_comparison(value, where)
    return _parse_short(value, where)


def _parse_combination(value: Mapping[str, Any], where: str, depth: int) -> Combination:
    _check_fields(value, ("type", "filters"), where)
    filters = value["filters"]
    if not isinstance(filters, list) or not filters:
        raise FilterError(f"{where}.filters: must be a list with at least one filter")
    if len(filters) > MOST_CONDITIONS:
        raise FilterError(f"{where}.filters: has more than {MOST_CONDITIONS} filters")
    parsed = [_parse(each, f"{where}.filters[{index}]", depth + 1) for index, each in enumerate(filters)]
    return Combination(value["type"], tuple(parsed))


def _parse_comparison(value: Mapping[str, Any], where: str) -> Comparison:
    _check_fields(value, ("type", "key", "value"), where)
    operator, key, operand = value["type"], value["key"], value.get("value")
    if operator not in _OPERATORS:
        raise FilterError(f"{where}.type: must be one of {', '.join((*_OPERATORS, 'and', 'or'))}")
    if not isinstance(key, str) or not KEY.fullmatch(key):
        raise FilterError(f"{where}.key: must match {KEY.pattern}")
    if operator in _SET:
        return Comparison(key, operator, _parse_list(operand, f"{where}.value"))
    scalar = _parse_scalar(operand, f"{where}.value")
    if operator in _ORDERED and (
        isinstance(scalar, bool) or (isinstance(scalar, str) and read_instant(scalar) is None)
    ):
        expected = "a number, a date (2024-03-01) or a date and time (2024-03-01T10:00:00Z)"
        raise FilterError(f"{where}.value: must be {expected} for {operator}")
    return Comparison(key, operator, (scalar,))


def _parse_short(value: Mapping[str, Any], where: str) -> Filter:
    comparisons: list[Filter] = []
    for key, operand in value.items():
        if not KEY.fullmatch(key):
            raise FilterError(f"{where}: the attribute {key!r:.80} must match {KEY.pattern}")
        if isinstance(operand, list):
            comparisons.append(Comparison(key, "in", _parse_list(operand, f"{where}.{key}")))
        else:
            comparisons.append(Comparison(key, "eq", (_parse_scalar(operand, f"{where}.{key}"),)))
    return comparisons[0] if len(comparisons) == 1 else Combination("and", tuple(comparisons))


def _parse_list(value: object, where: str) -> tuple[Scalar, ...]:
    if not isinstance(value, list) or not value:
        raise FilterError(f"{where}: must be a list with at least one value")
    if len(value) > MOST_VALUES:
        raise FilterError(f"{where}: has more than {MOST_VALUES} values")
    return tuple(_parse_scalar(each, f"{where}[{index}]") for index, each in enumerate(value))


def _parse_scalar(value: object, where: str) -> Scalar:
    if isinstance(value, str):
        if len(value) > LONGEST_TEXT:
            raise FilterError(f"{where}: is longer than {LONGEST_TEXT} characters")
        return value
    if isinstance(value, bool) or (isinstance(value, int | float) and _is_finite(value)):
        return value
    raise FilterError(f"{where}: must be a string, a finite number or a boolean")


def _is_finite(number: float) -> bool:
    try:
        return math.isfinite(number)
    except OverflowError:  # an integer that no float holds
        return False


def _check_fields(value: Mapping[str, Any], known: Sequence[str], where: str) -> None:
    if unknown := [key for key in value if key not in known]:
        raise FilterError(f"{where}: has the unknown field {unknown[0]!r:.80}")


def _count(node: Filter) -> int:
    return 1 if isinstance(node, Comparison) else sum(_count(each) for each in node.filters)


def _equal(candidate: object, value: Scalar) -> bool:
    if isinstance(candidate, bool) or isinstance(value, bool):
        return candidate is value
    if isinstance(candidate, str) or isinstance(value, str):
        return candidate == value
    return isinstance(candidate, int | float) and float(candidate) == float(value)


def _compare(operator: Operator, candidate: object, value: Scalar) -> bool:
    if operator in ("eq", "in"):
        return _equal(candidate, value)
    number, bound = _read_ordered(candidate), _read_ordered(value)
    if number is None or bound is None or isinstance(candidate, str) != isinstance(value, str):
        return False
    if operator == "gt":
        return number > bound
    if operator == "gte":
        return number >= bound
    return number < bound if operator == "lt" else number <= bound


def _read_ordered(value: object) -> float | None:
    """Return what is compared of a number or a date; None for what has no order."""
    if isinstance(value, str):
        return read_instant(value)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
