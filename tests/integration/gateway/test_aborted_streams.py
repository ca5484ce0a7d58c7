"""Streams that end early: what the engine generated until then is counted, and the gateway stays ready."""

from __future__ import annotations

import asyncio
import random
import re
from typing import Any

import pytest

from tests.fakes.fake_controller import route
from tests.fakes.gateway_harness import GatewayHarness, engines, gateway_harness
from tests.support.campaign import RecordProperty, campaign_count, campaign_seed, record_figure
from tests.support.wait import until

ABORTED = campaign_count(100, 2_000)
AT_ONCE = 50
PATHS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hi"}]},
    "/v1/completions": {"prompt": "Hi"},
    "/v1/responses": {"input": "Hi", "store": False},
    "/v1/messages": {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 100},
}
WORD_MARKS = {
    "/v1/chat/completions": b'"finish_reason":null',
    "/v1/completions": b'"finish_reason":null',
    "/v1/responses": b"event: response.output_text.delta",
    "/v1/messages": b'"finish_reason":null',
}
"""What each word of an answer has once. The mock sends its own form to `/v1/messages`, which is passed through."""


def value_of(metrics: str, name: str, **labels: str) -> float:
    """A sample of the gateway's metrics; 0 if it is not there."""
    shown = "{" + ",".join(f'{label}="{value}"' for label, value in sorted(labels.items())) + "}"
    found = re.search(rf"^roundhouse_gateway_{name}{re.escape(shown)} (\S+)$", metrics, re.MULTILINE)
    return float(found[1]) if found else 0.0


async def leave_after(gateway: GatewayHarness, path: str, words: int) -> None:
    """Ask for a stream of which the engine sends `words` words and then nothing, read them, and leave."""
    fields = {"max_tokens": 100, **PATHS[path]}
    asked = gateway.post(path, model="m", stream=True, fault="pause_until_release", after=words, **fields)
    async with asked as answer:
        assert answer.status == 200
        read = b""
        while read.count(WORD_MARKS[path]) < words:
            read += await answer.content.readany()
        answer.close()


@pytest.mark.parametrize("path", PATHS)
async def test_a_stream_that_is_left_costs_what_came(path: str) -> None:
    async with gateway_harness() as gateway, engines(1) as (engine,):
        engine.words = ["The", "quick", "brown"]
        await gateway.publish(route("m", [engine.url]))
        await leave_after(gateway, path, 3)
        await until("the engine sees it", lambda: engine.cancelled == 1)
        await gateway.idle()
        metrics = await gateway.metrics()
    assert value_of(metrics, "tokens_total", direction="out", model="m") == 3
    assert value_of(metrics, "tokens_total", direction="in", model="m") == 0, "no engine has told it"
    assert value_of(metrics, "unreported_tokens_total", model="m") == 3
    assert value_of(metrics, "request_outcomes_total", model="m", outcome="cancelled") == 1


async def test_an_engine_that_dies_has_generated_what_came() -> None:
    async with gateway_harness() as gateway, engines(1) as (engine,):
        await gateway.publish(route("m", [engine.url]))
        await gateway.chat(stream=True, fault="die_mid_stream", after=5)
        metrics = await gateway.metrics()
    assert value_of(metrics, "tokens_total", direction="out", model="m") == 5
    assert value_of(metrics, "request_outcomes_total", model="m", outcome="errored") == 1


async def test_what_an_engine_reports_is_not_counted_again() -> None:
    async with gateway_harness() as gateway, engines(1) as (engine,):
        await gateway.publish(route("m", [engine.url]))
        await gateway.chat(stream=True)
        metrics = await gateway.metrics()
    assert value_of(metrics, "tokens_total", direction="out", model="m") == 13
    assert value_of(metrics, "unreported_tokens_total", model="m") == 0
    assert value_of(metrics, "time_per_output_token_seconds_count", model="m") == 1
    assert value_of(metrics, "time_to_first_token_seconds_count", model="m") == 1
    assert value_of(metrics, "request_outcomes_total", model="m", outcome="completed") == 1


async def test_many_aborted_streams_are_counted_to_the_token_and_block_nobody(record_property: RecordProperty) -> None:
    random_words = random.Random(campaign_seed())
    wanted = [random_words.randint(1, 30) for _ in range(ABORTED)]
    async with gateway_harness() as gateway, engines(1) as (engine,):
        engine.words = ["The", "quick", "brown"]
        await gateway.publish(route("m", [engine.url], target_inflight=AT_ONCE))
        is_over = asyncio.Event()

        async def read_readiness() -> int:
            asked = 0
            while not is_over.is_set():
                assert (await gateway.get("/health/ready")).status == 200
                asked += 1
            return asked

        pending = asyncio.create_task(read_readiness())
        limit = asyncio.Semaphore(AT_ONCE)

        async def leave(words: int) -> None:
            async with limit:
                await leave_after(gateway, "/v1/chat/completions", words)

        await asyncio.gather(*(leave(words) for words in wanted))
        is_over.set()
        assert await pending
        await until("the engine sees each of them", lambda: engine.cancelled == ABORTED)
        await gateway.idle()
        metrics = await gateway.metrics()
    assert value_of(metrics, "tokens_total", direction="out", model="m") == sum(wanted)
    assert value_of(metrics, "client_disconnects_total", model="m", route="/v1/chat/completions") == ABORTED
    record_figure(record_property, "aborted streams whose tokens were counted", ABORTED)
