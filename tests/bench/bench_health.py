"""How fast `/health`, `/health/ready` and `/health/live` answer: at rest, while the gateway is saturated with blocking
requests, while it has streams, while an engine hangs with many requests, and while the controller is gone.

One gateway, on a core of its own, one after the other in one run; the controller is ended last. A process of its own
asks.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import secrets
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import uvloop

from tests.bench.load import (
    CHAT,
    close,
    open_streams,
    request_bytes,
    requests_per_second,
    wait_until_answered,
    with_own_core,
)
from tests.bench.report import Figure, percentile
from tests.bench.targets import Target, declared_keys, start_controller, start_gateway, start_module
from tests.fakes.fake_controller import FakeController, route

SECONDS: Final = 6.0
CONNECTIONS: Final = 32
"""Blocking requests at a time that keep the gateway busy all the time."""
STREAMS: Final = 256
HUNG: Final = 500
"""Requests whose engine does not go on after the first event."""
AIM: Final = "<= 10"


class Site:
    """A gateway with an engine and a controller, all as processes or in this one."""

    def __init__(self, gateway: Target, controller: FakeController, secret: str) -> None:
        self.gateway = gateway
        self.controller = controller
        self.secret = secret

    async def probe_health(self, seconds: float) -> dict[str, list[float]]:
        """Return the milliseconds of each answer, by path."""
        command = [sys.executable, "-m", "tests.bench.health_probe", str(self.gateway.port), str(seconds)]
        probe = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        out, _ = await probe.communicate()
        if probe.returncode:
            raise RuntimeError("the probe of /health failed")
        times: dict[str, list[float]] = json.loads(out)
        return times

    def build_request(self, **fields: object) -> bytes:
        """Return a chat completion request to the gateway."""
        return request_bytes(self.gateway.port, self.secret, **fields)


@contextlib.asynccontextmanager
async def start_site() -> AsyncIterator[Site]:
    """Start an engine, a controller and a gateway that serves."""
    secret = f"sk-{secrets.token_urlsafe(32)}"
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rh-bench")))
        engine, engine_port = await start_module(stack, "tests.bench.engine")
        controller = await start_controller(stack)
        gateway = await start_gateway(stack, controller, folder)
        urls = [f"http://127.0.0.1:{int(engine_port)}"]
        model = route("bench", urls, target_inflight=4096, queue_limit=4096, apis=(CHAT,))
        await controller.publish(model, keys=declared_keys(secret))
        site = Site(gateway, controller, secret)
        await wait_until_answered(gateway.port, site.build_request(), 60)
        stack.enter_context(with_own_core(gateway.pid, others=[engine.pid]))
        yield site


async def _measure_saturated(site: Site, seconds: float) -> dict[str, list[float]]:
    load = asyncio.create_task(requests_per_second(site.gateway.port, site.build_request(), CONNECTIONS, seconds + 1.5))
    times = await site.probe_health(seconds)
    await load
    return times


async def _measure_with_streams(site: Site, seconds: float) -> dict[str, list[float]]:
    events = int((seconds + 10) * 20)
    request = site.build_request(stream=True, max_tokens=events, user="pace:0.05")
    opened = await open_streams(site.gateway.port, request, STREAMS, 30)
    times = await site.probe_health(seconds)
    close(opened)
    return times


async def _measure_hung(site: Site, seconds: float) -> dict[str, list[float]]:
    opened = await open_streams(site.gateway.port, site.build_request(stream=True, user="idle"), HUNG, 30)
    times = await site.probe_health(seconds)
    close(opened)
    return times


async def _measure_without_controller(site: Site, seconds: float) -> dict[str, list[float]]:
    await site.controller.stop()
    return await site.probe_health(seconds)


WAYS: Final[dict[str, Callable[[Site, float], Awaitable[dict[str, list[float]]]]]] = {
    "at rest": Site.probe_health,
    f"saturated by {CONNECTIONS} connections": _measure_saturated,
    f"{STREAMS} streams": _measure_with_streams,
    f"{HUNG} requests in an engine that hangs": _measure_hung,
    "no controller": _measure_without_controller,
    "saturated, and no controller": _measure_saturated,
}


async def _measure_all(seconds: float) -> list[Figure]:
    figures = []
    async with start_site() as site:
        for name, measure in WAYS.items():
            for path, times in (await measure(site, seconds)).items():
                figures.append(Figure(f"{path}, p50", percentile(times, 0.5), "ms", of=name))
                figures.append(Figure(f"{path}, p99", percentile(times, 0.99), "ms", AIM, of=name))
    return figures


def run(arguments: Sequence[str] = ()) -> list[Figure]:
    """Measure. `arguments`: `--seconds N` for each state."""
    parser = argparse.ArgumentParser(prog="make bench ARGS=health", description=__doc__)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    return uvloop.run(_measure_all(parser.parse_args(arguments).seconds))
