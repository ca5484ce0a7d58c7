"""Check a call's arguments against the tool's JSON Schema, at bounded cost: the schema may be an MCP server's.

`jsonschema` is imported when the first schema is read, so that a gateway without tools does not pay for it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from contract.errors import RoundhouseError
from gateway.protocols.common.conversation import Fields

if TYPE_CHECKING:
    from jsonschema.exceptions import ValidationError
    from jsonschema.protocols import Validator

MOST_VALUES: Final = 10_000
"""Values in a call's arguments, inner ones included."""
DEEPEST: Final = 32
"""Objects and arrays within each other."""
MOST_STEPS: Final = 20_000
"""Keywords of a schema that one check applies."""
DEEPEST_SCHEMA: Final = 100
"""Objects and arrays within each other in a schema."""
LARGEST_SCHEMA: Final = 64 * 1024
"""Bytes of a schema, as JSON."""
_UNBOUNDED: Final = ("pattern", "patternProperties", "format")
"""Keywords that are left out: a regular expression may take any time. The server checks its own arguments again."""

_Errors: TypeAlias = "Iterator[ValidationError] | None"
_Keyword: TypeAlias = "Callable[..., _Errors]"


class SchemaProblem(Exception):  # noqa: N818 - it is a problem of the server's schema, which its reason says
    """A tool's schema cannot be used. The text says why, as a clause without a full stop."""


class ArgumentCheck:
    """Checks the arguments of one tool, in the event loop; make it in a thread, for that takes long.

    Regular expressions and formats are not checked: `pattern`, `patternProperties`, `format`, nor, beside
    `patternProperties`, `additionalProperties`.
    """

    def __init__(self, schema: Fields) -> None:
        """`schema`: JSON Schema, of the version that `$schema` names; without it of the newest, else of draft 4, which
        many servers write. References lead nowhere but to other parts of it. Its regular expressions may be of
        ECMA-262, as JSON Schema has them.

        Raises:
            SchemaProblem: the schema is not valid, has more than `LARGEST_SCHEMA` bytes, or is nested deeper than
                `DEEPEST_SCHEMA`.
        """
        from jsonschema.exceptions import SchemaError

        if not _is_within(schema, DEEPEST_SCHEMA, LARGEST_SCHEMA):
            raise SchemaProblem(f"its schema is nested deeper than {DEEPEST_SCHEMA}, or has too many values")
        if len(json.dumps(schema)) > LARGEST_SCHEMA:
            raise SchemaProblem(f"its schema is larger than {LARGEST_SCHEMA} bytes")
        try:
            kind = _find_version(schema)
        except SchemaError as error:
            raise SchemaProblem(f"its schema is not valid: {error.message:.200}") from None
        except Exception as error:  # noqa: BLE001 - whatever a server's schema makes of the library
            raise SchemaProblem(f"its schema cannot be read ({type(error).__name__})") from None
        self._steps = 0
        self._validator = self._make_validator(kind, schema)

    def check(self, arguments: Fields) -> None:
        """Do nothing where the arguments fit.

        Raises:
            RoundhouseError: `tool_arguments_invalid`, with the place of the first misfit in `param`
                (`params.path[0]`): they do not fit, have more than `MOST_VALUES` values, or are nested deeper than
                `DEEPEST`, or are not to be written as JSON (`check_texts`); or `tool_failed`: the schema cannot be
                applied, or takes too long.
        """
        _check_size(arguments)
        check_texts(arguments)
        try:
            self._steps = 0
            misfit: ValidationError | None = next(self._validator.iter_errors(arguments), None)
        except (_TooManyStepsError, RecursionError):
            raise RoundhouseError("tool_failed", "The tool's schema takes too long to check.") from None
        except Exception as error:
            message = f"The tool's schema cannot be applied ({type(error).__name__})."
            raise RoundhouseError("tool_failed", message) from error
        if misfit is not None:
            place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in misfit.absolute_path)
            message = f"The arguments do not fit the tool's schema: {misfit.message:.300}."
            raise RoundhouseError("tool_arguments_invalid", message, param=f"params{place}"[:200])

    def _make_validator(self, kind: Any, schema: Fields) -> Validator:
        """Return a validator that counts its steps."""
        from jsonschema.validators import extend
        from referencing import Registry

        def bounded(apply: _Keyword) -> _Keyword:
            def count_and_apply(*arguments: Any) -> _Errors:
                self._steps += 1
                if self._steps > MOST_STEPS:
                    raise _TooManyStepsError
                return apply(*arguments)

            return count_and_apply

        keywords = {name: bounded(apply) for name, apply in kind.VALIDATORS.items() if name not in _UNBOUNDED}
        keywords = dict.fromkeys(_UNBOUNDED, _apply_nothing) | keywords | {"uniqueItems": _check_unique}
        additional = keywords["additionalProperties"]

        def check_additional(validator: Any, value: Any, instance: Any, schema: Any) -> _Errors:
            return None if "patternProperties" in schema else additional(validator, value, instance, schema)

        keywords["additionalProperties"] = check_additional
        # An empty registry: a reference leads to another part of the schema, and never to the network.
        validator: Validator = extend(kind, keywords)(schema, registry=Registry())
        return validator


def _find_version(schema: Fields) -> Any:
    """Return the validator of the schema's version. Raises SchemaError: it is valid in none."""
    from jsonschema import FormatChecker
    from jsonschema.exceptions import SchemaError
    from jsonschema.validators import Draft4Validator, Draft202012Validator, validator_for

    # Of no formats: the library would have patterns be Python's regular expressions.
    no_formats = FormatChecker(formats=())
    kind = validator_for(schema, default=Draft202012Validator)
    try:
        kind.check_schema(schema, format_checker=no_formats)
    except SchemaError:
        if "$schema" in schema:
            raise
        try:
            Draft4Validator.check_schema(schema, format_checker=no_formats)
        except SchemaError:
            pass
        else:
            return Draft4Validator
        raise
    return kind


class _TooManyStepsError(Exception):
    pass


def _apply_nothing(*_: Any) -> None:
    return None


def _check_unique(_: Any, is_unique: Any, instance: Any, __: Any) -> Iterator[ValidationError]:
    """In linear time, which the library's own check does not take."""
    from jsonschema.exceptions import ValidationError

    if is_unique and isinstance(instance, list):
        seen = {json.dumps(each, sort_keys=True) for each in instance}
        if len(seen) < len(instance):
            yield ValidationError("the array has an element twice")


def _check_size(arguments: Fields) -> None:
    if not _is_within(arguments, DEEPEST, MOST_VALUES):
        message = f"The arguments have more than {MOST_VALUES} values, or are nested deeper than {DEEPEST}."
        raise RoundhouseError("tool_arguments_invalid", message, param="params")


def check_texts(arguments: Fields) -> None:
    """Raise RoundhouseError `tool_arguments_invalid` where arguments cannot be sent on as JSON in UTF-8: a text has
    half of a surrogate pair, or a number is none. Libraries fail at these, some with all else that is under way."""
    try:
        json.dumps(arguments, ensure_ascii=False, allow_nan=False).encode()
    except ValueError:
        message = "The arguments have a text with half of a surrogate pair, or a number that JSON does not have."
        raise RoundhouseError("tool_arguments_invalid", message, param="params") from None


def _is_within(value: Fields, deepest: int, most_values: int) -> bool:
    """Return whether an object has at most so many values, inner ones included, and levels."""
    count = 0
    waiting: list[tuple[object, int]] = [(value, 1)]
    while waiting:
        each, depth = waiting.pop()
        inner = list(each.values()) if isinstance(each, dict) else each if isinstance(each, list) else []
        count += len(inner)
        if count > most_values or depth > deepest:
            return False
        waiting.extend((one, depth + 1) for one in inner if isinstance(one, dict | list))
    return True
