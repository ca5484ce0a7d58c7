"""Chat completions with tools in forms that engines do not know, by the `openai` package: `functions` of before 2023,
and custom tools."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import openai

from tests.fakes.fake_controller import route
from tests.fakes.fake_tool_model import Call, Move, ToolModel, tool_model
from tests.fakes.gateway_harness import gateway_harness

HI: list[Any] = [{"role": "user", "content": "Hi"}]
WEATHER: dict[str, Any] = {
    "name": "weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}
ASKED: dict[str, Any] = {"functions": [WEATHER, {"name": "now"}]}
BONN = Move("Let me see.", [Call("weather", {"city": "Bönn"}), Call("now")])
SHELL = {"type": "custom", "custom": {"name": "shell", "description": "Runs.", "format": {"type": "text"}}}
FUNCTION: dict[str, Any] = {"type": "function", "function": WEATHER}
COMMAND = 'echo "ü\n'
RUNS = Move("", [Call("shell", {"input": COMMAND}), Call("weather", {"city": "Bonn"})])
WAYS = ["whole", "gathered", "stream"]
"""How the client is answered: a gathered answer is made of the engine's stream."""


@asynccontextmanager
async def asked(*moves: Move, backend: str = "vllm_serve") -> AsyncIterator[tuple[Any, ToolModel]]:
    """The SDK's method, and the engine of the models `whole`, `gathered` and `stream`."""
    async with tool_model(*moves) as model, gateway_harness() as gateway:
        update = {"backend": backend, "notices_leaving": True}
        models = [route(way, [model.url]).model_copy(update=update) for way in WAYS]
        models[1] = models[1].model_copy(update={"notices_leaving": False})
        await gateway.publish(*models)
        async with openai.AsyncOpenAI(base_url=gateway.url + "/v1", api_key="none", max_retries=0) as client:
            yield client.chat.completions.create, model


async def choice_of(create: Any, way: str, **fields: Any) -> dict[str, Any]:
    """The message and the finish reason of the first choice. The deltas of a stream are put together."""
    fields = {"model": way, "messages": HI, **fields}
    if way != "stream":
        choice = (await create(**fields)).choices[0]
        return {**choice.message.model_dump(exclude_unset=True), "finish": choice.finish_reason}
    message: dict[str, Any] = {"content": ""}
    async for chunk in await create(**fields, stream=True):
        choice = chunk.choices[0]
        delta = choice.delta.model_dump(exclude_unset=True)
        message["content"] += delta.get("content") or ""
        if call := delta.get("function_call"):
            grown = message.setdefault("function_call", {"name": "", "arguments": ""})
            for name, text in call.items():
                grown[name] += text
        for call in delta.get("tool_calls") or []:
            calls = message.setdefault("tool_calls", {})
            grown = calls.setdefault(call.pop("index"), call)
            if grown is not call:
                grown["function"]["arguments"] += call["function"]["arguments"]
        message["finish"] = choice.finish_reason or message.get("finish")
    if "tool_calls" in message:
        message["tool_calls"] = list(message["tool_calls"].values())
    return message


async def test_functions_are_called_as_before_2023() -> None:
    async with asked(*[BONN, Move("Rain.")] * len(WAYS)) as (create, model):
        for way in WAYS:
            said = await choice_of(create, way, **ASKED, function_call={"name": "weather"})
            assert said["content"] == "Let me see."
            assert said["function_call"]["name"] == "weather"
            assert json.loads(said["function_call"]["arguments"]) == {"city": "Bönn"}
            assert ("tool_calls" in said, said["finish"]) == (False, "function_call")
            history = [
                *HI,
                {"role": "assistant", "content": None, "function_call": said["function_call"]},
                {"role": "function", "name": "weather", "content": "rain"},
            ]
            then = await choice_of(create, way, messages=history, **ASKED)
            assert (then["content"], then["finish"], "function_call" in then) == ("Rain.", "stop", False)
            first, second = model.requests[-2:]
            assert [tool["function"]["name"] for tool in first["tools"]] == ["weather", "now"]
            assert {tool["type"] for tool in first["tools"]} == {"function"}
            assert first["tool_choice"] == {"type": "function", "function": {"name": "weather"}}
            assert first["parallel_tool_calls"] is False
            assert first.keys().isdisjoint(("functions", "function_call"))
            call, result = second["messages"][1:]
            assert call["tool_calls"][0]["function"] == said["function_call"]
            assert result == {"role": "tool", "tool_call_id": call["tool_calls"][0]["id"], "content": "rain"}
            assert len(result["tool_call_id"]) == 9
            assert result["tool_call_id"].isalnum()
            assert "tool_choice" not in second


async def test_legacy_fields_that_say_nothing_change_nothing() -> None:
    """Clients send all their fields, and echo the messages that they got."""
    echoed = {"role": "assistant", "content": "Hm.", "function_call": None, "tool_calls": None}
    odd_fields: list[dict[str, Any]] = [{"functions": None, "function_call": None}, {"functions": []}]
    for odd in (*odd_fields, {"function_call": "auto"}):
        async with asked(*[BONN] * len(WAYS)) as (create, model):
            for way in WAYS:
                answer = await choice_of(create, way, tools=[FUNCTION], messages=[*HI, echoed, *HI], extra_body=odd)
                assert [call["function"]["name"] for call in answer["tool_calls"]] == ["weather", "now"], (odd, way)
                assert (answer["finish"], answer.get("function_call")) == ("tool_calls", None)
            assert not any(model.requests[-1].get(name) for name in ("functions", "function_call"))


async def test_custom_tools_take_text() -> None:
    async with asked(*[RUNS, Move("Done.")] * len(WAYS)) as (create, model):
        for way in WAYS:
            choice = {"type": "custom", "custom": {"name": "shell"}}
            said = await choice_of(create, way, tools=[SHELL, FUNCTION], tool_choice=choice)
            calls = {call["type"]: call for call in said["tool_calls"]}
            assert calls["custom"]["custom"] == {"name": "shell", "input": COMMAND}
            assert json.loads(calls["function"]["function"]["arguments"]) == {"city": "Bonn"}
            assert said["finish"] == "tool_calls"
            turn = {"role": "assistant", "content": None, "tool_calls": said["tool_calls"]}
            results = [{"role": "tool", "tool_call_id": call["id"], "content": "ok"} for call in said["tool_calls"]]
            # The last request of an agent may offer nothing more.
            assert (await choice_of(create, way, messages=[*HI, turn, *results]))["content"] == "Done."
            first, second = model.requests[-2:]
            assert [tool["type"] for tool in first["tools"]] == ["function", "function"]
            shell = first["tools"][0]["function"]
            assert (shell["name"], shell["description"]) == ("shell", "Runs.")
            assert first["tool_choice"] == {"type": "function", "function": {"name": "shell"}}
            sent = {call["function"]["name"]: call for call in second["messages"][1]["tool_calls"]}
            assert json.loads(sent["shell"]["function"]["arguments"]) == {"input": COMMAND}
            assert sent["shell"]["id"] == calls["custom"]["id"]


async def test_grammars_allowed_tools_and_long_texts_reach_the_model() -> None:
    grammar = {"type": "grammar", "grammar": {"syntax": "lark", "definition": 'start: "a"'}}
    picky = {"type": "custom", "custom": {"name": "pick", "format": grammar}}
    names = [{"type": "custom", "custom": {"name": "pick"}}]
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": names}}
    long = "x" * 600_000
    call = {"id": "c", "type": "custom", "custom": {"name": "s", "input": long}}
    history = [
        {"role": "user", "content": long},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "ok"},
    ]
    async with asked(Move("x"), BONN) as (create, model):
        await choice_of(create, "whole", tools=[picky, SHELL], tool_choice=choice)
        assert (await choice_of(create, "whole", messages=history, **ASKED, store=True))["finish"] == "function_call"
    sent, large = model.requests
    assert [tool["function"]["name"] for tool in sent["tools"]] == ["pick"]
    assert 'start: "a"' in sent["tools"][0]["function"]["description"]
    assert sent["tool_choice"] == "required"
    assert large["messages"][0]["content"] == long
    assert json.loads(large["messages"][1]["tool_calls"][0]["function"]["arguments"]) == {"input": long}


async def test_a_remote_gets_custom_tools_as_they_are_and_functions_as_tools() -> None:
    async with asked(BONN, backend="openai_remote") as (create, model):
        await choice_of(create, "whole", tools=[SHELL, {"type": "web_search"}])
        assert (await choice_of(create, "whole", **ASKED))["function_call"]["name"] == "weather"
    first, second = model.requests
    assert first["tools"] == [SHELL, {"type": "web_search"}]
    assert second["tools"][0] == FUNCTION
