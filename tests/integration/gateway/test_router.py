"""The routes of llama-server's router mode."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from controller.schema.status import ModelState
from tests.fakes.fake_controller import route
from tests.fakes.gateway_harness import GatewayHarness, gateway_harness


class Reader:
    """A client of `GET /models/sse`."""

    def __init__(self, answer: aiohttp.ClientResponse) -> None:
        self._answer = answer
        self.last_id = ""

    async def next(self) -> dict[str, Any] | None:
        """The next event; None: the stream has ended."""
        async for line in self._answer.content:
            name, _, value = line.decode().rstrip("\n").partition(": ")
            if name == "id":
                self.last_id = value
            elif name == "data":
                event: dict[str, Any] = json.loads(value)
                return event
        return None


@asynccontextmanager
async def following(here: GatewayHarness, after: str | None = None) -> AsyncIterator[Reader]:
    """A reader whose stream has begun."""
    headers = {} if after is None else {"last-event-id": after}
    async with here.client.get(f"{here.url}/models/sse", headers=headers) as answer:
        assert answer.status == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert await answer.content.readline() == b": ok\n"
        yield Reader(answer)


async def test_events_of_a_load_come_in_order() -> None:
    async with gateway_harness() as here:
        await here.publish(route("m", state=ModelState.UNLOADED))
        async with following(here) as reader:
            await here.publish(route("m", state=ModelState.LOADING, progress=0.25))
            await here.publish(route("m", state=ModelState.LOADED))
            progress = {"stages": ["text_model"], "current": "text_model", "value": 0.25}
            assert await reader.next() == {
                "model": "m", "event": "model_status", "data": {"status": "loading", "progress": progress},
            }  # fmt: skip
            assert await reader.next() == {"model": "m", "event": "model_status", "data": {"status": "loaded"}}
            await here.publish(route("n", state=ModelState.FAILED))
            assert await reader.next() == {"model": "m", "event": "model_remove"}
            assert await reader.next() == {"model": "*", "event": "models_reload"}
            assert await reader.next() == {
                "model": "n", "event": "model_status", "data": {"status": "unloaded", "failed": True},
            }  # fmt: skip


async def test_a_reader_that_comes_back_loses_nothing() -> None:
    async with gateway_harness() as here:
        await here.publish(route("m", state=ModelState.UNLOADED))
        async with following(here) as reader:
            await here.publish(route("m", state=ModelState.LOADING))
            await reader.next()
            last_id = reader.last_id
        await here.publish(route("m", state=ModelState.LOADED))
        await here.publish(route("m", state=ModelState.UNLOADING))
        async with following(here, last_id) as reader:
            assert [(await reader.next() or {})["data"]["status"] for _ in range(2)] == ["loaded", "unloaded"]
        async with following(here, "999999") as reader:
            assert await reader.next() == {"model": "*", "event": "models_reload"}, "an id of another process"


async def test_a_stop_ends_readers() -> None:
    async with gateway_harness() as here, following(here) as reader:
        assert here.server is not None
        here.server.should_exit = True
        assert await reader.next() is None


async def test_load_and_unload_are_asked_of_the_controller() -> None:
    async with gateway_harness() as here:
        await here.publish(route("org/m:Q4", aliases=("short",), state=ModelState.UNLOADED))
        for step, expected in (("load", {}), ("unload", {"hold": False})):
            async with here.post(f"/models/{step}", model="short") as answer:
                assert (answer.status, await answer.json()) == (200, {"success": True})
            asked = here.controller.admin.asked[-1]
            assert (asked.method, asked.target) == ("POST", f"/v1/admin/models/org/m%3AQ4/{step}?wait=false")
            assert asked.headers["x-roundhouse-actor"] == "api 127.0.0.1"
            assert json.loads(asked.body) == expected
        async with here.post("/models/load", model="nobody") as answer:
            assert (answer.status, (await answer.json())["error"]["code"]) == (404, "unknown_model")
        await here.controller.stop()
        async with here.post("/models/load", model="short") as answer:
            assert (answer.status, (await answer.json())["error"]["code"]) == (503, "controller_unavailable")
