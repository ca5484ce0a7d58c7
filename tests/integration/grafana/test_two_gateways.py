"""Two gateways, one of which is killed and started again: what Prometheus adds up over both stays true."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from tests.fakes.fake_controller import FakeController, route
from tests.fakes.gateway_harness import engines
from tests.fakes.mock_engine import MockEngine
from tests.support.gateway_process import start
from tests.support.ports import free_port
from tests.support.prometheus_server import PrometheusServer, prometheus_server, require_prometheus
from tests.support.wait import until

pytestmark = [pytest.mark.slow, pytest.mark.embedded]

REQUESTS = 'roundhouse_gateway_requests_total{model="m"}'
TOKENS = 'roundhouse_gateway_tokens_total{model="m",direction="out"}'
STREAMED = 3
"""Tokens of each answer."""


class Gateway:
    """A gateway process that can be killed and started again at the same address."""

    def __init__(self, folder: Path, controller: FakeController) -> None:
        self.port = free_port()
        self._folder = folder
        self._controller = controller
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Start it, and wait until it serves the model."""
        self._folder.mkdir(exist_ok=True)
        self._process = await start(
            ROUNDHOUSE_PORT=str(self.port),
            ROUNDHOUSE_CONTROLLER_URL=self._controller.url,
            ROUNDHOUSE_STATE=str(self._folder),
        )
        await until("the gateway is ready", self._is_ready)

    async def _is_ready(self) -> bool:
        with contextlib.suppress(aiohttp.ClientConnectionError):
            async with aiohttp.ClientSession() as client, client.get(self._url("/v1/models")) as answer:
                return answer.status == 200 and bool((await answer.json())["data"])
        return False

    async def kill(self) -> None:
        """SIGKILL, where it runs."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()

    async def ask(self, times: int) -> None:
        """Stream so many answers to their end, one after the other."""
        body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "stream": True, "max_tokens": STREAMED}
        async with aiohttp.ClientSession() as client:
            for _ in range(times):
                async with client.post(self._url("/v1/chat/completions"), json=body) as answer:
                    assert answer.status == 200
                    await answer.read()

    def _url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}{path}"


@contextlib.asynccontextmanager
async def two_gateways(folder: Path, engine: MockEngine) -> AsyncIterator[tuple[Gateway, Gateway]]:
    """Two gateways of one controller, which serve the model `m` of one engine."""
    controller = FakeController()
    await controller.start()
    await controller.publish(route("m", [engine.url]))
    both = Gateway(folder / "first", controller), Gateway(folder / "second", controller)
    try:
        for each in both:
            await each.start()
        yield both
    finally:
        for each in both:
            await each.kill()
        await controller.stop()


async def count_events(prometheus: PrometheusServer, metric: str) -> float:
    """What was counted in all series together, by the readings themselves: a value below the one before starts anew."""
    total = 0.0
    for series in await prometheus.query(f"{metric}[10m]"):
        before = 0.0
        for _, text in series["values"]:
            value = float(text)
            total += value - before if value >= before else value
            before = value
    return total


async def read_number(prometheus: PrometheusServer, expr: str) -> float:
    """The one value of `expr`."""
    [each] = await prometheus.query(expr)
    return float(each["value"][1])


async def test_sums_over_two_gateways_outlast_a_restart(tmp_path: Path) -> None:
    require_prometheus()
    async with engines(1) as (engine,), two_gateways(tmp_path, engine) as (first, second):
        addresses = [f"127.0.0.1:{each.port}" for each in (first, second)]
        targets: dict[str, list[str]] = {"gateway": addresses, "engines": [], "retrieval": [], "controller": []}
        async with prometheus_server(tmp_path / "prometheus", targets) as prometheus:

            async def has_counted(number: int) -> None:
                async def is_counted() -> bool:
                    requests = await count_events(prometheus, REQUESTS)
                    assert requests <= number, "nothing is counted twice"
                    return requests == number and await count_events(prometheus, TOKENS) == number * STREAMED

                await until(f"{number} requests and their tokens are counted", is_counted)

            # The first reading of a counter has no reading before it, so `increase` begins after these two.
            await asyncio.gather(first.ask(1), second.ask(1))
            await has_counted(2)
            await asyncio.gather(first.ask(20), second.ask(10))
            await has_counted(32)
            await first.kill()
            await until("its end is seen", lambda: _is_seen(prometheus, up=1))
            await second.ask(5)
            await first.start()
            await until("its start is seen", lambda: _is_seen(prometheus, up=2))
            await first.ask(7)
            await has_counted(44)

            assert len(engine.client_requests) == 44
            told = await read_number(prometheus, f"sum by (model) (increase({REQUESTS}[10m]))")
            assert 42 <= told <= 42 * 1.25, "`increase` adds up to one interval at either end"
            assert await read_number(prometheus, "sum(roundhouse_gateway_inflight)") == 0
            assert await read_number(prometheus, "min(roundhouse_gateway_link_up)") == 1


async def _is_seen(prometheus: PrometheusServer, *, up: int) -> bool:
    return await read_number(prometheus, 'sum(up{job="gateway"})') == up
