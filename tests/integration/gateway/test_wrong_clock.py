"""A gateway's process under a wall clock that jumps: nothing is lost before an operator confirms it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import openai
import pytest

from tests.fakes.fake_controller import route
from tests.fakes.gateway_harness import GatewayHarness, engines
from tests.fakes.mock_engine import MockEngine
from tests.support.gateway_process import running
from tests.support.response_state import Site
from tests.support.resumed_streams import read_again, read_stream
from tests.support.shifted_clock import ShiftedClock
from tests.support.wait import until

DAY = 86_400
AHEAD = "The wall clock is 40 d 0 h ahead"


@contextlib.asynccontextmanager
async def site(folder: Path, clock: ShiftedClock, engine: MockEngine) -> AsyncIterator[Site]:
    """A gateway process with the shifted clock, which is killed at the end."""
    async with running(ROUNDHOUSE_STATE=str(folder), **clock.variables) as (_, here):
        await here.publish(route("m", [engine.url]))
        async with openai.AsyncOpenAI(base_url=here.url + "/v1", api_key="none", max_retries=0) as client:
            yield Site(here, engine, client)


async def clock_reasons(here: GatewayHarness) -> list[str]:
    health = (await here.get("/health")).body
    return [part["reason"] for part in health["degraded"] if part["part"] == "clock"]


async def until_clock(here: GatewayHarness, *, is_held: bool) -> None:
    """Wait until the gateway sees that its clock has jumped."""

    async def look() -> bool:
        return bool(await clock_reasons(here)) == is_held

    await until("the gateway sees the jump", look)


async def test_a_jump_and_back_erases_nothing_and_a_confirmed_one_does(tmp_path: Path) -> None:
    folder, clock = tmp_path / "state", ShiftedClock(tmp_path / "shift")

    async def is_there(site: Site) -> None:
        assert await site.client.responses.retrieve(response.id) == response
        assert await site.client.conversations.retrieve(conversation.id) == conversation
        assert (await read_again(site.gateway)).body == body

    async with engines(1) as (engine,):
        async with site(folder, clock, engine) as here:
            conversation = await here.client.conversations.create()
            response = await here.make("one")
            body = (await read_stream(here.gateway)).content
            await until("the clock is kept", (folder / "clock-gateway.json").exists)
            assert await clock_reasons(here.gateway) == []
            clock.set_shift(40 * DAY)
            await until_clock(here.gateway, is_held=True)
            await is_there(here)
            # The wrong time is what its clients see.
            assert (await here.make("two")).created_at - response.created_at > 39 * DAY
        async with site(folder, clock, engine) as here:  # whose store deletes at the start what has expired
            assert (await clock_reasons(here.gateway))[0].startswith(AHEAD)
            await is_there(here)
            clock.set_shift(0)
            await until_clock(here.gateway, is_held=False)
            await is_there(here)
            clock.set_shift(40 * DAY)
            await until_clock(here.gateway, is_held=True)
            for was_held in (True, False):
                assert (await here.gateway.post("/v1/clock/confirm")).body == {"object": "clock", "was_held": was_held}
            assert await clock_reasons(here.gateway) == []
        async with site(folder, clock, engine) as here:
            clock.set_shift(0)
            with pytest.raises(openai.NotFoundError):
                await here.client.responses.retrieve(response.id)
            with pytest.raises(openai.NotFoundError):
                await here.client.conversations.retrieve(conversation.id)
            assert (await read_again(here.gateway)).status == 404
