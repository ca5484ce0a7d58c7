"""What a resumable stream costs: the gateway's CPU time per chunk without `X-Conversation-Id`, with it and a ring in
memory, and with it, a ring and a file; in one run.

Streams are paced as an engine's are, so that each chunk is a read and a write of its own. Every round measures each
way, in another order each time, so that a noisy machine is noisy for all, and medians of the rounds' ratios are shown.
`--against CHECKOUT`: a gateway of another checkout, without the header, beside them: what the feature costs those who
do not ask for it, per chunk and per blocking request.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import secrets
import statistics
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import uvloop

from tests.bench.load import allow_many_files, close, connect, request_bytes, requests_per_second, with_own_core
from tests.bench.report import Figure, median_ratio
from tests.bench.targets import GATEWAY, Target, targets

STREAMS, EVENTS, PACE_S = 64, 300, 0.01
"""Streams long enough that their beginnings and ends count for little."""
CONNECTIONS, SECONDS = 16, 1.5
PLAIN, BEFORE, RING, FILE = "without the header", "of the other checkout", "with a ring", "with a ring and a file"
AIMS: Final = {RING: "<= 1.3", FILE: "<= 1.6", PLAIN: "as before"}
PER_CHUNK: Final = f"CPU per chunk, {STREAMS} streams of {EVENTS}"
PER_REQUEST: Final = f"CPU per blocking request, {CONNECTIONS} connections"


@dataclass(frozen=True, slots=True)
class Way:
    name: str
    target: Target
    opts_in: bool


async def _measure_chunks(way: Way, secret: str, names: itertools.count[int]) -> float:
    """Microseconds of CPU per chunk."""
    port = way.target.port
    request = request_bytes(port, secret, stream=True, max_tokens=EVENTS, user=f"pace:{PACE_S}")
    head, blank, body = request.partition(b"\r\n\r\n")
    requests = [
        b"%b\r\nx-conversation-id: stream-%d%b%b" % (head, next(names), blank, body) if way.opts_in else request
        for _ in range(STREAMS)
    ]
    opened = await connect(port, STREAMS)
    before = way.target.cpu_s()
    await asyncio.gather(*(each.ask(one) for each, one in zip(opened, requests, strict=True)))
    used_s = way.target.cpu_s() - before
    assert all(each.events >= EVENTS for each in opened)
    close(opened)
    return used_s / (STREAMS * EVENTS) * 1e6


async def _measure_requests(way: Way, secret: str) -> float:
    """Microseconds of CPU per blocking request."""
    before = way.target.cpu_s()
    _, answered = await requests_per_second(
        way.target.port, request_bytes(way.target.port, secret), CONNECTIONS, SECONDS
    )
    return (way.target.cpu_s() - before) / answered * 1e6


async def _measure_all(rounds: int, against: Path | None) -> list[Figure]:
    secret, names = f"sk-{secrets.token_urlsafe(32)}", itertools.count()
    async with AsyncExitStack() as stack:
        starts = {FILE: {}, RING: {"ROUNDHOUSE_STREAM_FILES": "false"}}
        if against is not None:
            starts[BEFORE] = {"PYTHONPATH": str(against)}
        started = {}
        for name, env in starts.items():
            running = await stack.enter_async_context(targets(secret, [GATEWAY], env=env))
            started[name] = running[1]
        # The gateways rest while another is measured, so that they can share a core.
        stack.enter_context(with_own_core(*(target.pid for target in started.values())))
        ways = [Way(PLAIN, started[FILE], False), Way(RING, started[RING], True), Way(FILE, started[FILE], True)]
        if against is not None:
            ways.append(Way(BEFORE, started[BEFORE], False))
        seen: dict[tuple[str, str], list[float]] = {}
        for number in range(rounds):
            shift = number % len(ways)
            for way in (*ways[shift:], *ways[:shift]):
                seen.setdefault((PER_CHUNK, way.name), []).append(await _measure_chunks(way, secret, names))
                if not way.opts_in:
                    seen.setdefault((PER_REQUEST, way.name), []).append(await _measure_requests(way, secret))
    return _figures(seen)


def _figures(seen: dict[tuple[str, str], list[float]]) -> list[Figure]:
    shown = [Figure(figure, statistics.median(values), "us", of=name) for (figure, name), values in seen.items()]
    pairs = [
        (PER_CHUNK, RING, PLAIN),
        (PER_CHUNK, FILE, PLAIN),
        (PER_CHUNK, PLAIN, BEFORE),
        (PER_REQUEST, PLAIN, BEFORE),
    ]
    for figure, name, base in pairs:
        if (figure, base) in seen:
            ratio = median_ratio(seen[figure, name], seen[figure, base])
            shown.append(Figure(f"{name} over {base}: {figure}", ratio, "x", AIMS[name]))
    return shown


def run(arguments: Sequence[str] = ()) -> list[Figure]:
    """Measure. `arguments`: `--rounds N`, `--against CHECKOUT`."""
    parser = argparse.ArgumentParser(prog="make bench ARGS=streams", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--against", type=Path, metavar="CHECKOUT")
    options = parser.parse_args(arguments)
    allow_many_files()
    return uvloop.run(_measure_all(options.rounds, options.against))
