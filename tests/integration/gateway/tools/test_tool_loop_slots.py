"""Slots and limits of loops of tools: each round queues and takes a slot, and no slot is held while a tool runs."""

from __future__ import annotations

import asyncio

import pytest

from tests.fakes.fake_tool_model import Fields, Move
from tests.fakes.gateway_harness import until
from tests.support.gateway_rest import nothing_left
from tests.support.queueing import Clock, clock, key
from tests.support.tool_loop import ASKS, HANGS, RESPONSES, SAYS, WEATHER, looping

__all__ = ["clock"]

LOOPS = 20
SLOTS = 4


def decide(body: Fields) -> Move:
    """Wait in a tool once, then answer; answer at once without tools."""
    if not body.get("tools"):
        return Move("Plain.")
    return SAYS if any(each["role"] == "tool" for each in body["messages"]) else HANGS


async def test_nobody_waits_for_a_tool() -> None:
    async with looping(decide=decide, m={"target_inflight": SLOTS}) as loop:
        loops = [asyncio.ensure_future(loop.create()) for _ in range(LOOPS)]
        await loop.until_in_tool(LOOPS)
        assert loop.model.most_running <= SLOTS
        await nothing_left(loop.gateway)
        # All loops wait for their tools, and all slots are free.
        others = await asyncio.gather(*(loop.client.responses.create(model="m", input="Hi") for _ in range(LOOPS)))
        assert [each.output_text for each in others] == ["Plain."] * LOOPS
        assert loop.servers.running == LOOPS
        loop.release.set()
        responses = await asyncio.gather(*loops)
        assert [each.output_text for each in responses] == ["It rains in Bonn."] * LOOPS
        assert loop.model.most_running <= SLOTS
        await nothing_left(loop.gateway)


async def test_each_round_queues() -> None:
    async with looping(decide=decide, m={"target_inflight": 1, "queue_limit": 1}) as loop:
        asking = asyncio.ensure_future(loop.create())
        await loop.until_in_tool()
        held = asyncio.ensure_future(loop.client.responses.create(model="m", input="Hi", extra_body={"hold": True}))
        assert (await held).output_text == "Plain."
        loop.release.set()
        assert (await asking).output_text == "It rains in Bonn."


@pytest.mark.parametrize("stream", [False, True])
async def test_the_key_pays_for_all_rounds_once(stream: bool, clock: Clock) -> None:
    keys = (key("a", tools=["weather__*"], tokens_per_minute=10_000, requests_per_minute=10, concurrency=1),)
    async with looping(ASKS, ASKS, SAYS, keys=keys) as loop:
        asked = {"model": "m", "input": "x", "tools": [WEATHER], "stream": stream}
        assert (await loop.gateway.post(RESPONSES, asked, key="secret-a")).status == 200
        assert len(loop.model.requests) == 3
        usage = await loop.spent("a")
        assert (usage.token_bucket.level, usage.request_bucket.level) == (10_000 - 45, 9)


async def test_a_client_that_leaves_pays_for_what_came(clock: Clock) -> None:
    keys = (key("a", tools=["weather__*"], tokens_per_minute=10_000),)
    async with looping(ASKS, HANGS, SAYS, keys=keys) as loop:
        asking = asyncio.ensure_future(loop.create())
        await loop.until_in_tool()
        asking.cancel()
        usage = await loop.spent("a")
        assert usage.token_bucket.level == 10_000 - 30, "two rounds of 15 tokens"


async def test_a_client_that_leaves_in_a_round_saves_nothing(clock: Clock) -> None:
    keys = (key("a", tools=["weather__*"], tokens_per_minute=10_000),)
    async with looping(ASKS, Move("It rains.", holds=True), keys=keys) as loop:
        asking = asyncio.ensure_future(loop.create(max_output_tokens=5000))
        await until(lambda: len(loop.model.requests) == 2 and loop.model.running == 1, "the second round runs")
        asking.cancel()
        usage = await loop.spent("a")
        assert 4_900 < usage.token_bucket.level < 5_000, "as many as were announced"


async def test_one_that_is_refused_pays_nothing() -> None:
    keys = (key("a", tools=["weather__*"], tokens_per_minute=1000, requests_per_minute=10),)
    async with looping(SAYS, keys=keys, m={"state": "unloaded"}) as loop:
        asked = {"model": "m", "input": "x", "tools": [WEATHER]}
        reply = await loop.gateway.post(RESPONSES, asked, key="secret-a")
        assert (reply.status, reply.headers["x-ratelimit-limit-tokens"]) == (503, "1000")
        usage = await loop.spent("a")
        assert (usage.token_bucket.level, usage.request_bucket.level) == (1000, 10)
