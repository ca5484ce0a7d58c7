"""The loop of tools with real servers: an MCP server of the package `mcp`, and llama-servers whose model calls under
a grammar."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types.responses import ResponseReasoningItem
from openai.types.responses.response_output_item import McpApprovalRequest, McpCall, McpListTools

from assistant.tools.spec import ToolCall, ToolResult
from tests.fakes.fake_controller import route
from tests.fakes.fake_tool_model import Call, Fields, Move, tool_model
from tests.fakes.fake_tool_servers import FakeServers, FakeTool, install
from tests.fakes.gateway_harness import GatewayHarness, gateway_harness
from tests.support.gateway_rest import nothing_left
from tests.support.installed_engines import needed
from tests.support.mcp_servers import mcp_process
from tests.support.responses import folded
from tests.support.responses_gateway import TOKEN, agent_engine, responses_gateway
from tests.support.scripted_model_file import DONE_SAID, SPOKEN, THOUGHT
from tests.support.tool_calls import in_state
from tests.support.tool_loop import APPROVED, CHAT, RESPONSES, SAYS, WEATHER
from tests.support.wait import until
from tests.support.worker_process import Worker

PARIS: Fields = {"type": "object", "properties": {"city": {"enum": ["Paris"]}}, "required": ["city"]}
LONG = "How is the weather? " + "hello " * 200
SLOTS = 4
SESSIONS: Fields = {"session_cache": SLOTS, "session_binding": "slot", "target_inflight": SLOTS}
COLD: Fields = {"model": "agent", "input": "How is the weather?", "temperature": 0}


def with_engine(test: Any) -> Any:
    """A real engine is started for it."""
    return pytest.mark.engines(pytest.mark.embedded(test))


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Worker]]:
    needed("embedded")
    with agent_engine("embedded", tmp_path_factory.mktemp("engines")) as worker:
        yield {"agent": worker.ready()}


@pytest.fixture
async def gateway(engine: dict[str, Worker]) -> AsyncIterator[GatewayHarness]:
    async with responses_gateway(engine) as built:
        yield built


@pytest.fixture
def servers(gateway: GatewayHarness) -> FakeServers:
    async def sunny(call: ToolCall) -> ToolResult:
        return ToolResult(f"sunny in {call.arguments['city']}")

    return install(gateway, FakeTool("weather__get", sunny, PARIS))


@with_engine
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
    streamed = await gateway.post("/v1/responses", **asked, stream=True)
    folded_response = folded(streamed.content)
    kinds = [item.type for item in response.output]
    assert [item["type"] for item in folded_response["output"]] == kinds
    assert folded_response["usage"]["output_tokens"] == response.usage.output_tokens
    await nothing_left(gateway)


@with_engine
async def test_the_engine_finds_the_first_round_in_its_cache(gateway: GatewayHarness, servers: FakeServers) -> None:
    asked: Fields = {**COLD, "tools": [WEATHER], "store": False}
    usage = (await gateway.post("/v1/responses", **asked)).body["usage"]
    assert usage["input_tokens_details"]["cached_tokens"] > usage["input_tokens"] // 3


@with_engine
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


@with_engine
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
    await until("the tool is cancelled", lambda: servers.cancelled == 1)


@contextlib.asynccontextmanager
async def agents(folder: Path, count: int) -> AsyncIterator[tuple[GatewayHarness, list[Worker]]]:
    """A gateway whose model `m` is so many llama-servers of four slots, which call a tool and answer with its result.
    While the tool runs, eight others ask for something else."""
    needed("embedded")
    async with contextlib.AsyncExitStack() as stack:
        workers = []
        for number in range(count):
            place = folder / str(number)
            place.mkdir()
            workers.append(stack.enter_context(agent_engine("embedded", place, "--cache-ram", "0")))
        for worker in workers:
            worker.ready()
        gateway = await stack.enter_async_context(gateway_harness())
        urls = [f"http://127.0.0.1:{worker.port}" for worker in workers]
        made = route("m", urls, token=TOKEN, served_name="inner-agent", apis=("/v1/chat/completions",), **SESSIONS)
        await gateway.publish(made.model_copy(update={"backend": "llama_server"}))
        others = iter(range(1000))

        async def sunny(call: ToolCall) -> ToolResult:
            for _ in range(2 * SLOTS):
                said = f"{next(others)} other " + "hello " * 50
                messages = [{"role": "user", "content": said}]
                reply = await gateway.post("/v1/chat/completions", model="m", messages=messages, max_tokens=1)
                assert reply.status == 200, reply.text
            return ToolResult(f"sunny in {call.arguments['city']}")

        install(gateway, FakeTool("weather__get", sunny, PARIS))
        yield gateway, workers


@with_engine
@pytest.mark.parametrize("count", [1, 2])
async def test_the_second_round_finds_the_first_in_the_engines_cache(tmp_path: Path, count: int) -> None:
    async with agents(tmp_path, count) as (gateway, _):
        decisions, prompts, evaluated = [], [], []
        previous: Fields = {}
        for number in range(2):
            asked = {"model": "m", "input": f"{number} {LONG}", "tools": [WEATHER], "temperature": 0, **previous}
            reply = await gateway.post(RESPONSES, **asked)
            response = reply.body
            assert reply.status == 200, response
            assert [item["type"] for item in response["output"]][-2:] == ["mcp_call", "message"]
            assert response["output"][-1]["content"][0]["text"] == DONE_SAID
            usage = response["usage"]
            decisions.append(reply.headers.get("x-session"))
            prompts.append(usage["input_tokens"])
            evaluated.append(usage["input_tokens"] - usage["input_tokens_details"]["cached_tokens"])
            previous = {"previous_response_id": response["id"]}
        assert decisions == ["new", "reused"]
        # Of two rounds, one and the few tokens of a call and its result: the message is computed once.
        assert prompts[0] // 2 <= evaluated[0] <= prompts[0] // 2 + 60
        # Of a longer conversation, again the new message alone.
        assert prompts[1] > 2 * prompts[0]
        assert evaluated[1] <= evaluated[0] + 60


DEMO: Fields = {"type": "mcp", "server_label": "demo", "require_approval": "never"}


async def test_a_real_server_is_called_and_its_end_costs_its_own_call_alone() -> None:
    adds, crashes = Move(calls=[Call("demo__add", {"a": 2, "b": 3})]), Move(calls=[Call("demo__crash")])
    async with mcp_process() as server, tool_model(adds, SAYS, crashes, SAYS) as model, gateway_harness() as gateway:
        models = (route("m", [model.url], apis=(CHAT,)),)
        await gateway.controller.acknowledged(
            await gateway.controller.publish(*models, mcp_servers=(server.route("demo"),))
        )
        await in_state(gateway, "demo", "connected")
        async with openai.AsyncOpenAI(base_url=gateway.url + "/v1", api_key="none", max_retries=0) as client:
            tools: Any = [DEMO]
            response: Any = await client.responses.create(model="m", input="Add.", tools=tools)
        listed, call, _ = response.output
        assert [tool.annotations for tool in listed.tools if tool.name == "add"] == [{"readOnlyHint": True}]
        assert (call.status, call.output, json.loads(call.arguments)) == ("completed", "5", {"a": 2, "b": 3})

        asked: Fields = {"model": "m", "input": "Crash.", "tools": [DEMO], "stream": True}
        crashed = folded((await gateway.post(RESPONSES, **asked)).content)
        _, call, message = crashed["output"]
        assert (call["status"], call["error"]["type"], call["error"]["code"]) == ("failed", "http_error", 502)
        assert (crashed["status"], message["type"]) == ("completed", "message")

        await in_state(gateway, "demo", "down")
        later = folded((await gateway.post(RESPONSES, **asked)).content)
        listed, message = later["output"]
        assert (listed["tools"], listed["error"]) == ([], "The MCP server demo is not reachable now.")
