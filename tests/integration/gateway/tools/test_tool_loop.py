"""The loop of tools in responses: the gateway runs the calls that the model makes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import openai

from tests.fakes.fake_controller import route
from tests.fakes.fake_mcp_servers import FakeServers, install, weather
from tests.fakes.fake_tool_model import Call, Move, ToolModel, tool_model
from tests.fakes.gateway_harness import GatewayHarness, gateway_harness
from tests.support.responses import folded

CHAT = "/v1/chat/completions"
WEATHER: dict[str, Any] = {"type": "mcp", "server_label": "weather", "require_approval": "never"}
ASKS = Move(calls=[Call("weather__get", {"city": "Bonn"})])
SAYS = Move("It rains in Bonn.")


@asynccontextmanager
async def looping(*moves: Move, **more: Any) -> AsyncIterator[tuple[GatewayHarness, ToolModel, FakeServers]]:
    async with tool_model(*moves, **more) as model, gateway_harness() as here:
        await here.publish(route("m", [model.url], apis=(CHAT,)))
        yield here, model, install(here, weather())


def sdk(here: GatewayHarness) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(api_key="none", base_url=here.url + "/v1", max_retries=0)


async def test_blocking() -> None:
    async with looping(ASKS, SAYS) as (here, model, servers), sdk(here) as client:
        response = await client.responses.create(model="m", input="Weather?", tools=[WEATHER])
        print(response.to_json())
        assert servers.calls == [("weather__get", {"city": "Bonn"})]
        print(model.requests)
        assert response.output_text == "ItrainsinBonn."


async def test_stream() -> None:
    async with looping(ASKS, SAYS) as (here, model, servers):
        async with here.post("/v1/responses", model="m", input="Weather?", tools=[WEATHER], stream=True) as answer:
            print((await answer.read()).decode())
            assert 0
