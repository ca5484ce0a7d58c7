"""A gateway whose model calls tools of the MCP server `weather`, and what tests ask of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import openai

from assistant.tools.spec import ToolCall, ToolResult
from contract.keys import Key
from contract.tools import ToolRoute
from tests.fakes.fake_controller import route
from tests.fakes.fake_tool_model import Call, Fields, Move, ToolModel, tool_model
from tests.fakes.fake_tool_servers import FakeServers, FakeTool, install
from tests.fakes.gateway_harness import GatewayHarness, gateway_harness, until
from tests.support.http_client import PendingReply

CHAT = "/v1/chat/completions"
RESPONSES = "/v1/responses"
WEATHER: Fields = {"type": "mcp", "server_label": "weather", "require_approval": "never"}
APPROVED: Fields = {"type": "mcp", "server_label": "weather"}
BONN = {"city": "Bonn"}
ASKS = Move(calls=[Call("weather__get", BONN)])
HANGS = Move(calls=[Call("weather__wait", BONN)])
SAYS = Move("It rains in Bonn.")


@dataclass
class Loop:
    """The gateway, its model `m`, and the tools `weather__get`, `weather__wait` and `weather__fail`."""

    gateway: GatewayHarness
    model: ToolModel
    servers: FakeServers
    client: openai.AsyncOpenAI
    release: asyncio.Event = field(default_factory=asyncio.Event)
    """Set: calls of `weather__wait` end."""

    def post(self, *, tools: Any = None, **fields: Any) -> PendingReply:
        """A response by POST."""
        body = {"model": "m", "input": "Weather?", "tools": [WEATHER] if tools is None else tools, **fields}
        return self.gateway.post(RESPONSES, body)

    async def create(self, *, tools: Any = None, **fields: Any) -> Any:
        """A response by OpenAI's client."""
        body = {"model": "m", "input": "Weather?", "tools": [WEATHER] if tools is None else tools, **fields}
        return await self.client.responses.create(**body)

    def messages(self, at: int = -1) -> list[Fields]:
        """What the engine was sent."""
        messages: list[Fields] = self.model.requests[at]["messages"]
        return messages

    async def until_in_tool(self, count: int = 1) -> None:
        """Wait until so many calls run."""
        await until(lambda: self.servers.running == count, f"{count} calls run")

    async def spent(self, name: str) -> Any:
        """What the limits of a key have left, once it has no request any more."""
        limits = self.gateway.services.limits
        await until(lambda: limits.count_inflight(name) == 0, "the request is not counted any more")
        return limits._states[name]

    def as_key(self, name: str) -> openai.AsyncOpenAI:
        """The client with that key."""
        return self.client.with_options(api_key=f"secret-{name}")


async def get(call: ToolCall) -> ToolResult:
    """It rains everywhere."""
    return ToolResult(f"Rain in {call.arguments['city']}")


async def fail(call: ToolCall) -> ToolResult:
    """It fails."""
    return ToolResult(f"There is no city {call.arguments['city']}", is_error=True)


@asynccontextmanager
async def looping(
    *moves: Move,
    keys: tuple[Key, ...] = (),
    tools: tuple[ToolRoute, ...] = (),
    m: Fields | None = None,
    decide: Any = None,
    **settings: Any,
) -> AsyncIterator[Loop]:
    """A gateway with these settings, and a model that makes these moves. `m`: fields of the model's route."""
    async with tool_model(*moves, decide=decide) as model, gateway_harness(**settings) as gateway:
        api_key = f"secret-{keys[0].name}" if keys else "none"
        async with openai.AsyncOpenAI(base_url=gateway.url + "/v1", api_key=api_key, max_retries=0) as client:
            loop = Loop(gateway, model, FakeServers(), client)

            async def wait(call: ToolCall) -> ToolResult:
                await loop.release.wait()
                return await get(call)

            loop.servers = install(
                gateway, FakeTool("weather__get", get), FakeTool("weather__wait", wait), FakeTool("weather__fail", fail)
            )
            models = [route("m", [model.url], apis=(CHAT,), **(m or {}))]
            stamp = await gateway.controller.publish(*models, keys=keys, tools=tools)
            await gateway.controller.acknowledged(stamp)
            try:
                yield loop
            finally:
                loop.release.set()
