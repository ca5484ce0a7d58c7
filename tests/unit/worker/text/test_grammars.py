"""What an answer must be: from a request's words to a grammar. That the grammars hold is tested on the real engine."""

from __future__ import annotations

import importlib.util
import json
import re
from typing import Any

import pytest

from tests.support.require import require
from worker.errors import RequestError
from worker.text.answer_text import QWEN
from worker.text.grammars import MOST_REPETITIONS, allow_call, allow_reasoning, any_call_schema, gbnf_of, schema_asked

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


def test_strings_hold_no_raw_control_characters() -> None:
    gbnf = 'char ::= [^"\\\\] | "\\\\" [bfnrt]\ndot ::= [^\\x0A\\x0D]\nroot ::= "\\"" char* dot "\\""'
    allowed = r'[^"\\\x00-\x1F\x7F]'
    expected = [f'char ::= {allowed} | "\\\\" [bfnrt]', f"dot ::= {allowed}", gbnf.splitlines()[2]]
    assert gbnf_of(SCHEMA, "here", lambda text: gbnf).splitlines() == expected


def converted(schema: dict[str, Any]) -> Any:
    """What the library is given."""
    return json.loads(gbnf_of(schema, "here", lambda text: text))


def test_references_lead_to_definitions_of_their_own_names() -> None:
    # The library knows a definition by the last part of its place alone, which may be another's, or a rule of its own.
    node = {"type": "object", "properties": {"next": {"$ref": "#/$defs/string"}}}
    assert converted({"$defs": {"string": node}, "$ref": "#/$defs/string"}) == {
        "anyOf": [{"$ref": "#/$defs/shared-0", "$defs": {"string": {**node, "properties": {"next": SHARED}}}}],
        "$defs": {"shared-0": {**node, "properties": {"next": SHARED}}},
    }
    named = converted({"properties": {"shared": {"$ref": "#"}, "a/b": {"items": [{"$ref": "#/properties/a~1b"}]}}})
    assert named["properties"]["shared"] == {"$ref": "#/$defs/sharedx-0"}
    assert named["$defs"]["sharedx-1"] == {"items": [{"$ref": "#/$defs/sharedx-1"}]}
    listed = converted({"anyOf": [{"type": "null"}, {"items": {"$ref": "#/anyOf/0"}}]})
    assert listed["$defs"] == {"shared-0": {"type": "null"}}


SHARED = {"$ref": "#/$defs/shared-0"}
REF = "#/nowhere"


@pytest.mark.parametrize("data", [{"const": {"$ref": REF}}, {"enum": [[{"$ref": REF}], 5]}])
@pytest.mark.parametrize("place", ["const", "default", "properties"])
def test_a_reference_in_data_is_data(data: dict[str, Any], place: str) -> None:
    require("llama_cpp", importlib.util.find_spec("llama_cpp") is not None, "llama-cpp-python is not installed")
    from llama_cpp.llama_grammar import json_schema_to_gbnf

    [(keyword, value)] = data.items()
    schema = {
        "properties": {place: {"$ref": "#/$defs/n"}, "data": data | {"default": value, "examples": [value]}},
        "required": [place, "data"],
        "$defs": {"n": {"type": "null"}},
    }
    for asked in (schema, any_call_schema({"f": schema})):
        gbnf = gbnf_of(asked, "here", json_schema_to_gbnf)
        [rule] = re.findall(r"data ::= (.*)", gbnf)
        [first, *_] = value if keyword == "enum" else [value]
        assert rule.startswith(json.dumps(json.dumps(first)))
        assert gbnf.count("$ref") == 1


@pytest.mark.parametrize("ref", ["#/$defs/a", "#a", "#/type/0", "#/anyOf/2", "#/anyOf/x"])
def test_a_reference_that_leads_nowhere(ref: str) -> None:
    schema = {"type": "object", "properties": {"a": {"$ref": ref}}, "anyOf": []}
    with pytest.raises(RequestError, match=f"`here` cannot be followed: {re.escape(ref)} leads nowhere"):
        gbnf_of(schema, "here", lambda text: text)


def test_one_of_several_tools() -> None:
    one = any_call_schema({"f": SCHEMA, "g": {"$defs": {"N": SCHEMA}, "$ref": "#/$defs/N"}})
    first, second = one["anyOf"]
    assert first["properties"] == {"name": {"const": "f"}, "arguments": {"$ref": "#/$defs/0"}}
    assert second["properties"] == {"name": {"const": "g"}, "arguments": {"$ref": "#/$defs/1"}}
    assert first["required"] == ["name", "arguments"]
    assert one["$defs"] == {"0": SCHEMA, "1": {"$defs": {"N": SCHEMA}, "$ref": "#/$defs/1/$defs/N"}}


def test_a_call_in_the_place_of_an_answer_takes_no_rule_of_the_answer_s() -> None:
    assert allow_call('answer ::= "a"\nroot ::= answer', "<c") == (
        'root ::= answerx | "\\x3c\\x63" .*\nanswer ::= "a"\nanswerx ::= answer'
    )


def test_the_root_has_another_name_wherever_it_is_named() -> None:
    gbnf = 'list ::= "[" root? "root]" [root] # root\n  root ::= list | sub-root\nsub-root ::= "a"'
    assert allow_call(gbnf, "<").splitlines()[1:] == [
        'list ::= "[" answer? "root]" [root] # root',
        "  answer ::= list | sub-root",
        'sub-root ::= "a"',
    ]


def test_a_thought_before_an_answer_takes_no_rule_of_the_answer_s() -> None:
    gbnf = 'answer ::= "a"\nthought-0 ::= "b"\nroot ::= answer thought-0'
    rules = dict(line.split(" ::= ", 1) for line in allow_reasoning(gbnf, QWEN, is_thinking=False).splitlines())
    assert (rules["answer"], rules["thought-0"]) == ('"a"', '"b"')
    assert rules["answerx"] == "answer thought-0"
    assert rules["root"].endswith("| answerx")
    assert "thoughtx-0" in rules["root"]
    assert f"thoughtx-{len(QWEN.end) - 1}" in rules
