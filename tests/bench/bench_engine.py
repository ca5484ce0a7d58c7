"""Real engines asked directly and through the gateway, in one run: what the gateway costs where an engine works.

llama-server with 2.6 million parameters and vLLM, at 1, 4 and 16 clients, streaming and blocking, with bodies of 12 MB
beside them and without; and small requests at the fake engine, which takes nothing for its answers, beside such bodies
for another one. Each pair is measured in turn, the way that goes first alternating, so that what the machine does
meanwhile is done to both, and the medians of the pairs' ratios are shown. Engine, gateway and load share the machine's
cores; with `--pinned` each engine has a core for itself while it is measured, there are no bodies beside, and 1, 4 and
32 clients.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import statistics
import sys
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass

import uvloop

from tests.bench.big_bodies import image_request
from tests.bench.load import CHAT, close, connect, post_bytes, with_own_core
from tests.bench.real_engines import FAKE, FAKE_BESIDE, LLAMA_SERVER, VLLM, RealEngine, open_engines
from tests.bench.report import Figure
from tests.bench.targets import Target, process

CLIENTS, PINNED_CLIENTS = (1, 4, 16), (1, 4, 32)
SECONDS = {LLAMA_SERVER: 1.0, VLLM: 2.5, FAKE: 2.0}
"""Of one measurement."""
TOKENS = {LLAMA_SERVER: 128, VLLM: 16, FAKE: 13}
"""Of one answer."""
BODIES_PER_SECOND = 5
MANY_BODIES = 50
DIRECT, GATEWAY = "direct", "gateway"
SHARES_OF_TOKENS, ADDED_TO_FIRST = ">= 0.95; 0.99 idle cores", "<= 0.5, or 2%"
_QUESTION = [{"role": "user", "content": "What does the fox do, and what does it do then?"}]


@dataclass(frozen=True, slots=True)
class Kind:
    """What is measured, either way."""

    engine: RealEngine
    beside: RealEngine | None
    """Where bodies of 12 MB go meanwhile; None: there are none."""
    clients: int
    stream: bool

    @property
    def name(self) -> str:
        kind = "streams" if self.stream else "blocking"
        return f"{self.engine.name}, {self.clients} {kind}{', 12 MB beside' if self.beside else ''}"


@dataclass(slots=True)
class Sample:
    tokens_per_s: float
    first_ms: float
    """Median until the first event of a stream; of a blocking call, until its end."""
    p99_ms: float
    cpu_us: float
    """The gateway's CPU time per answer; 0 where it was not asked."""
    body_ms: float
    """Median of a body of 12 MB beside them."""


Pair = tuple[Sample, Sample]
"""Asked directly, and through the gateway."""


async def _measure(kind: Kind, gateway: Target, way: str) -> Sample:
    engine, beside = kind.engine, kind.beside
    port, secret = (engine.port, engine.token) if way == DIRECT else (gateway.port, "")
    tokens, seconds = TOKENS[engine.name], SECONDS[engine.name]
    fields = {"messages": _QUESTION, "max_tokens": tokens, "stream": kind.stream, "ignore_eos": True}
    request = post_bytes(port, secret, CHAT, model=engine.model, **fields)
    took: list[float] = []
    first: list[float] = []
    async with contextlib.AsyncExitStack() as stack:
        body_ms: list[float] = []
        if beside is not None:
            body_port = beside.port if way == DIRECT else gateway.port
            body_ms = await stack.enter_async_context(_bodies(body_port, secret, beside.model, seconds, 1))
        cpu_before, begun = gateway.cpu_s(), time.perf_counter()
        asking = (_ask_again(port, request, begun + seconds, took, first) for _ in range(kind.clients))
        await asyncio.gather(*asking)
        lasted = time.perf_counter() - begun
        cpu_s = gateway.cpu_s() - cpu_before if way == GATEWAY else 0.0
    took.sort()
    return Sample(
        tokens_per_s=len(took) * tokens / lasted,
        first_ms=statistics.median(first if kind.stream else took) * 1e3,
        p99_ms=took[min(len(took) - 1, len(took) * 99 // 100)] * 1e3,
        cpu_us=cpu_s * 1e6 / len(took),
        body_ms=body_ms[0] if body_ms else 0.0,
    )


async def _ask_again(port: int, request: bytes, end: float, took: list[float], first: list[float]) -> None:
    """On a connection of its own each time, because llama-server closes one after each stream."""
    while True:
        begun = time.perf_counter()
        (connection,) = await connect(port, 1)
        await connection.ask(request)
        close([connection])
        now = time.perf_counter()
        took.append(now - begun)
        if connection.events:
            first.append(connection.first_event_at - begun)
        if now > end:
            return


@contextlib.asynccontextmanager
async def _bodies(port: int, secret: str, model: str, seconds: float, clients: int) -> AsyncIterator[list[float]]:
    """So many clients of large bodies for so many seconds. After the context, the list has the median milliseconds."""
    told: list[float] = []
    parameters = (str(port), secret, model, str(seconds), str(BODIES_PER_SECOND), str(clients))
    command = (sys.executable, "-m", "tests.bench.big_bodies", *parameters)
    async with process(command, out=asyncio.subprocess.PIPE) as started:
        assert started.stdout is not None
        assert (await started.stdout.readline()).strip() == b"ready"
        yield told
        told.append(json.loads(await started.stdout.readline())["median_ms"])


async def _memory_of_many(gateway: Target, engine: RealEngine) -> float:
    """MiB of the gateway, at most, above what it had, while 50 clients send such bodies at once."""
    before = peak = gateway.resident_mib()
    request = image_request(gateway.port, "", engine.model)
    opened = await connect(gateway.port, MANY_BODIES)
    asking = [connection.ask(request) for connection in opened]
    while not all(asked.done() for asked in asking):
        peak = max(peak, gateway.resident_mib())
        await asyncio.wait(asking, timeout=0.02)
    close(opened)
    assert not any(asked.exception() for asked in asking)
    return peak - before


async def _measure_pinned(rounds: int, wanted: Sequence[str], only: str) -> list[Figure]:
    figures: list[Figure] = []
    async with open_engines(wanted) as (gateway, engines):
        for engine, stream, clients in itertools.product(engines, (True, False), PINNED_CLIENTS):
            kind = Kind(engine, None, clients, stream)
            if only in kind.name:
                with with_own_core(engine.pid, others=(gateway.pid,)):
                    figures += _figures(kind, [await _measure_pair(kind, gateway, number) for number in range(rounds)])
    return figures


async def _measure_all(rounds: int, wanted: Sequence[str], only: str) -> list[Figure]:
    figures: list[Figure] = []
    async with open_engines([*wanted, FAKE_BESIDE] if FAKE in wanted else wanted) as (gateway, opened):
        engines = {engine.name: engine for engine in opened}
        beside = engines.pop(FAKE_BESIDE, None)
        for kind in _kinds(engines.values(), beside):
            if only in kind.name:
                figures += _figures(kind, [await _measure_pair(kind, gateway, number) for number in range(rounds)])
        if beside is not None and not only:
            name = f"memory for {MANY_BODIES} bodies of 12 MB at once"
            figures.append(Figure(name, await _memory_of_many(gateway, beside), "MiB", "<= 660"))
    return figures


def _kinds(engines: Iterable[RealEngine], beside: RealEngine | None) -> Iterable[Kind]:
    for engine in engines:
        others = beside if engine.name == FAKE else engine
        for body_engine, stream, clients in itertools.product((None, others), (True, False), CLIENTS):
            yield Kind(engine, body_engine, clients, stream)


async def _measure_pair(kind: Kind, gateway: Target, number: int) -> Pair:
    if number % 2 == 0:
        direct = await _measure(kind, gateway, DIRECT)
        return direct, await _measure(kind, gateway, GATEWAY)
    through = await _measure(kind, gateway, GATEWAY)
    return await _measure(kind, gateway, DIRECT), through


def _figures(kind: Kind, pairs: Sequence[Pair]) -> list[Figure]:
    """Both ways' medians, then what the gateway makes of them, pair by pair."""
    name = kind.name
    first = f"{name}: {'first event' if kind.stream else 'answer'}, p50"
    shown = []
    for way, samples in zip((DIRECT, GATEWAY), zip(*pairs, strict=True), strict=True):
        shown += [
            Figure(f"{name}: tokens/s", statistics.median(each.tokens_per_s for each in samples), "tokens/s", of=way),
            Figure(first, statistics.median(each.first_ms for each in samples), "ms", of=way),
            Figure(f"{name}: answer, p99", statistics.median(each.p99_ms for each in samples), "ms", of=way),
        ]
        if kind.beside is not None:
            body_ms = statistics.median(each.body_ms for each in samples)
            shown.append(Figure(f"{name}: a body of 12 MB", body_ms, "ms", of=way))
    cpu_us = statistics.median(through.cpu_us for _, through in pairs)
    shown.append(Figure(f"{name}: gateway's CPU per answer", cpu_us, "us", of=GATEWAY))
    if kind.engine.name != FAKE:
        share = statistics.median(through.tokens_per_s / direct.tokens_per_s for direct, through in pairs)
        shown.append(Figure(f"{name}: tokens/s", share, "x", SHARES_OF_TOKENS))
    if kind.stream:
        added_ms = statistics.median(through.first_ms - direct.first_ms for direct, through in pairs)
        shown.append(Figure(f"{name}: added to the first event", added_ms, "ms", ADDED_TO_FIRST))
    if kind.beside is not None:
        ratio = statistics.median(through.body_ms / direct.body_ms for direct, through in pairs)
        shown.append(Figure(f"{name}: a body of 12 MB", ratio, "x", "<= 1.2"))
    return shown


def run(arguments: Sequence[str] = ()) -> list[Figure]:
    """Measure. `arguments`: `--rounds N`, `--without vllm|llama-server|fake`, `--only PART-OF-A-NAME`, `--pinned`."""
    parser = argparse.ArgumentParser(prog="make bench ARGS=engine", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--without", action="append", default=[], type=str.lower, metavar="ENGINE")
    parser.add_argument("--only", default="", metavar="WORDS", help="kinds whose name holds this, such as `4 blocking`")
    parser.add_argument("--pinned", action="store_true", help="a core for the engine, another for gateway and clients")
    options = parser.parse_args(arguments)
    engines = (LLAMA_SERVER, VLLM) if options.pinned else (LLAMA_SERVER, VLLM, FAKE)
    wanted = [name for name in engines if name.lower() not in options.without]
    measure = _measure_pinned if options.pinned else _measure_all
    return uvloop.run(measure(options.rounds, wanted, options.only))
