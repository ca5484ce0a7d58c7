"""Translates llama.cpp's and vLLM's own fields for structured output into those of the model's engine. Pure.

Each of the two engines ignores the other's fields. OpenAI's `response_format` works with both in chats, and with vLLM
alone in completions.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, Literal, NamedTuple, get_args

from controller.schema.errors import RoundhouseError
from controller.schema.routing import ModelRoute
from gateway.protocols.common.conversation import Fields
from gateway.protocols.common.field_reader import describe_value, field_error, require_value

Kind = Literal["json", "json_object", "choice", "grammar", "regex", "structural_tag"]
"""Kinds of constraint, named as in vLLM's `structured_outputs`."""

_HOLDER: Final = "structured_outputs"
"""vLLM's newer field, an object with one `Kind`. The older fields are `guided_*`."""
_KIND_OF_FIELD: Final[Mapping[str, Kind]] = {
    "grammar": "grammar",
    "json_schema": "json",
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
    "guided_json_object": "json_object",
}
CONSTRAINT_FIELDS: Final = (*_KIND_OF_FIELD, _HOLDER)
_FIELD_SET: Final = frozenset(CONSTRAINT_FIELDS)
_KINDS: Final = get_args(Kind)
_LLAMA: Final = ("llama_server", "llama_cpp")
_LLAMA_FIELDS: Final = ("grammar", "json_schema")
_VLLM: Final = ("vllm_serve", "vllm")
_RESPONSE_FORMAT: Final = "response_format"
_ESCAPES: Final = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"})


class _Constraint(NamedTuple):
    """One constraint on the answer's form."""

    kind: Kind
    value: Any
    field: str
    """Field of the request that sets the constraint."""


def adapt_constraints(
    fields: Fields, route: ModelRoute, *, is_chat: bool, format_name: str = _RESPONSE_FORMAT
) -> Fields:
    """Return the fields of a chat completion (`is_chat`) or a completion with the output constraint as the model's
    engine understands it; the same object if nothing must change. Fields for engines other than llama.cpp and vLLM pass
    unchanged and unchecked.

    The text of constraints is interpreted, so `fields` must be the whole body if it has any of `CONSTRAINT_FIELDS`.
    `format_name`: the client's name of `response_format`, for errors.

    Raises:
        RoundhouseError: `structured_output_unsupported`: llama.cpp has no such constraint (a regular expression or
            structural tags). `invalid_request`: the request has two constraints, or one of the wrong form.
    """
    if route.backend in _LLAMA:
        return _adapt_for_llama(fields, route.name, format_name, is_chat=is_chat)
    if route.backend in _VLLM and not _is_free(fields) and (constraint := _find_constraint(fields)) is not None:
        if constraint.field == _HOLDER:
            return fields
        return _without(fields, CONSTRAINT_FIELDS) | {_HOLDER: {constraint.kind: constraint.value}}
    return fields


def _adapt_for_llama(fields: Fields, model: str, format_name: str, *, is_chat: bool) -> Fields:
    constraint = None if _is_free(fields) else _find_constraint(fields)
    if _RESPONSE_FORMAT in fields and (constraint is not None or not is_chat):
        asked_format = _read_response_format(fields)
        if constraint is not None and asked_format is not None:
            raise _two_constraints(constraint.field, format_name)
        constraint = constraint or asked_format
    if constraint is None or constraint.field in _LLAMA_FIELDS:
        return fields
    return _without(fields, (*CONSTRAINT_FIELDS, _RESPONSE_FORMAT)) | _llama_fields(constraint, model)


def _is_free(fields: Fields) -> bool:
    return _FIELD_SET.isdisjoint(fields)


def _without(fields: Fields, names: tuple[str, ...]) -> Fields:
    return {name: value for name, value in fields.items() if name not in names}


def _find_constraint(fields: Fields) -> _Constraint | None:
    found = [
        _Constraint(kind, fields[name], name) for name, kind in _KIND_OF_FIELD.items() if _says_something(fields, name)
    ]
    holder = fields.get(_HOLDER)
    if holder is not None:
        kinds = require_value(holder, dict, _HOLDER)
        held = [_Constraint(kind, kinds[kind], _HOLDER) for kind in _KINDS if _says_something(kinds, kind)]
        if not held:
            raise field_error(_HOLDER, f"must have one of {', '.join(_KINDS)}; {describe_value(holder)}")
        found += held
    if len(found) > 1:
        raise _two_constraints(found[0].field, found[1].field)
    return found[0] if found else None


def _says_something(fields: Fields, name: str) -> bool:
    return fields.get(name) not in (None, "", False)


def _two_constraints(one: str, other: str) -> RoundhouseError:
    message = f"The answer can be held to one form: `{one}` and `{other}` ask for two."
    return RoundhouseError("invalid_request", message, param=other)


def _read_response_format(fields: Fields) -> _Constraint | None:
    asked = fields[_RESPONSE_FORMAT]
    kind = asked.get("type") if isinstance(asked, dict) else None
    if asked is None or kind == "text":
        return None
    if kind == "json_object":
        return _Constraint("json", asked.get("schema") or {"type": "object"}, _RESPONSE_FORMAT)
    outer = asked.get("json_schema") if isinstance(asked, dict) else None
    if kind == "json_schema" and isinstance(outer, dict) and "schema" in outer:
        return _Constraint("json", outer["schema"], _RESPONSE_FORMAT)
    rule = "must be of type text, json_object, or json_schema with `json_schema.schema`"
    raise field_error(_RESPONSE_FORMAT, f"{rule}; {describe_value(asked)}")


def _llama_fields(constraint: _Constraint, model: str) -> Fields:
    kind, value, field = constraint
    if kind == "json":
        return {"json_schema": _read_schema(value, field)}
    if kind == "json_object":
        return {"json_schema": {"type": "object"}}
    if kind == "grammar":
        return {"grammar": require_value(value, str, field)}
    if kind == "choice":
        return {"grammar": _write_choice(value, field)}
    word = "a regular expression" if kind == "regex" else "structural tags"
    forms = "a JSON Schema, a choice or a GBNF grammar"
    message = f"The answers of the model {model!r} can be held to {forms}, not to {word}."
    raise RoundhouseError("structured_output_unsupported", message, param=field)


def _read_schema(value: Any, field: str) -> Any:
    """Return a JSON Schema that is given as an object or, as vLLM permits, as its JSON."""
    schema = value
    if isinstance(value, str):
        try:
            schema = json.loads(value)
        except (ValueError, RecursionError):
            schema = None
    if not isinstance(schema, dict):
        raise field_error(field, f"must be a JSON Schema; {describe_value(value)}")
    return schema


def _write_choice(value: Any, field: str) -> str:
    """Return a GBNF grammar that permits exactly one of these texts."""
    texts = require_value(value, list, field)
    if not texts or not all(isinstance(text, str) and text for text in texts):
        raise field_error(field, f"must be an array of texts; {describe_value(value)}")
    return "root ::= " + " | ".join(f'"{text.translate(_ESCAPES)}"' for text in texts)
