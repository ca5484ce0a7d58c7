"""Reads a request's values, each of its kind. What is wrong is refused at its place, such as `input[2].role`. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, Final, TypeVar

from controller.schema.errors import RoundhouseError
from gateway.protocols.common.conversation import Fields

_T = TypeVar("_T")
_KINDS: Final[dict[type, str]] = {
    str: "a string",
    int: "a whole number",
    bool: "true or false",
    dict: "an object",
    list: "an array",
}


def field_error(place: str, rule: str) -> RoundhouseError:
    """`rule` says what the value must be or cannot be, as in `must be a string`."""
    return RoundhouseError("invalid_request", f"`{place}` {rule}.", param=place)


def describe_value(value: Any) -> str:
    """What stands there instead."""
    return "it is missing" if value is None else f"it is {value!r:.60}"


def require_value(value: Any, kind: type[_T], place: str) -> _T:
    """A value of just that kind. Null counts as missing."""
    if type(value) is not kind:
        raise field_error(place, f"must be {_KINDS[kind]}; {describe_value(value)}")
    return value


def require_field(fields: Fields, name: str, kind: type[_T], place: str) -> _T:
    """The field of the object at `place`, a value of just that kind."""
    value = fields.get(name)
    return value if type(value) is kind else require_value(value, kind, f"{place}.{name}")


def optional_field(fields: Fields, name: str, kind: type[_T], at: str = "") -> _T | None:
    """The field, or None where it is missing or null. `at` is the place of `fields` with a dot behind."""
    value = fields.get(name)
    return value if value is None or type(value) is kind else require_value(value, kind, at + name)


def require_text(value: Any, place: str) -> str:
    """A string that is not empty."""
    if type(value) is not str or not value:
        raise field_error(place, f"must be a string that is not empty; {describe_value(value)}")
    return value


def require_choice(value: Any, choices: Collection[str], place: str) -> str:
    """One of these strings."""
    if type(value) is not str or value not in choices:
        raise choice_error(value, choices, place)
    return value


def choice_error(value: Any, choices: Iterable[str], place: str) -> RoundhouseError:
    """It is not among them."""
    return field_error(place, f"must be one of {', '.join(choices)}; {describe_value(value)}")


def optional_number(fields: Fields, name: str) -> float | None:
    """The number in a field of the request itself, or None where it is missing or null."""
    value = fields.get(name)
    if value is not None and type(value) not in (int, float):
        raise field_error(name, f"must be a number; {describe_value(value)}")
    return value


def optional_count(fields: Fields, name: str, least: int, most: int | None = None) -> int | None:
    """The whole number in a field of the request itself, within these bounds, or None where it is missing or null."""
    value = optional_field(fields, name, int)
    if value is not None and (value < least or (most is not None and value > most)):
        bounds = f"from {least}" if most is None else f"from {least} to {most}"
        raise field_error(name, f"must be a whole number {bounds}; {describe_value(value)}")
    return value
