"""Reads values of a request and checks their types. Errors name the place, such as `input[2].role`. Pure.

Raises:
    RoundhouseError: `invalid_request`, from each function that reads a value; `param` is the place.
"""

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
    """Return, and do not raise, the RoundhouseError `invalid_request` for the value at `place`, which is its path in
    the request, such as `input[2].role`. `rule` completes the sentence, as in `must be a string`."""
    return RoundhouseError("invalid_request", f"`{place}` {rule}.", param=place)


def describe_value(value: Any) -> str:
    """Return the end of an error message: `it is missing` for None, else `it is` and at most 60 characters of the
    value's `repr`."""
    return "it is missing" if value is None else f"it is {value!r:.60}"


def require_value(value: Any, kind: type[_T], place: str) -> _T:
    """Return the value if it has exactly this type: true is no int. `kind`: str, int, bool, dict or list.

    Raises:
        RoundhouseError: `invalid_request` with `place`, the value's path in the request, as `param`, if the type is
            another one, also for None.
    """
    if type(value) is not kind:
        raise field_error(place, f"must be {_KINDS[kind]}; {describe_value(value)}")
    return value


def require_field(fields: Fields, name: str, kind: type[_T], place: str) -> _T:
    """Return the field `name` of the object `fields` if it has exactly this type: true is no int. `kind`: str, int,
    bool, dict or list. `place` is the object's path in the request, such as `input[2]`.

    Raises:
        RoundhouseError: `invalid_request` with `{place}.{name}` as `param`, if the type is another one or the field is
            missing or null.
    """
    value = fields.get(name)
    return value if type(value) is kind else require_value(value, kind, f"{place}.{name}")


def optional_field(fields: Fields, name: str, kind: type[_T], at: str = "") -> _T | None:
    """Return the field `name` if it has exactly this type (`kind`: str, int, bool, dict or list); None if it is missing
    or null. `at` is the path of the object `fields` in the request, followed by a dot, such as `reasoning.`; empty for
    the request itself.

    Raises:
        RoundhouseError: `invalid_request`, with the value's path as `param`, if it has not exactly this type.
    """
    value = fields.get(name)
    return value if value is None or type(value) is kind else require_value(value, kind, at + name)


def require_text(value: Any, place: str) -> str:
    """Return the value if it is a string that is not empty; one of blanks alone passes. Raises RoundhouseError
    `invalid_request` for any other value, also for None, with `place`, the value's path in the request, as `param`."""
    if type(value) is not str or not value:
        raise field_error(place, f"must be a string that is not empty; {describe_value(value)}")
    return value


def require_choice(value: Any, choices: Collection[str], place: str) -> str:
    """Return the value if it is one of these strings. Raises RoundhouseError `invalid_request` if not, also for None,
    with `place`, the value's path in the request, as `param`."""
    if type(value) is not str or value not in choices:
        raise choice_error(value, choices, place)
    return value


def choice_error(value: Any, choices: Iterable[str], place: str) -> RoundhouseError:
    """Return, and do not raise, the RoundhouseError `invalid_request` for a value that is not among the choices.
    `place`, the value's path in the request, is its `param`."""
    return field_error(place, f"must be one of {', '.join(choices)}; {describe_value(value)}")


def optional_number(fields: Fields, name: str) -> float | None:
    """Return a number from a top-level field of the request; None if it is missing or null. Raises RoundhouseError
    `invalid_request` for any other type, also for true and false."""
    value = fields.get(name)
    if value is not None and type(value) not in (int, float):
        raise field_error(name, f"must be a number; {describe_value(value)}")
    return value


def optional_count(fields: Fields, name: str, least: int, most: int | None = None) -> int | None:
    """Return a whole number from a top-level field of the request; None if it is missing or null. Both bounds are
    inclusive; `most` None: there is no upper bound. Raises RoundhouseError `invalid_request` for any other value."""
    value = optional_field(fields, name, int)
    if value is not None and (value < least or (most is not None and value > most)):
        bounds = f"from {least}" if most is None else f"from {least} to {most}"
        raise field_error(name, f"must be a whole number {bounds}; {describe_value(value)}")
    return value
