"""The check of arguments: by the schema, and at bounded cost whatever the schema is."""

from __future__ import annotations

from typing import Any

import pytest

from controller.schema.errors import RoundhouseError
from gateway.tools.arguments import ArgumentCheck, SchemaProblem

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "array", "items": {"$ref": "#/$defs/name"}}},
    "required": ["a"],
    "additionalProperties": False,
    "$defs": {"name": {"type": "string", "maxLength": 3}},
}


def refusal(schema: dict[str, Any], arguments: dict[str, Any]) -> RoundhouseError:
    with pytest.raises(RoundhouseError) as caught:
        ArgumentCheck(schema).check(arguments)
    return caught.value


def test_what_fits_passes() -> None:
    ArgumentCheck(SCHEMA).check({"a": 1, "b": ["abc"]})
    ArgumentCheck({}).check({"anything": [1, {"x": None}]})


@pytest.mark.parametrize(
    ("arguments", "param"),
    [
        ({}, "params"),
        ({"a": "1"}, "params.a"),
        ({"a": True}, "params.a"),
        ({"a": 1, "b": ["abc", "abcd"]}, "params.b[1]"),
        ({"a": 1, "c": 2}, "params"),
    ],
)
def test_what_does_not_is_refused_with_its_place(arguments: dict[str, Any], param: str) -> None:
    error = refusal(SCHEMA, arguments)
    assert (error.entry.code, error.param) == ("tool_arguments_invalid", param)


def test_an_older_dialect_of_schemas_is_read() -> None:
    schema = {"$schema": "http://json-schema.org/draft-04/schema#", "properties": {"a": {"minimum": 1}}}
    ArgumentCheck(schema).check({"a": 1})
    assert refusal(schema, {"a": 0}).param == "params.a"


@pytest.mark.parametrize(
    "schema",
    [{"type": "nonsense"}, {"properties": 1}, {"required": "a"}, {"description": "x" * 70_000}, {"$schema": 1}],
)
def test_a_schema_that_is_none_is_a_problem(schema: dict[str, Any]) -> None:
    with pytest.raises(SchemaProblem):
        ArgumentCheck(schema)


def test_expressions_of_a_schema_are_not_run() -> None:
    """They may take any time; the server checks by itself."""
    schema = {
        "properties": {"a": {"type": "string", "pattern": "^(x+)+$"}},
        "patternProperties": {"^(y+)+$": {"type": "integer"}},
        "additionalProperties": False,
    }
    ArgumentCheck(schema).check({"a": "x" * 50 + "!", "y" * 50 + "!": "text"})


def test_references_lead_nowhere_else() -> None:
    for reference in ("http://127.0.0.1:9/schema", "file:///etc/passwd", "#/$defs/nothing"):
        assert refusal({"properties": {"a": {"$ref": reference}}}, {"a": 1}).entry.code == "tool_failed"


def test_a_schema_that_multiplies_itself_is_given_up() -> None:
    definitions = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(40)}
    schema = {"$ref": "#/$defs/d0", "$defs": {**definitions, "d40": {}}}
    assert refusal(schema, {}).entry.code == "tool_failed"
    assert refusal({"$ref": "#"}, {}).entry.code == "tool_failed"


def test_unique_elements_are_found_in_linear_time() -> None:
    schema = {"properties": {"a": {"uniqueItems": True}}}
    ArgumentCheck(schema).check({"a": [{"x": n} for n in range(4000)]})
    assert refusal(schema, {"a": [{"x": 1, "y": 2}, {"y": 2, "x": 1}]}).param == "params.a"


def test_arguments_have_bounds() -> None:
    deep: dict[str, Any] = {}
    for _ in range(40):
        deep = {"x": deep}
    assert refusal({}, deep).entry.code == "tool_arguments_invalid"
    assert refusal({}, {"a": [0] * 10_001}).entry.code == "tool_arguments_invalid"
    ArgumentCheck({}).check({"a": [0] * 9_999})


@pytest.mark.parametrize("levels", [101, 400, 5_000, 100_000])
def test_a_schema_that_is_nested_too_deep_is_a_problem(levels: int) -> None:
    schema: dict[str, Any] = {}
    for _ in range(levels - 1):
        schema = {"items": schema}
    with pytest.raises(SchemaProblem, match="nested deeper than 100"):
        ArgumentCheck(schema)
    for _ in range(levels - 100):
        schema = schema["items"]
    ArgumentCheck(schema).check({})
