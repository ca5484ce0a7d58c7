"""Limits of clients without keys, as unmodified clients meet them."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest

from tests.fakes.fake_controller import route
from tests.fakes.fake_holding_engine import holding
from tests.fakes.gateway_harness import GatewayHarness, engines, gateway_harness
from tests.support.queueing import Clock, clock, key
from tests.support.wait import until

__all__ = ["clock"]
HI: Any = [{"role": "user", "content": "Hi"}]


def sdk(gateway: GatewayHarness, client_id: str | None = None) -> openai.AsyncOpenAI:
    """The SDK, which says `AsyncOpenAI/Python 1.2.3` as its User-Agent."""
    headers = {"x-client-id": client_id} if client_id else {}
    return openai.AsyncOpenAI(base_url=gateway.url + "/v1", api_key="-", max_retries=0, default_headers=headers)


async def test_a_client_beyond_its_limit_is_told_its_name_and_others_go_on(clock: Clock) -> None:
    async with gateway_harness(client_requests_per_minute=2) as gateway, engines(1) as (engine,):
        await gateway.publish(route("m", [engine.url], target_inflight=4))
        async with sdk(gateway, "batch") as batch, sdk(gateway) as unnamed, sdk(gateway, "page") as page:
            for client, name in ((batch, "batch"), (unnamed, f"AsyncOpenAI/Python {openai.__version__}")):
                for left in ("1", "0"):
                    answer = await client.chat.completions.with_raw_response.create(model="m", messages=HI)
                    assert answer.headers["x-client-id"] == name
                    assert answer.headers["x-ratelimit-remaining-requests"] == left
                with pytest.raises(openai.RateLimitError) as refused:
                    await client.chat.completions.create(model="m", messages=HI)
                assert refused.value.code == "rate_limit_exceeded"
                headers = refused.value.response.headers
                assert (headers["x-ratelimit-client"], headers["retry-after"]) == (name, "30")
                assert f"The client '{name}' has reached its limit of 2 request(s) per minute." in str(refused.value)
            assert (await page.chat.completions.create(model="m", messages=HI)).choices
            clock.now += 30
            assert (await batch.chat.completions.create(model="m", messages=HI)).choices


async def test_routes_of_the_framework_count_too_and_reading_does_not(clock: Clock) -> None:
    async with gateway_harness(client_requests_per_minute=1) as gateway:
        await gateway.publish(route("m"))
        headers = {"x-client-id": "a"}
        for _ in range(3):
            async with gateway.get("/v1/models", headers=headers) as answer:
                assert (answer.status, answer.headers["x-ratelimit-remaining-requests"]) == (200, "1")
        assert (await gateway.request("DELETE", "/v1/responses/resp_x", headers=headers)).status == 404
        async with gateway.request("DELETE", "/v1/responses/resp_x", headers=headers) as answer:
            assert (answer.status, answer.headers["x-ratelimit-client"]) == (429, "a")
        for path in ("/health", "/metrics"):
            assert (await gateway.get(path, headers=headers)).status == 200


async def test_tokens_per_minute_are_limited_as_a_keys() -> None:
    async with gateway_harness(client_tokens_per_minute=1000) as gateway, engines(1) as (engine,):
        await gateway.publish(route("m", [engine.url], target_inflight=4))
        async with sdk(gateway, "a") as client:
            first = await client.chat.completions.with_raw_response.create(model="m", messages=HI, max_tokens=10)
            assert int(first.headers["x-ratelimit-remaining-tokens"]) < 1000
            with pytest.raises(openai.RateLimitError, match=r"1000 token\(s\) per minute"):
                await client.chat.completions.create(model="m", messages=HI, max_tokens=5000)


async def test_requests_at_a_time_are_counted_until_they_end() -> None:
    async with gateway_harness(client_concurrency=1) as gateway, holding() as engine:
        await gateway.publish(route("m", [engine.url], target_inflight=4))
        asked, url = {"model": "m", "messages": HI}, gateway.url + "/v1/chat/completions"
        a, b = {"x-client-id": "a"}, {"x-client-id": "b"}
        running = [
            asyncio.create_task(gateway.client.post(url, json=asked | {"tag": tag}, headers=headers))
            for tag, headers in (("first", a), ("other", b))
        ]
        await until("both are inside", lambda: len(engine.inside) == 2)
        async with gateway.client.post(url, json=asked | {"tag": "second"}, headers=a) as answer:
            assert (answer.status, answer.headers["x-ratelimit-client"]) == (429, "a")
        engine.release_all()
        assert [(await task).status for task in running] == [200, 200]
        async with gateway.client.post(url, json=asked | {"tag": "third"}, headers=a) as answer:
            assert answer.status == 200


async def test_they_are_off_by_default_and_do_not_hold_for_keys() -> None:
    async with gateway_harness() as gateway, engines(1) as (engine,):
        await gateway.publish(route("m", [engine.url]))
        async with gateway.chat(max_tokens=1) as answer:
            assert answer.status == 200
            assert not [name for name in answer.headers if "ratelimit" in name.lower()]
    async with gateway_harness(client_requests_per_minute=1) as gateway, engines(1) as (engine,):
        await gateway.publish(route("m", [engine.url]), keys=(key("a"),))
        asked = {"model": "m", "messages": HI}
        headers = {"authorization": "Bearer secret-a", "x-client-id": "b"}
        for _ in range(3):
            async with gateway.post("/v1/chat/completions", asked, headers=headers) as answer:
                assert (answer.status, answer.headers["x-client-id"]) == (200, "a")
