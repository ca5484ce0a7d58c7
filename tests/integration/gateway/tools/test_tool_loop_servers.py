"""The loop of tools with a real MCP server of the package `mcp`, in a process of its own."""

from __future__ import annotations

import json
from typing import Any

import openai

from tests.fakes.fake_controller import route
from tests.fakes.fake_tool_model import Call, Fields, Move, tool_model
from tests.fakes.gateway_harness import GatewayHarness, gateway_harness
from tests.support.mcp_servers import mcp_process
from tests.support.responses import folded
from tests.support.tool_calls import list_servers
from tests.support.tool_loop import CHAT, RESPONSES, SAYS
from tests.support.wait import until

DEMO: Fields = {"type": "mcp", "server_label": "demo", "require_approval": "never"}


async def state_is(gateway: GatewayHarness, wanted: str) -> bool:
    """Whether the server `demo` is in this state."""
    return bool((await list_servers(gateway)).get("demo", {}).get("state") == wanted)


async def test_a_real_server_is_called_and_its_end_costs_its_own_call_alone() -> None:
    adds, crashes = Move(calls=[Call("demo__add", {"a": 2, "b": 3})]), Move(calls=[Call("demo__crash")])
    async with mcp_process() as server, tool_model(adds, SAYS, crashes, SAYS) as model, gateway_harness() as gateway:
        models = (route("m", [model.url], apis=(CHAT,)),)
        await gateway.controller.acknowledged(
            await gateway.controller.publish(*models, mcp_servers=(server.route("demo"),))
        )
        await until("the server is connected", lambda: state_is(gateway, "connected"))
        async with openai.AsyncOpenAI(base_url=gateway.url + "/v1", api_key="none", max_retries=0) as client:
            tools: Any = [DEMO]
            response: Any = await client.responses.create(model="m", input="Add.", tools=tools)
        listed, call, _ = response.output
        assert [tool.annotations for tool in listed.tools if tool.name == "add"] == [{"readOnlyHint": True}]
        assert (call.status, call.output, json.loads(call.arguments)) == ("completed", "5", {"a": 2, "b": 3})

        asked: Fields = {"model": "m", "input": "Crash.", "tools": [DEMO], "stream": True}
        async with gateway.post(RESPONSES, **asked) as answer:
            crashed = folded(await answer.read())
        _, call, message = crashed["output"]
        assert (call["status"], call["error"]["type"], call["error"]["code"]) == ("failed", "http_error", 502)
        assert (crashed["status"], message["type"]) == ("completed", "message")

        await until("the server is down", lambda: state_is(gateway, "down"))
        async with gateway.post(RESPONSES, **asked) as answer:
            later = folded(await answer.read())
        listed, message = later["output"]
        assert (listed["tools"], listed["error"]) == ([], "The MCP server demo is not reachable now.")
