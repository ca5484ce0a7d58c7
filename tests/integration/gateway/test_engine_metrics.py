"""One target for all engines' metrics: each engine's part, and only its part, depends on it."""

from __future__ import annotations

import asyncio
import time

import pytest

from controller.schema.routing import ModelRoute, RoutingTable, Stamp
from gateway.metrics.engine_scraper import MAX_BYTES, EngineScraper
from gateway.routing.live_routes import LiveRoutes
from tests.fakes.fake_controller import route
from tests.fakes.gateway_harness import GatewayHarness, engines, gateway_harness
from tests.fakes.mock_engine import MockEngine

SAMPLE = b"# TYPE llamacpp:requests_processing gauge\nllamacpp:requests_processing 2\n"


def answer(body: bytes, status: bytes = b"200 OK") -> bytes:
    """What a mock sends to `GET /metrics`."""
    return b"HTTP/1.1 %b\r\ncontent-type: text/plain\r\ncontent-length: %d\r\n\r\n%b" % (status, len(body), body)


async def read_page(gateway: GatewayHarness) -> str:
    """The gateway's page of engines' metrics."""
    async with gateway.get("/metrics/engines") as response:
        assert response.status == 200
        assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
        return await response.text()


def live_of(*models: ModelRoute) -> LiveRoutes:
    """A table in force."""
    live = LiveRoutes()
    live.apply_table(RoutingTable(stamp=Stamp(epoch=1, seq=1), instance="i", models=list(models)))
    return live


def set_page(engine: MockEngine, whole: bytes) -> None:
    """Let the engine answer so to `GET /metrics`."""
    engine.answers["/metrics"] = whole


async def test_each_replica_is_asked_with_its_own_token_and_labelled() -> None:
    async with gateway_harness() as gateway, engines(2) as (first, second):
        for engine in (first, second):
            set_page(engine, answer(SAMPLE))
        await gateway.publish(route("m", [first.url], token="t0k3n"), route("org/n", [second.url]))
        page = await read_page(gateway)
        assert 'llamacpp:requests_processing{model="m",replica="m-0"} 2' in page
        assert 'llamacpp:requests_processing{model="org/n",replica="org/n-0"} 2' in page
        assert [each.path for each in first.requests] == ["/metrics"]
        assert first.requests[0].headers["authorization"] == "Bearer t0k3n"
        assert "authorization" not in second.requests[0].headers


@pytest.mark.parametrize(
    "bad",
    [
        answer(b"no", b"500 X"),
        answer(b"x" * (MAX_BYTES + 1)),
        b"this is not HTTP\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nllamacpp:half 1",
        b"HTTP/1.1 307 X\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n",
    ],
    ids=["error", "too long", "garbage", "hangs in the middle", "redirect"],
)
async def test_an_engine_that_fails_costs_its_own_part(bad: bytes) -> None:
    async with engines(2) as (well, ill):
        set_page(well, answer(SAMPLE))
        set_page(ill, bad)
        async with EngineScraper(
            live_of(route("m", [well.url]), route("n", [ill.url])), time.monotonic, 2.0
        ) as scraper:
            page = await scraper.read_engines()
    assert 'llamacpp:requests_processing{model="m",replica="m-0"} 2' in page
    assert 'roundhouse_engine_up{model="m",replica="m-0"} 1' in page
    assert 'roundhouse_engine_up{model="n",replica="n-0"} 0' in page
    assert page.count('replica="n-0"') == 2


async def test_an_engine_that_is_gone_and_a_remote_cost_nothing() -> None:
    async with gateway_harness() as gateway, engines(1) as (engine,):
        set_page(engine, answer(SAMPLE))
        remote = route("far", [engine.url])
        endpoints = tuple(each.model_copy(update={"remote": True}) for each in remote.endpoints)
        await gateway.publish(route("m", ["http://127.0.0.1:1"]), remote.model_copy(update={"endpoints": endpoints}))
        page = await read_page(gateway)
        assert 'roundhouse_engine_up{model="m",replica="m-0"} 0' in page
        assert "far" not in page
        assert not engine.requests


async def test_who_asks_at_once_shares_one_reading() -> None:
    async with gateway_harness() as gateway, engines(1) as (engine,):
        set_page(engine, answer(SAMPLE))
        await gateway.publish(route("m", [engine.url]))
        pages = await asyncio.gather(*(read_page(gateway) for _ in range(20)))
        assert len(engine.requests) < 20
        assert all("llamacpp:requests_processing" in page for page in pages)


async def test_a_page_is_read_anew_when_it_is_old() -> None:
    times = [100.0]
    async with engines(1) as (engine,):
        set_page(engine, answer(SAMPLE))
        async with EngineScraper(live_of(route("m", [engine.url])), lambda: times[-1]) as scraper:
            for now in (100.0, 100.5, 104.9, 106.0, 110.9):
                times.append(now)
                assert "llamacpp:requests_processing" in await scraper.read_engines()
        assert len(engine.requests) == 2


async def test_before_the_first_table_there_is_an_empty_page() -> None:
    async with gateway_harness(with_table=False) as gateway:
        assert await read_page(gateway) == ""
