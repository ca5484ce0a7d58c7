"""Reads values of a request and checks their types. Pure.

An error names the value's path in the request, such as `input[2].role`, as its `param`, here and wherever a request is
read. Functions that read a value raise RoundhouseError `invalid_request` if it is wrong.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, Final, Literal, TypeVar

from pydantic import BaseModel, ValidationError

from contract.errors import RoundhouseError
from gateway.protocols.common.conversation import Fields

_T = TypeVar("_T")
_M = TypeVar("_M", bound=BaseModel)
_KINDS: Final[dict[type, str]] = {
    str: "a string",
    int: "a whole number",
    bool: "true or false",
    dict: "an object",
    list: "an array",
}


def field_error(place: str, rule: str) -> RoundhouseError:
    """Return, and do not raise, the RoundhouseError `invalid_request` for the value at `place`. `rule` completes the
    sentence, as in `must be a string`."""
    return RoundhouseError("invalid_request", f"`{place}` {rule}.", param=place)


def describe_value(value: Any) -> str:
    """Return the end of an error message: `it is missing` for None, else `it is` and at most 60 characters of the
    value's `repr`."""
    return "it is missing" if value is None else f"it is {value!r:.60}"


def require_value(value: Any, kind: type[_T], place: str) -> _T:
    """Return the value at `place` if it has exactly this type: true is no int, and None is none of them. `kind`: str,
    int, bool, dict or list. Raises RoundhouseError `invalid_request` for another type."""
    if type(value) is not kind:
        raise field_error(place, f"must be {_KINDS[kind]}; {describe_value(value)}")
    return value


def require_field(fields: Fields, name: str, kind: type[_T], place: str) -> _T:
    """Return the field `name` of the object `fields` if it has exactly this type; else raise RoundhouseError
    `invalid_request`, as `require_value`. `place` is the object's path in the request, such as `input[2]`."""
    value = fields.get(name)
    return value if type(value) is kind else require_value(value, kind, f"{place}.{name}")


def optional_field(fields: Fields, name: str, kind: type[_T], at: str = "") -> _T | None:
    """Return the field `name` if it has exactly this type, as `require_value`; None if it is missing or null. `at` is
    the path of the object `fields` in the request, followed by a dot, such as `reasoning.`; empty for the request
    itself. Raises RoundhouseError `invalid_request` for another type."""
    value = fields.get(name)
    return value if value is None or type(value) is kind else require_value(value, kind, at + name)


def require_text(value: Any, place: str) -> str:
    """Return the value at `place` if it is a string that is not empty (one of blanks alone passes); else raise
    RoundhouseError `invalid_request`."""
    if type(value) is not str or not value:
        raise field_error(place, f"must be a string that is not empty; {describe_value(value)}")
    return value


def require_choice(value: Any, choices: Collection[str], place: str) -> str:
    """Return the value at `place` if it is one of these strings; else raise RoundhouseError `invalid_request`."""
    if type(value) is not str or value not in choices:
        raise choice_error(value, choices, place)
    return value


def choice_error(value: Any, choices: Iterable[str], place: str) -> RoundhouseError:
    """Return, and do not raise, the RoundhouseError `invalid_request` for a value that is not among the choices."""
    return field_error(place, f"must be one of {', '.join(choices)}; {describe_value(value)}")


def optional_number(fields: Fields, name: str) -> float | None:
    """Return a number, which true and false are not, from a top-level field of the request; None if it is missing or
    null. Raises RoundhouseError `invalid_request` for anything else."""
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


def read_model(model: type[_M], value: Any, place: str) -> _M:
    """Return the value at `place` as a pydantic model. Raises RoundhouseError `invalid_request`, whose `param` is the
    path of the first wrong value."""
    try:
        return model.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        at = ".".join((place, *map(str, first["loc"])))
        raise RoundhouseError("invalid_request", f"`{at}`: {first['msg']}.", param=at) from None


_THINKING: Final[dict[str, Literal["enabled", "disabled"] | None]] = {
    "default": None,
    "enabled": "enabled",
    "disabled": "disabled",
}


def read_thinking(value: Any) -> Literal["enabled", "disabled"] | None:
    """Return what a string in the field `thinking`, which is Roundhouse's own form, asks for; None for `default`.
    Raises RoundhouseError `invalid_request` for any value but these three."""
    return _THINKING[require_choice(value, _THINKING, "thinking")]


MOST_PAIRS: Final = 16
LONGEST_KEY: Final = 64
"""Maximum characters of a key."""
LONGEST_VALUE: Final = 512
"""Maximum characters of a value."""


def read_metadata(fields: Fields) -> dict[str, str]:
    """Return the `metadata` of a request; empty if it is missing or null. Raises RoundhouseError `invalid_request`
    unless it is an object of strings, with at most `MOST_PAIRS` (16) pairs, keys of `LONGEST_KEY` (64) and values of
    `LONGEST_VALUE` (512) characters, and without halves of surrogate pairs."""
    metadata: dict[str, str] = optional_field(fields, "metadata", dict) or {}
    if len(metadata) > MOST_PAIRS:
        raise field_error("metadata", f"must have at most {MOST_PAIRS} pairs; it has {len(metadata)}")
    for name, value in metadata.items():
        place = f"metadata.{name:.64}"
        if len(name) > LONGEST_KEY:
            raise field_error(place, f"must have a name of at most {LONGEST_KEY} characters")
        if len(require_value(value, str, place)) > LONGEST_VALUE:
            raise field_error(place, f"must be at most {LONGEST_VALUE} characters long; it has {len(value)}")
        if not (_is_unicode(name) and _is_unicode(value)):
            raise field_error("metadata", "must be texts without halves of surrogate pairs")
    return metadata


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
