"""Grammars (llama.cpp's GBNF) that an answer must follow. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final
from urllib.parse import unquote

from worker.errors import RequestError
from worker.schema import GenerationRequest
from worker.text.answer_text import Marks

ANY_OBJECT: Final[dict[str, Any]] = {"type": "object"}
MOST_REPETITIONS: Final = 2000
"""llama.cpp's limit. The library writes each repetition out."""

_COUNTS: Final = ("minItems", "maxItems", "minLength", "maxLength")
_DATA: Final = ("const", "enum", "default", "examples")
"""Keywords of a schema whose values are data."""
_BY_NAME: Final = ("properties", "patternProperties", "dependentSchemas", "$defs", "definitions")
"""Keywords of a schema whose values hold schemas by names, which are no keywords."""
_BRACES: Final = re.compile(r"\{(\d*),?(\d*)\}")
_ROOT: Final = re.compile(r'"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]|#[^\n]*|(?<![\w-])root(?![\w-])')
"""Matches a string, a character class or a comment of a grammar, or the name of its root rule."""
_ANY: Final = re.compile(r'(?<=^char ::= )\[\^"\\\\\]|(?<=^dot ::= ).*', re.MULTILINE)
"""Matches the library's rule for a character of a string. It permits raw control characters, which JSON forbids
there."""
_CHARACTER: Final = r'[^"\\\x00-\x1F\x7F]'


def schema_asked(response_format: Mapping[str, Any] | None) -> tuple[dict[str, Any] | None, str]:
    """Return the JSON Schema that `response_format` asks for, or None if it asks for plain text, and in either case the
    schema's place in the request. `json_object` without a schema gives ANY_OBJECT. Raises RequestError for an unknown
    type or a schema that is no object."""
    kind = response_format.get("type") if response_format is not None else "text"
    if response_format is None or kind == "text":
        return None, "response_format"
    if kind == "json_object":  # llama.cpp accepts a schema here too
        return _object(response_format.get("schema", ANY_OBJECT), "response_format.schema")
    if kind == "json_schema":
        outer, place = _object(response_format.get("json_schema"), "response_format.json_schema")
        return _object(outer.get("schema"), f"{place}.schema")
    raise RequestError(
        f"`response_format.type` must be text, json_object or json_schema; it is {kind!r:.60}.",
        param="response_format.type",
    )


def constraint_asked(request: GenerationRequest) -> tuple[dict[str, Any] | None, str | None, str]:
    """Return the JSON Schema that the answer must follow, the GBNF grammar that it must follow, and the place in the
    request that asks for it, with dots (`response_format.json_schema.schema`). At least one of the first two is None;
    if both are, the place is `response_format`. An empty `grammar` asks for nothing. Raises RequestError if
    the request asks for two forms, or `response_format` has an unknown type or a schema that is no object."""
    schema, place = schema_asked(request.response_format)
    asked: list[tuple[dict[str, Any] | None, str | None, str]] = []
    if schema is not None:
        asked.append((schema, None, place))
    if request.json_schema is not None:
        asked.append((request.json_schema, None, "json_schema"))
    if request.grammar:
        asked.append((None, request.grammar, "grammar"))
    if len(asked) > 1:
        message = f"The answer can be held to one form: `{asked[0][2]}` and `{asked[1][2]}` ask for two."
        raise RequestError(message, param=asked[1][2])
    return asked[0] if asked else (None, None, place)


def check_unconstrained(request: GenerationRequest, engine: str) -> None:
    """Raise RequestError if the request asks for a schema, a grammar or `ignore_eos`, which an engine without grammars
    would ignore; also for a malformed `response_format`. `engine`: the engine's name, for the message."""
    schema, grammar, place = constraint_asked(request)
    if schema is not None or grammar is not None:
        message = f"{engine} holds answers to no schema or grammar: ask for the form in words."
        raise RequestError(message, code="structured_output_unsupported", param=place.partition(".")[0])
    if request.ignore_eos:
        raise RequestError(f"{engine} ends answers where the model does: leave `ignore_eos` out.", param="ignore_eos")


def _object(value: Any, place: str) -> tuple[dict[str, Any], str]:
    if not isinstance(value, dict):
        raise RequestError(f"`{place}` must be an object.", param=place)
    return value, place


def gbnf_of(schema: Mapping[str, Any], place: str, convert: Callable[[str], str]) -> str:
    """Return the grammar of a JSON Schema. `convert` makes it from the schema's JSON, in which the target of each local
    `$ref` has a unique name; afterwards, raw control characters are forbidden in strings. `place`: the request's field
    that holds the schema, named in errors.

    Raises RequestError if a `$ref` leads nowhere, a count is above MOST_REPETITIONS, or `convert` raises ValueError,
    TypeError, LookupError, AttributeError, AssertionError or RecursionError. Other errors of `convert` pass.
    """
    try:
        _check_counts(schema)
        name = _free_name("shared", json.dumps(schema))
        gbnf = convert(json.dumps(_share_references(schema, name)))
        return _ANY.sub(lambda any_: _CHARACTER, gbnf.replace(_hidden_key(name), "$ref"))
    except (ValueError, TypeError, LookupError, AttributeError, AssertionError, RecursionError) as error:
        reason = str(error) or type(error).__name__
        raise RequestError(f"`{place}` cannot be followed: {reason:.300}.", param=place) from error


def _check_counts(value: Any) -> None:
    for inner in value if isinstance(value, list) else ():
        _check_counts(inner)
    for name, inner in value.items() if isinstance(value, dict) else ():
        counts = [inner] if name in _COUNTS and isinstance(inner, int) else []
        if name == "pattern" and isinstance(inner, str):
            counts = [int(count) for pair in _BRACES.findall(inner) for count in pair if count]
        if any(count > MOST_REPETITIONS for count in counts):
            raise ValueError(f"{name} is above {MOST_REPETITIONS}")
        _check_counts(inner)


def _share_references(schema: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return the schema with the target of each local reference as a definition of a unique name, which begins with
    `name`, and with another key for each `$ref` in data, which the library would take for a reference.

    The library knows a definition by the last part of its path, even if another one has the same, and finds no
    definitions beside a reference at the root.
    """
    names: dict[str, str] = {}
    definitions: dict[str, Any] = {}

    def share(ref: str) -> str:
        if ref not in names:
            names[ref] = f"{name}-{len(names)}"
            definitions[names[ref]] = _rebuild_schema(_target(schema, ref), share, hide)
        return f"#/$defs/{names[ref]}"

    hide = partial(_hide_references, _hidden_key(name))
    root = _rebuild_schema(schema, share, hide)
    return {**({"anyOf": [root]} if "$ref" in root else root), "$defs": definitions} if definitions else root


def _hidden_key(name: str) -> str:
    return f"{name}-ref"


def _hide_references(key: str, data: Any) -> Any:
    """Return the data with `key` in place of each `$ref`."""
    if isinstance(data, list):
        return [_hide_references(key, inner) for inner in data]
    if not isinstance(data, dict):
        return data
    return {key if name == "$ref" else name: _hide_references(key, inner) for name, inner in data.items()}


def _rebuild_schema(
    value: Any, change: Callable[[str], str], change_data: Callable[[Any], Any] = lambda data: data
) -> Any:
    """Return the schema with every local reference changed, and its data (constants, defaults, examples) by
    `change_data`."""
    rebuild = partial(_rebuild_schema, change=change, change_data=change_data)
    if isinstance(value, list):
        return [rebuild(inner) for inner in value]
    if not isinstance(value, dict):
        return value
    new_object = {}
    for key, inner in value.items():
        if key in _DATA:
            new_object[key] = change_data(inner)
        elif key in _BY_NAME and isinstance(inner, dict):
            new_object[key] = {name: rebuild(named) for name, named in inner.items()}
        else:
            new_object[key] = rebuild(inner)
    ref = value.get("$ref")
    return new_object | {"$ref": change(ref)} if isinstance(ref, str) and ref.startswith("#") else new_object


def _target(schema: Any, ref: str) -> Any:
    """Return what a JSON pointer in a fragment refers to. Raises ValueError if there is nothing."""
    anchor, *parts = unquote(ref).split("/")
    try:
        for part in parts:
            key = part.replace("~1", "/").replace("~0", "~")
            schema = schema[int(key)] if isinstance(schema, list) else schema[key]
    except (ValueError, LookupError, TypeError):
        anchor = ""
    if anchor != "#":
        raise ValueError(f"{ref} leads nowhere")
    return schema


def any_call_schema(schemas: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the JSON Schema of `{"name": TOOL, "arguments": {...}}` for any of these tools. `schemas`: the schema of
    the arguments, by the tool's name."""
    calls, definitions = [], dict[str, Any]()
    for name, schema in schemas.items():
        place = f"#/$defs/{len(definitions)}"
        call = {"name": {"const": name}, "arguments": {"$ref": place}}
        calls.append({"type": "object", "properties": call, "required": ["name", "arguments"]})
        definitions[str(len(definitions))] = _rebuild_schema(schema, partial(_move_reference, place))
    return {"anyOf": calls, "$defs": definitions}


def _move_reference(place: str, ref: str) -> str:
    return place + ref[1:]


def allow_call(gbnf: str, begin: str) -> str:
    """Return a grammar that permits a tool call in place of an answer that follows `gbnf`. `begin`: the mark of a call;
    the text behind it is not constrained."""
    answer, inner = _rename_root(gbnf)
    return f"root ::= {answer} | {_literal(begin)} .*\n{inner}"


def _rename_root(gbnf: str) -> tuple[str, str]:
    """Return a new name for the grammar's root rule, and the grammar with that name."""
    answer = _free_name("answer", gbnf)
    return answer, _ROOT.sub(lambda found: answer if found[0] == "root" else found[0], gbnf)


def allow_reasoning(gbnf: str, marks: Marks, *, is_thinking: bool) -> str:
    """Return a grammar that permits a thought before an answer that follows `gbnf`. `is_thinking`: the prompt opened a
    thought, so the answer begins inside it; False: the thought may be missing. The thought itself is not constrained.
    """
    (answer, inner), thought = _rename_root(gbnf), _free_name("thought", gbnf)
    thinking = f'{thought}-0 "\\n"? "\\n"? {answer}'
    root = thinking if is_thinking else f"{_literal(marks.begin)} {thinking} | {answer}"
    return "\n".join((f"root ::= {root}", *_rules_through(marks.end, thought), inner))


def _free_name(name: str, gbnf: str) -> str:
    while name in gbnf:
        name += "x"
    return name


def _rules_through(end: str, name: str) -> list[str]:
    """Return rules for any text that ends with the first occurrence of `end`. Rule N has seen the first N characters of
    `end`."""
    alphabet = dict.fromkeys(end)
    rules = []
    for seen_count in range(len(end)):
        alternatives = [f"[^{''.join(map(_escape_character, alphabet))}] {name}-0"]
        for character in alphabet:
            text = end[:seen_count] + character
            length = next(length for length in range(len(text), -1, -1) if end.startswith(text[len(text) - length :]))
            next_rule = "" if length == len(end) else f" {name}-{length}"
            alternatives.append(f"{_literal(character)}{next_rule}")
        rules.append(f"{name}-{seen_count} ::= {' | '.join(alternatives)}")
    return rules


def _literal(text: str) -> str:
    return f'"{"".join(map(_escape_character, text))}"'


def _escape_character(character: str) -> str:
    return f"\\x{ord(character):02x}"
