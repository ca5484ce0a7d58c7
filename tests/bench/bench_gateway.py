"""The gateway, as Python and compiled, against nginx, LiteLLM's proxy, no proxy and itself on 22 November, in one run.

Every feature of the gateway is on: keys with limits, admission, headers, metrics. All targets get the same request.
Every round measures every target, so that a noisy machine is noisy for all, and medians are shown. Engine, proxy and
load share the machine's cores: read the ratios, and the CPU time, rather than the rates.
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
import statistics
import sys
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field

import psutil
import uvloop

from tests.bench.load import (
    allow_many_files,
    close,
    events_per_second,
    first_event_p50_ms,
    open_streams,
    request_bytes,
    requests_per_second,
    sequential_p50_ms,
)
from tests.bench.report import Figure
from tests.bench.targets import BASELINE, COMPILED, GATEWAY, LITELLM, NGINX, NO_PROXY, Target, targets

CONNECTIONS = 32
FEW, MANY = 16, 512
PACE_S = 0.05
"""Between a stream's events where its CPU is measured: as an engine's, and no two in one read."""
PACED_EVENTS = 40
IDLE_STREAMS = 2000
IDLE_S = 10.0
OPEN_LIMIT_S = 45.0
"""So long may a target take to open its idle streams; then there are fewer."""

P50 = "one after the other, p50"
RATE = f"at {CONNECTIONS} connections"
CPU_REQUEST = "CPU per request"
FIRST = "first token, one stream at a time, p50"
CPU_CHUNK = f"CPU per chunk, {MANY} streams, {1 / PACE_S:.0f}/s each"
MEMORY = "resident with open idle streams"
OPENED = "idle streams open"
IDLE_CPU = f"CPU of {IDLE_S:.0f} s with them"


def chunks(streams: int) -> str:
    return f"chunks, {streams} streams"


UNITS = {
    P50: "ms",
    RATE: "req/s",
    CPU_REQUEST: "us",
    FIRST: "ms",
    chunks(FEW): "chunks/s",
    chunks(MANY): "chunks/s",
    CPU_CHUNK: "us",
    OPENED: "",
    MEMORY: "MiB",
    IDLE_CPU: "ms",
}


@dataclass(frozen=True, slots=True)
class Effort:
    """How much of everything; a slow target gets less, so that a round stays short."""

    seconds: float
    """Most, or all, of one measurement's time."""
    events: dict[int, int]
    """Streams at a time to events of each."""
    is_paced: bool


EFFORT = Effort(seconds=1.5, events={FEW: 6000, MANY: 250}, is_paced=True)
SLOW = Effort(seconds=1.5, events={FEW: 150, MANY: 20}, is_paced=False)


@dataclass(slots=True)
class Seen:
    """Measured values by figure, then by target."""

    values: dict[str, dict[str, list[float]]] = field(default_factory=dict)

    def add(self, figure: str, target: str, value: float) -> None:
        self.values.setdefault(figure, {}).setdefault(target, []).append(value)

    def median(self, figure: str, target: str) -> float | None:
        """The middle of what was noted; None where nothing was."""
        noted = self.values.get(figure, {}).get(target)
        return statistics.median(noted) if noted else None

    def median_ratio(self, figure: str, target: str, other: str) -> float | None:
        """The middle of the ratios round by round; None where one of the two was not measured."""
        noted = self.values.get(figure, {})
        pairs = list(zip(noted.get(target, ()), noted.get(other, ()), strict=False))
        return statistics.median(one / two for one, two in pairs) if pairs else None


async def measure_round(target: Target, secret: str, effort: Effort, seen: Seen) -> None:
    """Everything but the idle streams, once."""
    name, port = target.name, target.port
    blocking, short = request_bytes(port, secret), request_bytes(port, secret, stream=True, max_tokens=3)
    seen.add(P50, name, await sequential_p50_ms(port, blocking, 1000, effort.seconds))
    seen.add(FIRST, name, await first_event_p50_ms(port, short, 1000, effort.seconds))
    before = target.cpu_s()
    rate, answered = await requests_per_second(port, blocking, CONNECTIONS, effort.seconds)
    seen.add(RATE, name, rate)
    seen.add(CPU_REQUEST, name, (target.cpu_s() - before) / answered * 1e6)
    for streams, events in effort.events.items():
        request = request_bytes(port, secret, stream=True, max_tokens=events)
        seen.add(chunks(streams), name, await events_per_second(port, request, streams, events))
    if effort.is_paced:
        paced = request_bytes(port, secret, stream=True, max_tokens=PACED_EVENTS, user=f"pace:{PACE_S}")
        before = target.cpu_s()
        await events_per_second(port, paced, MANY, PACED_EVENTS)
        seen.add(CPU_CHUNK, name, (target.cpu_s() - before) / (MANY * PACED_EVENTS) * 1e6)


async def measure_idle(target: Target, secret: str, seen: Seen) -> None:
    """Streams that say nothing: what they hold, and what they cost."""
    request = request_bytes(target.port, secret, stream=True, max_tokens=3, user="idle")
    opened = await open_streams(target.port, request, IDLE_STREAMS, OPEN_LIMIT_S)
    seen.add(OPENED, target.name, len(opened))
    before = target.cpu_s()
    await asyncio.sleep(IDLE_S)
    seen.add(IDLE_CPU, target.name, (target.cpu_s() - before) * 1e3)
    seen.add(MEMORY, target.name, target.resident_mib())
    close(opened)


async def measure_all(rounds: int, wanted: Sequence[str]) -> Seen:
    secret, seen = f"sk-{secrets.token_urlsafe(32)}", Seen()
    async with targets(secret, wanted) as running:
        for number in range(rounds):
            for target in list(running):
                _progress(f"round {number + 1} of {rounds}: {target.name}")
                effort = SLOW if target.name == LITELLM else EFFORT
                await _or_drop(running, target, measure_round(target, secret, effort, seen))
        by_slowness = sorted(running[1:], key=lambda target: target.name == LITELLM)  # what it leaves behind takes CPU
        for target in by_slowness:
            _progress(f"idle streams: {target.name}")
            await _or_drop(running, target, measure_idle(target, secret, seen))
        _progress("")
    return seen


async def _or_drop(running: list[Target], target: Target, measurement: Awaitable[None]) -> None:
    """One that we compare with may fail, which is told, and is not measured any more; the gateway may not."""
    try:
        await measurement
    except (OSError, RuntimeError, psutil.NoSuchProcess) as error:
        if target.name in (NO_PROXY, GATEWAY):
            raise
        print(f"\n{target.name} failed; measuring on without it: {error!r}", file=sys.stderr)
        running.remove(target)


def _progress(words: str) -> None:
    if sys.stderr.isatty():
        print(f"\r{words:<40}\r", end="", file=sys.stderr, flush=True)


def figures(seen: Seen) -> list[Figure]:
    """Medians of all targets, side by side, and then what the gateway's come to."""
    names = list(seen.values[P50])
    shown = [
        Figure(figure, median, UNITS[figure], of=name)
        for figure in UNITS
        for name in names
        if (median := seen.median(figure, name)) is not None
    ]
    for figure, other, aim in (
        (RATE, LITELLM, ">= 50"),
        (RATE, NGINX, ">= 0.33"),
        (chunks(FEW), NGINX, ">= 0.9"),
        (chunks(MANY), NGINX, ">= 0.9"),
        (chunks(FEW), LITELLM, ""),
        (chunks(MANY), LITELLM, ""),
        (CPU_REQUEST, NGINX, ""),
        (CPU_CHUNK, NGINX, ""),
    ):
        ours, theirs = seen.median(figure, GATEWAY), seen.median(figure, other)
        if ours is not None and theirs is not None:
            shown.append(Figure(f"{GATEWAY} over {other}: {figure}", ours / theirs, "x", aim))
    for name in (GATEWAY, COMPILED):
        for figure, aim in ((CPU_REQUEST, "<= 0.8"), (CPU_CHUNK, "<= 0.8")):
            ratio = seen.median_ratio(figure, name, BASELINE)
            if ratio is not None:
                shown.append(Figure(f"{name} over {BASELINE}: {figure}", ratio, "x", aim))
    for figure, aim in ((P50, "<= 0.44"), (FIRST, "<= 0.5")):
        for name in names[1:]:
            proxied, direct = seen.median(figure, name), seen.median(figure, NO_PROXY)
            if proxied is not None and direct is not None:
                shown.append(Figure(f"{name} adds: {figure}", proxied - direct, "ms", aim if name == GATEWAY else ""))
    memory = seen.median(MEMORY, GATEWAY)
    if memory is not None:
        shown.append(Figure(f"{GATEWAY}: {MEMORY}, {IDLE_STREAMS:,}", memory * 2**20 / 1e6, "MB", "< 300"))
    return shown


def run(arguments: Sequence[str] = ()) -> list[Figure]:
    """Measure. Or, with `--profile`, show what the gateway spends its time on.

    `arguments`: `--rounds N`, `--without NAME` of a target (may be given often), `--profile`.
    """
    parser = argparse.ArgumentParser(prog="make bench ARGS=gateway", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--without", action="append", default=[], type=str.lower, metavar="NAME")
    parser.add_argument("--profile", action="store_true", help="where the gateway's CPU time goes, instead")
    options = parser.parse_args(arguments)
    allow_many_files()
    if options.profile:
        from tests.bench.profile_gateway import profile

        return uvloop.run(profile())
    wanted = [name for name in (NGINX, LITELLM, GATEWAY, COMPILED, BASELINE) if name.lower() not in options.without]
    return figures(uvloop.run(measure_all(options.rounds, wanted)))
