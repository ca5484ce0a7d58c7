"""The loop of tools with a real llama-server, whose model calls a tool under a grammar, and OpenAI's own clients."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import openai
import pytest
from openai.types.responses import ResponseReasoningItem
from openai.types.responses.response_output_item import McpApprovalRequest, McpCall, McpListTools

from gateway.tools.spec import ToolCall, ToolResult
from tests.fakes.fake_tool_servers import FakeServers, FakeTool, install
from tests.fakes.gateway_harness import GatewayHarness, until
from tests.support.clockwork_caller import DONE_SAID, SPOKEN, THOUGHT
from tests.support.gateway_rest import nothing_left
from tests.support.llama_servers import needed
from tests.support.responses import Fields, folded
from tests.support.responses_gateway import agent_engine, responses_gateway
from tests.support.tool_loop import APPROVED, WEATHER
from tests.support.worker_process import Worker

pytestmark = [pytest.mark.engines, pytest.mark.embedded]

PARIS: Fields = {"type": "object", "properties": {"city": {"enum": ["Paris"]}}, "required": ["city"]}
COLD: Fields = {"model": "agent", "input": "How is the weather?", "temperature": 0}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Worker]]:
    needed("embedded")
    with agent_engine("embedded", tmp_path_factory.mktemp("engines")) as agent:
        yield {"agent": agent.ready()}


@pytest.fixture
async def gateway(made: dict[str, Worker]) -> AsyncIterator[GatewayHarness]:
    async with responses_gateway(made) as built:
        yield built


@pytest.fixture
def servers(gateway: GatewayHarness) -> FakeServers:
    async def sunny(call: ToolCall) -> ToolResult:
        return ToolResult(f"sunny in {call.arguments['city']}")

    return install(gateway, FakeTool("weather__get", sunny, PARIS))


@pytest.mark.parametrize("choice", ["auto", "required", {"type": "mcp", "server_label": "weather", "name": "get"}])
async def test_a_model_calls_and_goes_on(gateway: GatewayHarness, servers: FakeServers, choice: Any) -> None:
    asked: Fields = {**COLD, "tools": [WEATHER], "tool_choice": choice}
    async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0) as client:
        response: Any = await client.responses.create(**asked)
    *said, call, answer = response.output
    assert isinstance(said[0], McpListTools)
    if choice == "auto":
        assert isinstance(said[1], ResponseReasoningItem)
        assert [part.text for part in said[1].content or ()] == [THOUGHT]
        assert said[2].content[0].text == SPOKEN
    assert isinstance(call, McpCall)
    assert (json.loads(call.arguments), call.output) == ({"city": "Paris"}, "sunny in Paris")
    assert answer.content[0].text == DONE_SAID
    assert servers.calls == [("weather__get", {"city": "Paris"})]
    async with gateway.post("/v1/responses", **asked, stream=True) as streamed:
        folded_response = folded(await streamed.read())
    kinds = [item.type for item in response.output]
    assert [item["type"] for item in folded_response["output"]] == kinds
    assert folded_response["usage"]["output_tokens"] == response.usage.output_tokens
    await nothing_left(gateway)


async def test_the_engine_finds_the_first_round_in_its_cache(gateway: GatewayHarness, servers: FakeServers) -> None:
    asked: Fields = {**COLD, "tools": [WEATHER], "store": False}
    usage = (await gateway.post("/v1/responses", **asked)).body["usage"]
    assert usage["input_tokens_details"]["cached_tokens"] > usage["input_tokens"] // 3


async def test_openais_other_client_approves(gateway: GatewayHarness, servers: FakeServers) -> None:
    def ask() -> str:
        with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0) as client:
            tools: Any = [APPROVED]
            first = client.responses.create(model="agent", input="How is the weather?", temperature=0, tools=tools)
            request = first.output[-1]
            assert isinstance(request, McpApprovalRequest)
            assert servers.calls == []
            second = client.responses.create(
                model="agent",
                temperature=0,
                previous_response_id=first.id,
                tools=tools,
                input=[{"type": "mcp_approval_response", "approval_request_id": request.id, "approve": True}],
            )
            return second.output_text

    assert await asyncio.to_thread(ask) == DONE_SAID
    assert servers.calls == [("weather__get", {"city": "Paris"})]


async def test_a_client_that_leaves_frees_the_slot(gateway: GatewayHarness, servers: FakeServers) -> None:
    entered = asyncio.Event()

    async def wait(_: ToolCall) -> ToolResult:
        entered.set()
        await asyncio.Event().wait()
        return ToolResult("")

    servers.tools = [FakeTool("weather__get", wait, PARIS)]
    async with gateway.post("/v1/responses", **COLD, tools=[WEATHER], stream=True):
        await entered.wait()
        await nothing_left(gateway)
    await until(lambda: servers.cancelled == 1, "the tool is cancelled")
