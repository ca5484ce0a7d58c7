"""Calls that must be, and answers that follow a schema, of real llama-cpp-python."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.scripted_models import (
    CALLER,
    CALLER_TEMPLATE,
    CALLS,
    DAYS,
    FIRST_CALL,
    HIDDEN,
    PLAN,
    REST,
    SECOND_CALL,
    THOUGHT,
    USER,
    calls_in,
    choice,
    error,
    post,
    streamed,
)
from tests.support.worker_engines import Fleet, fleet_in
from tests.support.worker_process import Worker

pytestmark = pytest.mark.engines

Serve = Callable[..., Worker]
NAMED = {"type": "function", "function": {"name": "plan"}}
QUIET: dict[str, Any] = {"thinking": "disabled"}


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with fleet_in(tmp_path_factory.mktemp("fleet")) as made:
        yield made


@pytest.fixture
def serve(fleet: Fleet) -> Serve:
    return lambda *args, **how: fleet.says("llama_cpp", *args, **how)


@pytest.fixture
def caller(serve: Serve) -> Worker:
    """It thinks, speaks and calls."""
    return serve(CALLER, CALLER_TEMPLATE, hidden=HIDDEN)


@pytest.fixture
def plain(serve: Serve) -> Worker:
    return serve(["Hi"])


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(("tools", "chosen"), [([PLAN], "required"), ([PLAN, REST], NAMED)])
def test_a_call_that_must_be(caller: Worker, tools: list[Any], chosen: Any, stream: bool) -> None:
    fields = {"tools": tools, "tool_choice": chosen, "max_tokens": 200, "seed": 1}
    if stream:
        chunks = streamed(caller, **fields)
        parts = [each for chunk in chunks for each in chunk["delta"].get("tool_calls", ())]
        assert len(parts) > 2, "as it is made"
        assert [("id" in part, part["index"]) for part in parts] == [(number == 0, 0) for number in range(len(parts))]
        function = parts[0]["function"]["name"], "".join(part["function"]["arguments"] for part in parts)
        finish = chunks[-1]["finish_reason"]
    else:
        ended = choice(caller, **fields)
        assert not ended["message"]["content"]
        (call,) = ended["message"]["tool_calls"]
        function, finish = (call["function"]["name"], call["function"]["arguments"]), ended["finish_reason"]
    assert (function[0], finish) == ("plan", "tool_calls")
    assert json.loads(function[1])["day"] in ("mon", "tue")


def test_one_of_two_tools_must_be_called(caller: Worker) -> None:
    (call,) = calls_in(choice(caller, tools=[PLAN, REST], tool_choice="required", max_tokens=200)["message"])
    assert call in (*CALLS, ("rest", {}))


def test_a_template_that_knows_no_tools(plain: Worker) -> None:
    unknown = {"type": "function", "function": {"name": "no"}}
    assert error(plain, tools=[], tool_choice=unknown)[0] == 400
    (call,) = calls_in(choice(plain, tools=[PLAN], tool_choice="required", max_tokens=200)["message"])
    assert call in CALLS


SCHEMA = {
    "type": "object",
    "properties": {
        "day": {"enum": ["mon", "tue"]},
        "hours": {"type": "array", "items": {"type": "integer"}, "maxItems": 2},
        "note": {"type": "string", "minLength": 4, "maxLength": 4},
        "sign": {"type": "string", "pattern": "^..$"},
    },
    "required": ["day", "hours", "note", "sign"],
    "additionalProperties": False,
}


def fits(text: str) -> bool:
    value = json.loads(text)
    whole = all(isinstance(hour, int) for hour in value["hours"]) and len(value["hours"]) <= 2
    lengths = len(value.pop("note")), len(value.pop("sign"))
    return {*value} == {"day", "hours"} and value["day"] in ("mon", "tue") and whole and lengths == (4, 2)


def test_an_answer_follows_its_schema(plain: Worker, caller: Worker) -> None:
    strict = {"type": "json_schema", "json_schema": {"name": "n", "strict": True, "schema": SCHEMA}}
    for seed in range(3):
        asked = {"response_format": strict, "max_tokens": 400, "seed": seed}
        assert fits(choice(plain, **asked)["message"]["content"])
        for fields in ({}, {"chat_template_kwargs": {"begun": True}}):
            message = choice(caller, **asked, **fields)["message"]
            assert message["reasoning"] == THOUGHT, "the grammar begins behind the thought"
            assert fits(message["content"])
        message = choice(caller, **asked, thinking="disabled")["message"]
        assert "reasoning" not in message
        assert fits(message["content"])


def test_strings_of_a_schema_are_json(plain: Worker) -> None:
    line_end, quote = (post(plain, "/tokenize", content=each)["tokens"][0] for each in ("\n", '"'))
    asked = {"type": "json_object", "schema": SCHEMA}
    for token in (line_end, quote):  # the model would write nothing else
        ended = choice(plain, response_format=asked, max_tokens=400, seed=1, logit_bias={str(token): 30})
        assert fits(ended["message"]["content"])


TREE = {
    "$defs": {
        "Node": {
            "type": "object",
            "properties": {"string": {"anyOf": [{"$ref": "#/$defs/Node"}, {"enum": ["end"]}]}},
            "required": ["string"],
        }
    },
    "$ref": "#/$defs/Node",
}


def is_tree(value: Any) -> bool:
    return value == "end" or ({*value} == {"string"} and is_tree(value["string"]))


def test_a_schema_that_refers_to_itself(plain: Worker) -> None:
    asked = {"type": "json_schema", "json_schema": {"name": "n", "schema": TREE}}
    for seed in range(3):
        assert is_tree(
            json.loads(choice(plain, response_format=asked, max_tokens=900, seed=seed)["message"]["content"])
        )
    days = {"$defs": {"Node": DAYS}, "$ref": "#/$defs/Node"}
    tools = [
        {"type": "function", "function": {"name": name, "parameters": of}} for name, of in (("a", TREE), ("b", days))
    ]
    names = set()
    for seed in range(6):
        ended = choice(plain, tools=tools, tool_choice="required", max_tokens=900, seed=seed)
        ((name, arguments),) = calls_in(ended["message"])
        names.add(name)
        assert is_tree(arguments) if name == "a" else arguments["day"] in ("mon", "tue")
    assert names == {"a", "b"}
    endless = {"type": "json_object", "schema": {"$ref": "#"}}
    assert error(plain, response_format=endless) == (400, "invalid_request", "response_format.schema")


THINKS = "{# <think></think> #}" + CALLER_TEMPLATE


@pytest.mark.parametrize("thought", [[], ["<think>", "hm", "</think>"]])
def test_beside_tools_an_answer_follows_its_schema_or_is_a_call(serve: Serve, thought: list[str]) -> None:
    asked = {"tools": [PLAN], "response_format": {"type": "json_object", "schema": DAYS}, "max_tokens": 100}
    hidden = ["<tool_call>", "</tool_call>", *thought[::2]]
    calling = serve([*thought, "<tool_call>", FIRST_CALL, "</tool_call>", SECOND_CALL], THINKS, hidden=hidden)
    ended = choice(calling, **asked)
    assert (calls_in(ended["message"]), ended["finish_reason"]) == (CALLS, "tool_calls")
    saying = serve([*thought, "Well. ", '{"day"', ': "mon', '"}'], THINKS, hidden=thought[::2])
    ended = choice(saying, **asked, logit_bias={str(post(saying, "/tokenize", content='{"day"')["tokens"][0]): 30})
    assert (ended["message"]["content"], ended["finish_reason"]) == ('{"day": "mon"}', "stop")
    assert ended["message"].get("reasoning") == ("hm" if thought else None)


def test_what_utf_8_cannot_hold(serve: Serve) -> None:
    half = '{"name": "plan", "arguments": {"day": "\\ud83d"}}'
    worker = serve(["<tool_call>", half, "</tool_call>"], CALLER_TEMPLATE)
    assert calls_in(choice(worker, tools=[PLAN])["message"]) == [("plan", {"day": "?"})]
    (delta,) = [each for chunk in streamed(worker, tools=[PLAN]) for each in chunk["delta"].get("tool_calls", ())]
    assert calls_in({"tool_calls": [delta]}) == [("plan", {"day": "?"})]
    call = {"id": "i", "type": "function", "function": json.loads(half)}
    call["function"]["arguments"] = json.dumps(call["function"]["arguments"])
    conversation = [*USER, {"role": "assistant", "content": None, "tool_calls": [call]}]
    prompt = post(worker, "/apply-template", messages=conversation)["prompt"]
    assert prompt.endswith("<tool_call>?</tool_call><|end|><|assistant|>")
    assert choice(worker, messages=conversation)["finish_reason"] == "stop"


def test_any_json_object(plain: Worker) -> None:
    ended = choice(plain, response_format={"type": "json_object"}, max_tokens=1000, seed=3)
    assert ended["message"]["content"].startswith("{")
    assert ended["finish_reason"] == "length" or isinstance(json.loads(ended["message"]["content"]), dict)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "nonsense"},
        {"$ref": "https://example.org/schema"},
        {"type": "object", "properties": 5},
        {"type": "string", "pattern": "no anchors"},
        {"type": "string", "pattern": "^[z-a$"},
        {"type": "string", "pattern": r"^\d$"},
        {"enum": []},
        {"type": "array", "items": {"type": "string"}, "maxItems": 10**9},
    ],
)
def test_a_schema_that_cannot_be_followed(plain: Worker, schema: dict[str, Any]) -> None:
    asked = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    status, code, param = error(plain, response_format=asked)
    assert (status, code, param) == (400, "invalid_request", "response_format.json_schema.schema")
    bad = {"type": "function", "function": {"name": "f", "parameters": schema}}
    assert error(plain, tools=[bad], tool_choice="required") == (400, "invalid_request", "tools")
    assert choice(plain)["message"]["content"] == "Hi", "the worker lives"
