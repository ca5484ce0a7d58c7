"""Conversations and stored chat completions of a real llama-server that thinks and calls tools, through the `openai`
package as it is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.fakes.gateway_harness import GatewayHarness
from tests.support.installed_engines import needed, started
from tests.support.responses_gateway import TOKEN, responses_gateway
from tests.support.scripted_model_file import AGENT_TEMPLATE, DONE_SAID, make_caller
from tests.support.worker_process import Worker

pytestmark = [pytest.mark.engines]

PARAMETERS = {"type": "object", "properties": {"city": {"enum": ["Paris"]}}, "required": ["city"]}
WEATHER = {"name": "get_weather", "description": "It.", "parameters": PARAMETERS}
ASKED = "How is the weather?"


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    needed("binary")
    folder: Path = tmp_path_factory.mktemp("engine")
    make_caller(folder / "agent.gguf")
    (folder / "agent.jinja").write_text(AGENT_TEMPLATE)
    template = ("--chat-template-file", str(folder / "agent.jinja"))
    with started("binary", folder, "agent", folder / "agent.gguf", *template, token=TOKEN) as engine:
        yield engine.ready()


@pytest.fixture
async def gateway(agent: Worker) -> AsyncIterator[GatewayHarness]:
    async with responses_gateway({"agent": agent}) as built:
        yield built


@pytest.fixture
async def client(gateway: GatewayHarness) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0) as made:
        yield made


async def test_an_agent_goes_through_a_conversation(client: openai.AsyncOpenAI) -> None:
    tools: Any = [{"type": "function", **WEATHER}]
    conversation = await client.conversations.create(metadata={"topic": "weather"})
    async with client.responses.stream(
        model="agent", input=ASKED, tools=tools, temperature=0, conversation=conversation.id
    ) as stream:
        first = await stream.get_final_response()
    [call] = [item for item in first.output if item.type == "function_call"]
    result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    await client.conversations.items.create(conversation.id, items=[result])
    answer = await client.responses.create(
        model="agent", input=[], tools=tools, temperature=0, conversation=conversation.id
    )
    assert answer.output_text == DONE_SAID
    items = [item async for item in client.conversations.items.list(conversation.id, order="asc")]
    kinds = ["message", "reasoning", "message", "function_call", "function_call_output", "message"]
    assert [item.type for item in items] == kinds
    assert [item.to_dict()["id"] for item in items[1:4]] == [item.to_dict()["id"] for item in first.output]
    retrieved = await client.responses.retrieve(first.id)
    shown = [
        {name: value for name, value in item.to_dict().items() if name not in ("answer", "parent_id")} for item in items
    ]
    assert shown[1:4] == [item.to_dict() for item in retrieved.output]
    # The same by `previous_response_id`, and the same tokens by the engine's own count.
    again = await client.responses.create(
        model="agent", input=[result], tools=tools, temperature=0, previous_response_id=first.id
    )
    assert again.output_text == DONE_SAID
    assert answer.usage is not None
    assert again.usage is not None
    assert again.usage.input_tokens == answer.usage.input_tokens


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_completion_is_kept_as_it_was_told(gateway: GatewayHarness, is_stream: bool) -> None:
    def walk() -> None:
        tools: Any = [{"type": "function", "function": WEATHER}]
        asked: dict[str, Any] = {"model": "agent", "tools": tools, "temperature": 0, "store": True}
        asked["messages"] = [{"role": "user", "content": ASKED}]
        with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0) as client:
            completions = client.chat.completions
            if is_stream:
                with completions.stream(**asked, metadata={"n": "1"}) as stream:
                    told = stream.get_final_completion()
            else:
                told = completions.create(**asked, metadata={"n": "1"})
            kept = completions.retrieve(told.id)
            message = kept.choices[0].message
            assert message.content == told.choices[0].message.content
            assert message.tool_calls is not None
            [call], [told_call] = message.tool_calls, told.choices[0].message.tool_calls or []
            assert call.id == told_call.id
            assert call.to_dict()["function"].items() <= told_call.to_dict()["function"].items()  # type: ignore[attr-defined]
            assert message.to_dict()["reasoning"] == message.to_dict()["reasoning_content"]
            assert kept.usage is not None
            assert kept.usage.completion_tokens > 1
            assert kept.to_dict()["tools"] == tools
            assert [each.id for each in completions.list(metadata={"n": "1"}, model="agent")] == [told.id]
            assert [each.content for each in completions.messages.list(told.id)] == [ASKED]
            completions.delete(told.id)

    await asyncio.to_thread(walk)
