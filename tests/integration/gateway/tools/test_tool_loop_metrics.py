"""Metrics of loops of tools: a response is one request of its client, and its rounds are the engines' work."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.fakes.fake_tool_model import Move
from tests.fakes.gateway_harness import until
from tests.support.gateway_rest import nothing_left
from tests.support.http_client import PendingReply
from tests.support.queueing import key
from tests.support.tool_loop import ASKS, RESPONSES, SAYS, WEATHER, Loop, looping

CLIENTS = (
    *("requests_total", "request_outcomes_total", "refusals_total", "client_disconnects_total"),
    *("broken_answers_total", "key_requests_total", "client_requests_total"),
    *("request_duration_seconds_count", "first_byte_seconds_count"),
)
"""What counts requests of clients, without the gateway's prefix."""
ENGINES = (
    *("rounds_total", "tokens_total", "key_tokens_total", "request_tokens_count", "time_to_first_token_seconds_count"),
    *("time_per_output_token_seconds_count", "unreported_tokens_total"),
)
"""What counts the work of engines."""


async def counted(loop: Loop, names: tuple[str, ...]) -> dict[tuple[str, ...], float]:
    """The samples of these names that are not 0, by name and the values of their labels but `model` and `route`."""
    await nothing_left(loop.gateway)
    samples: dict[tuple[str, ...], float] = {}
    for family in text_string_to_metric_families(await loop.gateway.metrics()):
        for sample in family.samples:
            name = sample.name.removeprefix("roundhouse_gateway_")
            if name in names and sample.value:
                labels = [value for label, value in sorted(sample.labels.items()) if label not in ("model", "route")]
                samples[name, *labels] = sample.value
    return samples


def post(loop: Loop, **fields: Any) -> PendingReply:
    """A response for the client `app` with the key `a`."""
    body = {"model": "m", "input": "Weather?", "tools": [WEATHER], **fields}
    return loop.gateway.post(RESPONSES, body, key="secret-a", headers={"user-agent": "app"})


KEYS = (key("a", tools=["weather__*"]),)


@pytest.mark.parametrize("stream", [False, True])
async def test_three_rounds_are_one_request(stream: bool) -> None:
    async with looping(ASKS, ASKS, SAYS, keys=KEYS) as loop:
        await post(loop, stream=stream)
        assert await counted(loop, CLIENTS) == {
            ("requests_total", "200"): 1,
            ("request_outcomes_total", "completed"): 1,
            ("key_requests_total", "a"): 1,
            ("client_requests_total", "app"): 1,
            ("request_duration_seconds_count",): 1,
            ("first_byte_seconds_count",): 1,
        }
        assert await counted(loop, ENGINES) == {
            ("rounds_total", "completed"): 3,
            ("tokens_total", "in"): 30,
            ("tokens_total", "out"): 15,
            ("key_tokens_total", "in", "a"): 30,
            ("key_tokens_total", "out", "a"): 15,
            ("request_tokens_count", "in"): 3,
            ("request_tokens_count", "out"): 3,
            ("time_to_first_token_seconds_count",): 3,
            ("time_per_output_token_seconds_count",): 3,
        }


async def test_a_round_that_is_refused_is_one_refusal() -> None:
    async with looping(SAYS, keys=KEYS, m={"state": "unloaded"}) as loop:
        assert (await post(loop)).status == 503
        assert await counted(loop, CLIENTS) == {
            ("requests_total", "503"): 1,
            ("request_outcomes_total", "errored"): 1,
            ("refusals_total", "model_not_loaded"): 1,
            ("key_requests_total", "a"): 1,
            ("client_requests_total", "app"): 1,
            ("request_duration_seconds_count",): 1,
            ("first_byte_seconds_count",): 1,
        }
        assert await counted(loop, ENGINES) == {("rounds_total", "errored"): 1}


async def test_a_client_that_leaves_in_a_round_is_one_that_left() -> None:
    async with looping(ASKS, Move("It rains.", holds=True), keys=KEYS) as loop:
        asking = asyncio.ensure_future(post(loop))
        await until(lambda: len(loop.model.requests) == 2 and loop.model.running == 1, "the second round runs")
        asking.cancel()
        await until(lambda: loop.model.cancelled == 1, "the engine stops")
        assert await counted(loop, CLIENTS) == {
            ("requests_total", "499"): 1,
            ("request_outcomes_total", "cancelled"): 1,
            ("client_disconnects_total",): 1,
            ("key_requests_total", "a"): 1,
            ("client_requests_total", "app"): 1,
            ("request_duration_seconds_count",): 1,
        }
        rounds = await counted(loop, ("rounds_total",))
        assert rounds == {("rounds_total", "completed"): 1, ("rounds_total", "cancelled"): 1}


async def test_a_round_that_fails_late_breaks_one_answer_off() -> None:
    async with looping(ASKS, SAYS, keys=KEYS) as loop:
        loop.model.decide = _breaks_in_the_second(loop)
        async with post(loop, stream=True) as answer:
            assert answer.status == 200
            assert b"response.failed" in await answer.read()
        told = await counted(loop, CLIENTS)
        assert told[("broken_answers_total", "engine_disconnected")] == 1
        assert told[("request_outcomes_total", "errored")] == told[("requests_total", "200")] == 1
        assert not [name for name in told if name[0] == "refusals_total"]
        rounds = await counted(loop, ("rounds_total",))
        assert rounds == {("rounds_total", "completed"): 1, ("rounds_total", "errored"): 1}


def _breaks_in_the_second(loop: Loop) -> Any:
    """The second round's connection breaks in the middle."""
    return lambda _: ASKS if len(loop.model.requests) == 1 else Move("It rains in Bonn.", breaks=True)
