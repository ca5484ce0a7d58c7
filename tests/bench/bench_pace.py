"""A closed loop of clients at an engine that keeps a pace: what a gateway before it takes of the tokens per second,
and adds to the first token.

The engine gives every stream its next token in the same step, as an engine that batches does, so a gateway that holds
anything back loses a step. Each client asks again as soon as it is answered. Every round measures every way, in the
reverse order of the round before; ratios are medians of the rounds'.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import secrets
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import uvloop

from tests.bench.load import Connection, allow_many_files, close, connect, request_bytes
from tests.bench.report import Figure, median_ratio
from tests.bench.targets import COMPILED, GATEWAY, NGINX, NO_PROXY, Target, targets

TOKENS: Final = range(64, 193)
"""Of an answer: 128 in the middle."""


@dataclass(frozen=True, slots=True)
class Load:
    clients: int
    step_s: float
    """Seconds from one token of a stream to the next."""

    @property
    def longest_s(self) -> float:
        """Seconds of the longest answer."""
        return self.step_s * TOKENS.stop

    @property
    def name(self) -> str:
        return f"{self.clients} client{'s' * (self.clients > 1)}, {self.step_s * 1000:g} ms a token"


LOADS: Final = (Load(1, 0.002), Load(32, 0.002), Load(256, 0.02))
SECONDS: Final = 4.0
"""Of one measurement, after all clients have begun."""


@dataclass(frozen=True, slots=True)
class Sample:
    tokens_per_s: float
    first_ms: float
    """Median from a request to its first event."""
    cores: float
    """CPU time of what was asked over the time that went by."""


class Clients:
    """Those that ask again and again, from when they are made."""

    def __init__(self, target: Target, load: Load, secret: str, model: str) -> None:
        self._target, self._load, self._secret, self._model = target, load, secret, model
        self._done = 0
        self._opened: list[Connection] = []
        self.first_s: list[float] = []
        """From each request to its first event."""

    async def ask(self) -> None:
        """Ask until it is cancelled. Clients begin one after the other, within the time of a long answer."""
        self._opened = await connect(self._target.port, self._load.clients)
        try:
            await asyncio.gather(*map(self._ask_again, range(self._load.clients)))
        finally:
            close(self._opened)

    def count_tokens(self) -> int:
        """Return how many came so far."""
        return self._done + sum(connection.events for connection in self._opened)

    async def _ask_again(self, number: int) -> None:
        connection, chance = self._opened[number], random.Random(number)
        await asyncio.sleep(self._load.longest_s * number / self._load.clients)
        while True:
            wanted = chance.choice(TOKENS)
            fields = {"stream": True, "max_tokens": wanted, "user": f"step:{self._load.step_s}", "model": self._model}
            begun = time.perf_counter()
            await connection.ask(request_bytes(self._target.port, self._secret, **fields))
            assert connection.events >= wanted
            self.first_s.append(connection.first_event_at - begun)
            self._done += connection.events
            connection.events = 0


async def measure_load(target: Target, load: Load, secret: str, model: str = "bench") -> Sample:
    clients = Clients(target, load, secret, model)
    asking = asyncio.create_task(clients.ask())
    await asyncio.sleep(load.longest_s * 1.5)
    clients.first_s.clear()
    before, cpu_s, begun = clients.count_tokens(), target.cpu_s(), time.perf_counter()
    await asyncio.wait([asking], timeout=SECONDS)
    if asking.done():
        asking.result()
    lasted_s = time.perf_counter() - begun
    cpu_s, tokens = target.cpu_s() - cpu_s, clients.count_tokens() - before
    asking.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asking
    return Sample(tokens / lasted_s, statistics.median(clients.first_s) * 1e3, cpu_s / lasted_s)


async def _measure_all(rounds: int, wanted: Sequence[str]) -> list[Figure]:
    secret = f"sk-{secrets.token_urlsafe(32)}"
    figures: list[Figure] = []
    async with targets(secret, wanted) as running:
        for load in LOADS:
            samples: dict[str, list[Sample]] = {target.name: [] for target in running}
            for number in range(rounds):
                for target in running[:: 1 if number % 2 == 0 else -1]:
                    samples[target.name].append(await measure_load(target, load, secret))
            figures += _figures(load, samples)
    return figures


def _figures(load: Load, samples: dict[str, list[Sample]]) -> list[Figure]:
    direct, shown = samples[NO_PROXY], []
    for name, own in samples.items():
        shown += [
            Figure(f"{load.name}: tokens/s", statistics.median(each.tokens_per_s for each in own), "tokens/s", of=name),
            Figure(f"{load.name}: first token, p50", statistics.median(each.first_ms for each in own), "ms", of=name),
            Figure(f"{load.name}: cores used", statistics.median(each.cores for each in own), "", of=name),
        ]
    for name, own in samples.items():
        if name == NO_PROXY:
            continue
        ratio = median_ratio((each.tokens_per_s for each in own), (each.tokens_per_s for each in direct))
        added_ms = statistics.median(one.first_ms - other.first_ms for one, other in zip(own, direct, strict=True))
        shown += [
            Figure(f"{load.name}: tokens/s of {name} over direct", ratio, "x", ">= 0.99"),
            Figure(
                f"{load.name}: {name} adds to the first token", added_ms, "ms", "<= 1" if load.clients == 32 else ""
            ),
        ]
    return shown


def run(arguments: Sequence[str] = ()) -> list[Figure]:
    """Measure. `arguments`: `--rounds N`, `--without NAME` of what stands between (may be given often)."""
    parser = argparse.ArgumentParser(prog="make bench ARGS=pace", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--without", action="append", default=[], type=str.lower, metavar="NAME")
    options = parser.parse_args(arguments)
    allow_many_files()
    wanted = [name for name in (NGINX, GATEWAY, COMPILED) if name.lower() not in options.without]
    return uvloop.run(_measure_all(options.rounds, wanted))
