"""Stored chat completions of a real llama-server that thinks and calls tools, through the `openai` package as it is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.fakes.gateway_harness import GatewayHarness
from tests.support.clockwork_caller import AGENT_TEMPLATE, make_caller
from tests.support.llama_servers import needed, started
from tests.support.responses_gateway import TOKEN, responses_gateway
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


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_completion_is_kept_as_it_was_told(gateway: GatewayHarness, is_stream: bool) -> None:
    def walk() -> None:
        tools: Any = [{"type": "function", "function": WEATHER}]
        body: dict[str, Any] = {"model": "agent", "tools": tools, "temperature": 0, "store": True}
        body["messages"] = [{"role": "user", "content": ASKED}]
        with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0) as client:
            completions = client.chat.completions
            if is_stream:
                with completions.stream(**body, metadata={"n": "1"}) as stream:
                    told = stream.get_final_completion()
            else:
                told = completions.create(**body, metadata={"n": "1"})
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
