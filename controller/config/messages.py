"""Validation errors of pydantic in plain words. Pure."""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeGuard

from pydantic import TypeAdapter

from contract.desired import ModelName
from contract.keys import KeyName
from controller.redaction import is_secret, mask_text

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

_SHOWN_CHARS: Final = 60
_SECRETS_BELOW: Final = ("env", "extra_args", "headers", "command")
_NAME_WORDS: Final[Mapping[str, str]] = {
    TypeAdapter(name).json_schema()[
        "pattern"
    ]: f"must begin with a letter or digit and hold only letters, digits and {other_characters}"
    for name, other_characters in ((ModelName, ". _ : / @ + -"), (KeyName, ". _ @ -"))
}
"""Name pattern to its explanation in words."""


def suggest_name(word: str, known_words: Iterable[str]) -> str:
    """Return `; did you mean ...?` for the known word that is most similar, or that ends with an underscore and `word`,
    to append to a message; an empty text where there is none."""
    words = sorted(known_words)
    near_words = difflib.get_close_matches(word.lower(), words, n=1, cutoff=0.6)
    near_words = near_words or [each for each in words if each.endswith(f"_{word.lower()}")]
    return f"; did you mean `{near_words[0]}`?" if near_words else ""


def kind_of(value: object) -> str:
    """Return the kind of a value from YAML or JSON in words: `true or false`, `a number`, `a string`, `a mapping`, `a
    list`, or `null` for None."""
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, (int, float)):
        return "a number"
    if isinstance(value, str):
        return "a string"
    if isinstance(value, Mapping):
        return "a mapping"
    return "null" if value is None else "a list"


def shown_value(value: object) -> str:
    """Return a value from YAML or JSON as an error message shows it. A number stays as it is, and a boolean is `true`
    or `false`. A text of at most 60 printable characters is put in backquotes, with the secrets masked that it marks as
    such (see `mask_text`). Every other value becomes its kind (see `kind_of`). A secret that nothing marks is shown:
    use `kind_of` for fields that hold secrets."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float)):
        return str(value)
    if _is_short_text(value):
        return f"`{mask_text(value)}`"
    return kind_of(value)


def typed_value(value: object) -> str:
    """Return the value as `shown_value` does, except that a text of at most 60 printable characters without secrets
    becomes `the text` and the text in double quotes, so that `the text "2"` differs from the number 2."""
    if _is_short_text(value) and mask_text(value) == value:
        return f"the text {json.dumps(value, ensure_ascii=False)}"
    return shown_value(value)


def _is_short_text(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and len(value) <= _SHOWN_CHARS and value.isprintable()


_Shown: TypeAlias = Callable[[object], str]
_Words: TypeAlias = Callable[[Any, Mapping[str, Any], _Shown], str]
"""Builds a message from the value, pydantic's error context, and the function that shows values."""


def _must_be(expected: str) -> _Words:
    """Return the message of a setting that is always given as text, such as an environment variable."""
    return lambda value, _, show: f"must be {expected}, is {show(value)}"


def _must_have_type(expected: str) -> _Words:
    """Return the message of a value with a wrong type: a quoted number is shown as a text."""
    return lambda value, _, show: f"must be {expected}, is {typed_value(value) if show is shown_value else show(value)}"


def _string(value: object, _: Mapping[str, Any], _show: _Shown) -> str:
    quotes = ": put it in quotes" if isinstance(value, (bool, int, float)) else ""
    return f"must be a string, is {kind_of(value)}{quotes}"


def _pattern(value: object, ctx: Mapping[str, Any], show: _Shown) -> str:
    pattern = str(ctx["pattern"])
    if pattern in _NAME_WORDS:
        return f"{_NAME_WORDS[pattern]}; is {show(value)}"
    if pattern.startswith("^https?://"):
        return f"must be an http:// or https:// address without a query, is {show(value)}"
    return f"must have the form {pattern}, is {show(value)}"


def _one_of(value: object, ctx: Mapping[str, Any], show: _Shown) -> str:
    expected = str(ctx["expected"])
    hint = (
        suggest_name(value, expected.replace(" or ", ", ").replace("'", "").split(", ")) if type(value) is str else ""
    )
    return f"must be {expected.replace(chr(39), '`')}, is {show(value)}{hint}"


_WORDS: Final[Mapping[str, _Words]] = {
    "missing": lambda _value, _ctx, _show: "is required",
    "string_type": _string,
    "string_pattern_mismatch": _pattern,
    "literal_error": _one_of,
    "enum": _one_of,
    "string_too_short": lambda _value, ctx, _show: f"must have at least {ctx['min_length']} character(s)",
    "string_too_long": lambda _value, ctx, _show: f"must have at most {ctx['max_length']} characters",
    "too_short": lambda _value, ctx, _show: f"must have at least {ctx['min_length']} item(s)",
    "too_long": lambda _value, ctx, _show: f"must have at most {ctx['max_length']} items",
    "greater_than": lambda value, ctx, show: f"must be more than {ctx['gt']:g}, is {show(value)}",
    "greater_than_equal": lambda value, ctx, show: f"must be at least {ctx['ge']:g}, is {show(value)}",
    "less_than": lambda value, ctx, show: f"must be less than {ctx['lt']:g}, is {show(value)}",
    "less_than_equal": lambda value, ctx, show: f"must be at most {ctx['le']:g}, is {show(value)}",
    "value_error": lambda _value, ctx, _show: str(ctx["error"]),
    "bool_parsing": _must_be("true or false"),
    **{f"int_{end}": _must_be("a whole number") for end in ("parsing", "from_float", "parsing_size")},
    "float_parsing": _must_be("a number"),
    "bool_type": _must_have_type("true or false"),
    "int_type": _must_have_type("a whole number"),
    "float_type": _must_have_type("a number"),
    **{name: _must_have_type("a list") for name in ("list_type", "tuple_type")},
    "dict_type": _must_have_type("a mapping"),
}


def explain_errors(error: ErrorDetails, *, is_hidden: bool | None = None) -> str:
    """Return one error of pydantic as the second half of a sentence whose first half names the field, such as `must be
    a number, is null`. The message shows the value unless it is a secret; then it shows the kind of the value.
    `is_hidden` says whether the value is a secret; None decides by the field's name and the value. An error type
    without words of its own gets pydantic's message."""
    describe = _WORDS.get(error["type"])
    if describe is None:
        return error["msg"][:1].lower() + error["msg"][1:]
    if is_hidden is None:
        is_hidden = _is_hidden(error)
    return describe(error["input"], error.get("ctx", {}), kind_of if is_hidden else shown_value)


def _is_hidden(error: ErrorDetails) -> bool:
    steps = [step for step in error["loc"] if isinstance(step, str)]
    return any(step in _SECRETS_BELOW or is_secret(step, error["input"]) for step in steps)


def meant_branch(branches: Mapping[str, Sequence[ErrorDetails]]) -> Sequence[ErrorDetails] | None:
    """Return the errors of the first branch of a union whose type fits the value. None means that no branch fits. Used
    to report that branch alone, and not all. `branches` maps each branch to its errors, as pydantic reports them."""
    for errors in branches.values():
        # A type error of an item inside the value does not exclude the branch.
        if not any(error["type"].endswith("_type") and isinstance(error["loc"][-1], str) for error in errors):
            return errors
    return None
