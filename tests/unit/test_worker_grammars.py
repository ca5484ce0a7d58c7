"""What an answer must be: from a request's words to a grammar. That the grammars hold is tested on the real engine."""

from __future__ import annotations

import json
from typing import Any

import pytest

from worker.errors import RequestError
from worker.grammars import MOST_REPETITIONS, after_thought, gbnf_of, one_of, schema_asked
from worker.thoughts import QWEN

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("asked", "schema"),
    [
        (None, None),
        ({"type": "text"}, None),
        ({"type": "json_object"}, {"type": "object"}),
        ({"type": "json_object", "schema": SCHEMA}, SCHEMA),
        ({"type": "json_schema", "json_schema": {"name": "n", "strict": True, "schema": SCHEMA}}, SCHEMA),
    ],
)
def test_what_is_asked_for(asked: dict[str, Any] | None, schema: dict[str, Any] | None) -> None:
    assert schema_asked(asked)[0] == schema


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({}, "response_format.type"),
        ({"type": "xml"}, "response_format.type"),
        ({"type": "json_object", "schema": 5}, "response_format.schema"),
        ({"type": "json_schema"}, "response_format.json_schema"),
        ({"type": "json_schema", "json_schema": {"name": "n"}}, "response_format.json_schema.schema"),
    ],
)
def test_what_is_asked_for_wrongly(asked: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as raised:
        schema_asked(asked)
    assert (raised.value.code, raised.value.param) == ("invalid_request", param)
    assert param in str(raised.value)


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a": {"type": "array", "maxItems": MOST_REPETITIONS + 1}}},
        {"anyOf": [{"type": "string"}, {"type": "string", "minLength": 10**9}]},
        {"type": "string", "pattern": "^a{3,99999}$"},
    ],
)
def test_a_schema_that_would_make_a_grammar_beyond_all_bounds_is_never_converted(schema: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match=f"`here` cannot be followed: .* is above {MOST_REPETITIONS}") as raised:
        gbnf_of(schema, "here", lambda text: pytest.fail("converted"))
    assert raised.value.param == "here"


@pytest.mark.parametrize("error", [AssertionError("Unrecognized schema"), KeyError("$ref"), RecursionError()])
def test_what_the_library_cannot_read_is_the_request_s_fault(error: Exception) -> None:
    def convert(text: str) -> str:
        raise error

    with pytest.raises(RequestError, match="`here` cannot be followed: "):
        gbnf_of(SCHEMA, "here", convert)
    assert gbnf_of(SCHEMA, "here", lambda text: text) == json.dumps(SCHEMA)


def test_one_of_several_tools() -> None:
    first, second = one_of({"f": SCHEMA, "g": {"type": "object"}})["anyOf"]
    assert first["properties"] == {"name": {"const": "f"}, "arguments": SCHEMA}
    assert second["properties"]["name"] == {"const": "g"}
    assert first["required"] == ["name", "arguments"]


def test_a_thought_before_an_answer_takes_no_rule_of_the_answer_s() -> None:
    gbnf = 'answer ::= "a"\nthought-0 ::= "b"\nroot ::= answer thought-0'
    rules = dict(line.split(" ::= ", 1) for line in after_thought(gbnf, QWEN, opened=False).splitlines())
    assert (rules["answer"], rules["thought-0"]) == ('"a"', '"b"')
    assert rules["answerx"] == "answer thought-0"
    assert rules["root"].endswith("| answerx")
    assert "thoughtx-0" in rules["root"]
    assert f"thoughtx-{len(QWEN.end) - 1}" in rules
