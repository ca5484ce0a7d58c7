"""What an answer is held to, in the words of each engine."""

from __future__ import annotations

from typing import Any

import pytest

from controller.schema.errors import RoundhouseError
from gateway.protocols.common.output_constraints import CONSTRAINT_FIELDS, adapt_constraints
from tests.fakes.fake_controller import route

SCHEMA = {"type": "object", "properties": {"city": {"enum": ["Paris"]}}}
YES = 'root ::= "yes"'
LLAMA = ("llama_server", "llama_cpp")
VLLM = ("vllm_serve", "vllm")
NO_FORM: tuple[dict[str, Any], ...] = (
    {},
    {"messages": [], "temperature": 0},
    {"grammar": "", "guided_json": None, "guided_json_object": False, "structured_outputs": None},
)
FORMAT = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}


def adapted(backend: str, *, is_chat: bool = True, **fields: Any) -> dict[str, Any]:
    made = route("m").model_copy(update={"backend": backend})
    return adapt_constraints(fields, made, is_chat=is_chat)


def refusal(backend: str, *, is_chat: bool = True, **fields: Any) -> tuple[str, str | None]:
    with pytest.raises(RoundhouseError) as raised:
        adapted(backend, is_chat=is_chat, **fields)
    return raised.value.entry.code, raised.value.param


@pytest.mark.parametrize("backend", [*LLAMA, *VLLM, "openai_remote", "stub"])
@pytest.mark.parametrize("fields", NO_FORM)
def test_what_asks_for_nothing_is_left_as_it_is(backend: str, fields: dict[str, Any]) -> None:
    made = route("m").model_copy(update={"backend": backend})
    assert adapt_constraints(fields, made, is_chat=True) is fields
    assert adapt_constraints(fields, made, is_chat=False) is fields


@pytest.mark.parametrize("backend", LLAMA)
@pytest.mark.parametrize("is_chat", [True, False])
@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"grammar": YES}, {"grammar": YES}),
        ({"json_schema": SCHEMA}, {"json_schema": SCHEMA}),
        ({"guided_json": SCHEMA}, {"json_schema": SCHEMA}),
        ({"guided_json": '{"const": "a"}'}, {"json_schema": {"const": "a"}}),
        ({"guided_json_object": True}, {"json_schema": {"type": "object"}}),
        ({"guided_grammar": YES}, {"grammar": YES}),
        ({"guided_choice": ["a", '"b\\\n']}, {"grammar": 'root ::= "a" | "\\"b\\\\\\n"'}),
        ({"structured_outputs": {"json": SCHEMA}}, {"json_schema": SCHEMA}),
        ({"structured_outputs": {"choice": ["a"], "regex": None}}, {"grammar": 'root ::= "a"'}),
        ({"structured_outputs": {"json_object": True}}, {"json_schema": {"type": "object"}}),
    ],
)
def test_llama_cpps_words(backend: str, is_chat: bool, fields: dict[str, Any], words: dict[str, Any]) -> None:
    assert adapted(backend, is_chat=is_chat, n=1, **fields) == {"n": 1, **words}


@pytest.mark.parametrize("backend", LLAMA)
def test_a_completions_response_format_is_a_schema_to_llama_cpp(backend: str) -> None:
    assert adapted(backend, is_chat=False, response_format=FORMAT) == {"json_schema": SCHEMA}
    assert adapted(backend, is_chat=False, response_format={"type": "json_object"}) == {
        "json_schema": {"type": "object"}
    }
    assert adapted(backend, is_chat=False, response_format={"type": "text"}) == {"response_format": {"type": "text"}}
    assert adapted(backend, is_chat=True, response_format=FORMAT) == {"response_format": FORMAT}
    assert refusal(backend, is_chat=False, response_format={"type": "x"}) == ("invalid_request", "response_format")
    assert refusal(backend, is_chat=False, response_format="x") == ("invalid_request", "response_format")


@pytest.mark.parametrize("backend", LLAMA)
@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"guided_regex": "a+"}, "structured_output_unsupported", "guided_regex"),
        ({"structured_outputs": {"regex": "a+"}}, "structured_output_unsupported", "structured_outputs"),
        ({"structured_outputs": {"structural_tag": "{}"}}, "structured_output_unsupported", "structured_outputs"),
        ({"structured_outputs": {}}, "invalid_request", "structured_outputs"),
        ({"structured_outputs": []}, "invalid_request", "structured_outputs"),
        ({"guided_json": "{"}, "invalid_request", "guided_json"),
        ({"guided_json": [1]}, "invalid_request", "guided_json"),
        ({"guided_choice": []}, "invalid_request", "guided_choice"),
        ({"guided_choice": ["a", 1]}, "invalid_request", "guided_choice"),
        ({"guided_choice": "a"}, "invalid_request", "guided_choice"),
        ({"guided_grammar": 5}, "invalid_request", "guided_grammar"),
        ({"grammar": YES, "guided_json": SCHEMA}, "invalid_request", "guided_json"),
        ({"guided_json": SCHEMA, "response_format": FORMAT}, "invalid_request", "response_format"),
    ],
)
def test_what_llama_cpp_cannot_be_told(backend: str, fields: dict[str, Any], code: str, param: str) -> None:
    assert refusal(backend, **fields) == (code, param)
    assert refusal(backend, is_chat=False, **fields) == (code, param)


@pytest.mark.parametrize("backend", VLLM)
@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"grammar": YES}, {"grammar": YES}),
        ({"json_schema": SCHEMA}, {"json": SCHEMA}),
        ({"guided_json": SCHEMA}, {"json": SCHEMA}),
        ({"guided_json_object": True}, {"json_object": True}),
        ({"guided_regex": "a+"}, {"regex": "a+"}),
        ({"guided_choice": ["a", "b"]}, {"choice": ["a", "b"]}),
        ({"guided_grammar": YES, "guided_json": None}, {"grammar": YES}),
        (
            {"structured_outputs": {"regex": "a+", "whitespace_pattern": " "}},
            {"regex": "a+", "whitespace_pattern": " "},
        ),
    ],
)
def test_vllms_newer_words(backend: str, fields: dict[str, Any], words: dict[str, Any]) -> None:
    assert adapted(backend, n=1, **fields) == {"n": 1, "structured_outputs": words}
    assert adapted(backend, is_chat=False, response_format=FORMAT) == {"response_format": FORMAT}


@pytest.mark.parametrize("backend", VLLM)
def test_vllm_is_told_one_form(backend: str) -> None:
    assert refusal(backend, guided_json=SCHEMA, structured_outputs={"regex": "a"}) == (
        "invalid_request", "structured_outputs"
    )  # fmt: skip


def test_any_other_engine_is_told_what_the_client_said() -> None:
    fields: dict[str, Any] = dict.fromkeys(CONSTRAINT_FIELDS, "x")
    assert adapted("openai_remote", **fields) == fields
