"""What an answer must be, as a grammar of llama.cpp's (GBNF). Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from worker.errors import RequestError
from worker.thoughts import Marks

ANY_OBJECT: Final[dict[str, Any]] = {"type": "object"}
MOST_REPETITIONS: Final = 2000
"""As llama.cpp has it; the library writes each one out."""

_COUNTS: Final = ("minItems", "maxItems", "minLength", "maxLength")
_BRACES: Final = re.compile(r"\{(\d*),?(\d*)\}")


def schema_asked(response_format: Mapping[str, Any] | None) -> tuple[dict[str, Any] | None, str]:
    """The JSON Schema that an answer is asked to follow, or None, and where it stands. Raises RequestError."""
    kind = response_format.get("type") if response_format is not None else "text"
    if response_format is None or kind == "text":
        return None, "response_format"
    if kind == "json_object":  # llama.cpp takes a schema here too
        return _object(response_format.get("schema", ANY_OBJECT), "response_format.schema")
    if kind == "json_schema":
        outer, place = _object(response_format.get("json_schema"), "response_format.json_schema")
        return _object(outer.get("schema"), f"{place}.schema")
    raise RequestError(
        f"`response_format.type` must be text, json_object or json_schema; it is {kind!r:.60}.",
        param="response_format.type",
    )


def _object(value: Any, place: str) -> tuple[dict[str, Any], str]:
    if not isinstance(value, dict):
        raise RequestError(f"`{place}` must be an object.", param=place)
    return value, place


def gbnf_of(schema: Mapping[str, Any], place: str, convert: Callable[[str], str]) -> str:
    """The grammar of a JSON Schema. `convert` makes it of the schema's text; a schema that it cannot read, or that
    would make a grammar beyond all bounds, is refused with RequestError."""
    try:
        _check_counts(schema)
        return convert(json.dumps(schema))
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


def one_of(schemas: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The schema of `{"name": TOOL, "arguments": {...}}` for any of these tools."""
    calls = [
        {
            "type": "object",
            "properties": {"name": {"const": name}, "arguments": schema},
            "required": ["name", "arguments"],
        }
        for name, schema in schemas.items()
    ]
    return {"anyOf": calls}


def after_thought(gbnf: str, marks: Marks, *, opened: bool) -> str:
    """The same grammar for an answer that may begin with a thought; where the prompt opened one, it goes on with it."""
    answer, thought = _free("answer", gbnf), _free("thought", gbnf)
    inner = re.sub(r"^root(?=\s*::=)", answer, gbnf, flags=re.MULTILINE)
    thinking = f'{thought}-0 "\\n"? "\\n"? {answer}'
    root = thinking if opened else f"{_literal(marks.begin)} {thinking} | {answer}"
    return "\n".join((f"root ::= {root}", *_through(marks.end, thought), inner))


def _free(name: str, gbnf: str) -> str:
    while name in gbnf:
        name += "x"
    return name


def _through(end: str, name: str) -> list[str]:
    """Rules for any text with `end` at its end and nowhere before. Rule N has seen the first N characters of `end`."""
    alphabet = dict.fromkeys(end)
    rules = []
    for seen in range(len(end)):
        ways = [f"[^{''.join(map(_escaped, alphabet))}] {name}-0"]
        for character in alphabet:
            text = end[:seen] + character
            length = next(length for length in range(len(text), -1, -1) if end.startswith(text[len(text) - length :]))
            then = "" if length == len(end) else f" {name}-{length}"
            ways.append(f"{_literal(character)}{then}")
        rules.append(f"{name}-{seen} ::= {' | '.join(ways)}")
    return rules


def _literal(text: str) -> str:
    return f'"{"".join(map(_escaped, text))}"'


def _escaped(character: str) -> str:
    return f"\\x{ord(character):02x}"
