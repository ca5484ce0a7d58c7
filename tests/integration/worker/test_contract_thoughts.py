"""What every engine of the worker makes of a model that thinks, speaks and calls tools.

One worker of each engine serves the whole file. The models of most are written here, token by token; LiteRT-LM's is one
that .ci/litertlm wrote.
"""

from __future__ import annotations

from typing import Any

import pytest

from controller.engines import ENGINES
from tests.fakes.fake_controller import route
from tests.fakes.gateway_harness import gateway_harness
from tests.support import litertlm_model
from tests.support.scripted_models import (
    CALLER,
    CALLER_TEMPLATE,
    CALLS,
    CHAT,
    HIDDEN,
    PLAN,
    REST,
    SPOKEN,
    THINKER,
    THOUGHT,
    UNCALLED,
    USER,
    calls_in,
    choice,
    error,
    joined,
    post,
    streamed,
    tool,
)
from tests.support.stream_schemas import judge_streams
from tests.support.worker_engines import TOKEN, Fleet, WorkerEngine, each_engine
from tests.support.worker_process import Worker

pytestmark = pytest.mark.engines

SCRIPTED = ("ct2", "exllamav3", "llama_cpp")
"""Engines whose models a test can write."""
each_scripted_engine = each_engine(lambda engine: engine.name in SCRIPTED)
WEATHER = tool("weather", {"type": "object", "properties": {"city": {"type": "string"}}})


@pytest.fixture
def caller(fleet: Fleet, engine: WorkerEngine) -> Worker:
    if engine.name == "litert_lm":
        return fleet.litert_caller()
    return fleet.says(engine.name, CALLER, CALLER_TEMPLATE, hidden=HIDDEN)


@each_scripted_engine
def test_thoughts_come_beside_the_text_under_both_names(caller: Worker) -> None:
    answer = post(caller)
    message = {"role": "assistant", "content": UNCALLED, "reasoning_content": THOUGHT, "reasoning": THOUGHT}
    assert answer["choices"][0]["message"] == message
    assert answer["usage"]["completion_tokens"] == len(CALLER) + 1
    chunks = streamed(caller)
    assert (joined(chunks, "reasoning_content"), joined(chunks, "reasoning")) == (THOUGHT, THOUGHT)
    assert joined(chunks, "content") == UNCALLED
    assert len([each for each in chunks if each["delta"].get("reasoning")]) > 1, "as they are made"


@each_scripted_engine
def test_no_character_is_cut(caller: Worker) -> None:
    assert [each for each in streamed(caller) if "😀" in (each["delta"].get("content") or "")], "whole, of two tokens"
    cut = post(caller, "/v1/completions", prompt="<|assistant|>", max_tokens=len(THINKER) - 1)
    assert cut["choices"][0]["text"].endswith(": \N{REPLACEMENT CHARACTER}"), "half of it, where the answer was cut"


@pytest.mark.parametrize(
    ("fields", "thinks"),
    [
        *((fields, True) for fields in ({}, {"thinking": "default"}, {"thinking": "enabled"})),
        ({"reasoning_effort": "low"}, True),
        ({"thinking": "disabled"}, False),
        ({"reasoning_effort": "none"}, False),
        ({"chat_template_kwargs": {"enable_thinking": False}}, False),
        ({"thinking": "disabled", "chat_template_kwargs": {"enable_thinking": True}}, False),
    ],
)
@each_scripted_engine
def test_thinking_can_be_switched(caller: Worker, fields: dict[str, Any], thinks: bool) -> None:
    end = "<|assistant|>" if thinks else "<|assistant|><think></think>"
    assert post(caller, "/apply-template", **fields)["prompt"] == f"<|user|>hello<|end|>{end}"
    message = choice(caller, **fields)["message"]
    assert (message.get("reasoning"), message["content"]) == (
        (THOUGHT, UNCALLED) if thinks else (None, f"\n\n{UNCALLED}")
    )


@each_scripted_engine
def test_a_thought_that_the_prompt_began(caller: Worker) -> None:
    fields = {"chat_template_kwargs": {"begun": True}}
    assert post(caller, "/apply-template", **fields)["prompt"].endswith("<|assistant|><think>")
    message = choice(caller, **fields)["message"]
    assert (message["reasoning"], message["content"]) == (THOUGHT, UNCALLED)
    cut = choice(caller, max_tokens=2, **fields)
    output = cut["message"]["content"], cut["message"]["reasoning"], cut["finish_reason"]
    assert output == ("", "hm, </</thi", "length")


@each_scripted_engine
def test_earlier_thoughts_calls_and_results_reach_the_template(caller: Worker) -> None:
    for names in (["reasoning"], ["reasoning_content"], ["reasoning", "reasoning_content"]):
        output = {"role": "assistant", "content": "Hi", **dict.fromkeys(names, "so")}
        prompt = post(caller, "/apply-template", messages=[*USER, output, *USER])["prompt"]
        assert prompt == "<|user|>hello<|end|><|assistant|><think>so</think>Hi<|end|><|user|>hello<|end|><|assistant|>"
    call = {"id": "i", "type": "function", "function": {"name": "plan", "arguments": '{"day": "mon"}'}}
    conversation = [
        *USER,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "i", "content": [{"type": "text", "text": "done"}]},
    ]
    prompt = post(caller, "/apply-template", messages=conversation)["prompt"]
    assert prompt == (
        "<|user|>hello<|end|><|assistant|><tool_call>mon</tool_call><|end|><|tool|>done<|end|><|assistant|>"
    )


@each_scripted_engine
def test_a_stop_string_is_looked_for_in_what_is_said_not_in_what_is_thought(caller: Worker) -> None:
    ended = choice(caller, stop=["h"])
    assert (ended["message"]["content"], ended["message"]["reasoning"]) == (SPOKEN.split("h", maxsplit=1)[0], THOUGHT)


@each_engine(lambda engine: engine.name in (*SCRIPTED, "litert_lm"))
def test_the_model_s_own_calls(caller: Worker, engine: WorkerEngine) -> None:
    tools, calls, thought, spoken = [PLAN, REST], CALLS, THOUGHT, SPOKEN
    if engine.name == "litert_lm":
        tools, calls = [WEATHER], [litertlm_model.CALLED]
        thought, spoken = litertlm_model.THOUGHT, litertlm_model.SPOKEN
    for fields, created in (({}, calls), ({"parallel_tool_calls": False}, calls[:1])):
        ended = choice(caller, tools=tools, **fields)
        message = ended["message"]
        assert (message["reasoning"], message["content"], ended["finish_reason"]) == (thought, spoken, "tool_calls")
        assert calls_in(message) == created
        assert len({each["id"] for each in message["tool_calls"]}) == len(created)
        chunks = streamed(caller, tools=tools, **fields)
        deltas = [each for chunk in chunks for each in chunk["delta"].get("tool_calls", ())]
        assert [each["index"] for each in deltas] == [*range(len(created))]
        assert calls_in({"tool_calls": deltas}) == created
        assert (joined(chunks, "reasoning"), joined(chunks, "content")) == (thought, spoken)
        assert chunks[-1]["finish_reason"] == "tool_calls"


@each_engine(lambda engine: engine.name in (*SCRIPTED, "litert_lm"))
def test_without_tools_there_are_no_calls(caller: Worker, engine: WorkerEngine) -> None:
    tools, uncalled = ([WEATHER], None) if engine.name == "litert_lm" else ([PLAN], UNCALLED)
    for fields in ({}, {"tools": tools, "tool_choice": "none"}):
        ended = choice(caller, **fields)
        assert "tool_calls" not in ended["message"]
        assert ended["finish_reason"] == "stop"
        if uncalled is None:
            assert ended["message"]["content"].startswith(f"{litertlm_model.SPOKEN}<tool_call>")
        else:
            assert ended["message"]["content"] == uncalled
            assert post(caller, "/apply-template", **fields)["prompt"] == "<|user|>hello<|end|><|assistant|>"


@each_scripted_engine
def test_tools_reach_the_template_as_json_not_for_html(caller: Worker) -> None:
    prompt = post(caller, "/apply-template", tools=[tool("<ä>")])["prompt"]
    assert prompt.startswith('<|system|>[{"type": "function"')
    assert "<ä>" in prompt


@each_engine(lambda engine: engine.name in ("ct2", "exllamav3", "litert_lm"))
def test_it_says_that_it_cannot_be_made_to_call(caller: Worker, engine: WorkerEngine) -> None:
    tools = [WEATHER] if engine.name == "litert_lm" else [PLAN]
    assert error(caller, tools=tools, tool_choice="required") == (400, "tools_unsupported", "tool_choice")


@each_scripted_engine
def test_counts_are_those_of_the_answer(caller: Worker) -> None:
    counted = post(caller, f"{CHAT}/input_tokens", tools=[PLAN], thinking="disabled")["input_tokens"]
    assert counted == post(caller, tools=[PLAN], thinking="disabled")["usage"]["prompt_tokens"]


@each_engine(lambda engine: engine.name in (*SCRIPTED, "litert_lm"))
async def test_every_event_of_every_family_is_what_its_types_say(caller: Worker, engine: WorkerEngine) -> None:
    await _judge(caller, engine, "reasoning")


@each_engine(lambda engine: engine.name in ("stub", "llama_server"))
async def test_so_it_is_of_models_that_neither_think_nor_call(fleet: Fleet, engine: WorkerEngine) -> None:
    await _judge(fleet.plain(engine), engine, "message")


async def _judge(worker: Worker, engine: WorkerEngine, kind: str) -> None:
    """Of the item that its response has first, the type is `kind`."""
    declared = ENGINES[engine.name]
    definition = declared.definition.model_validate(
        {
            "backend": engine.name,
            "tools": kind == "reasoning",
            **({} if engine.name == "stub" else {"model_path": "m.gguf"}),
        }
    )
    created = route(
        "m",
        [f"http://127.0.0.1:{worker.port}"],
        token=TOKEN,
        served_name="demo",
        apis=declared.list_apis(definition),
        capabilities=declared.derive_capabilities(definition),
    )
    async with gateway_harness() as gateway:
        await gateway.publish(created.model_copy(update={"backend": engine.name}))
        assert (await judge_streams(gateway, "m", *([WEATHER] if kind == "reasoning" else [])))[0] == kind
