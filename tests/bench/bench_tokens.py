"""Admission by tokens and by slots alone, at one real llama-server in one run: what it costs short requests, and what
becomes of long ones.

The gateway knows the engine as two models: of one it knows how many tokens the cache holds. Both are measured in turn,
the one that goes first alternating, and the medians of the pairs' ratios are shown. Engine, gateway and load share the
machine's cores.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import uvloop

from contract.routing import ModelRoute
from tests.bench.load import CHAT, close, connect, post_bytes
from tests.bench.real_engines import CONTEXT, LLAMA_SERVER, SLOTS, RealEngine, open_engines, route_to
from tests.bench.report import Figure
from tests.bench.targets import Target

BY_TOKENS, BY_SLOTS = "by tokens", "by slots"
SHORT_TOKENS = 32
LONG_TOKENS = CONTEXT * 3 // 8
"""Two of them fit into the cache, and four of them do not."""
SECONDS = 2.0
"""Of one measurement."""
_QUESTION = [{"role": "user", "content": "What does the fox do, and what does it do then?"}]


@dataclass(frozen=True, slots=True)
class Kind:
    """What is measured, either way."""

    name: str
    short_clients: int
    long_clients: int
    stream: bool
    has_limit: bool
    """Short requests say how many tokens they take at most."""


KINDS = (
    Kind("4 blocking clients", 4, 0, stream=False, has_limit=True),
    Kind("16 blocking clients", 16, 0, stream=False, has_limit=True),
    Kind("16 blocking clients without max_tokens", 16, 0, stream=False, has_limit=False),
    Kind("16 streaming clients", 16, 0, stream=True, has_limit=True),
    Kind("12 streaming clients beside 4 of long answers", 12, 4, stream=True, has_limit=True),
)


@dataclass(slots=True)
class Sample:
    short_answered: int = 0
    long_answered: int = 0
    failed: int = 0
    short_s: float = 0.0
    """Until the last of the short ones was answered."""
    cpu_us: float = 0.0
    """The gateway's CPU time per answer, of short ones alone."""

    @property
    def short_per_s(self) -> float:
        return self.short_answered / self.short_s


Pair = tuple[Sample, Sample]
"""By tokens, and by slots."""


def _routes(engine: RealEngine) -> list[ModelRoute]:
    """The same engine under two names."""
    made = []
    for name, tokens in ((BY_TOKENS, CONTEXT), (BY_SLOTS, None)):
        known = route_to(engine)
        (endpoint,) = known.endpoints
        endpoint = endpoint.model_copy(update={"replica": name.replace(" ", "-"), "kv_cache_tokens": tokens})
        changes = {"name": name, "served_name": engine.model, "endpoints": (endpoint,), "context_length": CONTEXT}
        made.append(known.model_copy(update=changes))
    return made


async def _measure(kind: Kind, gateway: Target, model: str) -> Sample:
    sample = Sample()
    limit: dict[str, Any] = {"max_tokens": SHORT_TOKENS} if kind.has_limit else {}
    # Without a limit the model ends by itself, after 16 tokens.
    short = {"messages": _QUESTION, "stream": kind.stream, "ignore_eos": kind.has_limit, **limit}
    long = {"messages": _QUESTION, "stream": True, "ignore_eos": True, "max_tokens": LONG_TOKENS}
    begun, cpu_before = time.perf_counter(), gateway.cpu_s()
    async with asyncio.TaskGroup() as group:
        for fields, clients in ((long, kind.long_clients), (short, kind.short_clients)):
            request = post_bytes(gateway.port, "", CHAT, **{**fields, "model": model})
            for _ in range(clients):
                group.create_task(_ask_again(gateway.port, request, begun, sample, is_long=fields is long))
    sample.cpu_us = (gateway.cpu_s() - cpu_before) * 1e6 / max(1, sample.short_answered)
    return sample


async def _ask_again(port: int, request: bytes, begun: float, sample: Sample, *, is_long: bool) -> None:
    while time.perf_counter() < begun + SECONDS:
        (connection,) = await connect(port, 1)
        try:
            await connection.ask(request)
        except (RuntimeError, ConnectionError):
            sample.failed += 1
            await asyncio.sleep(0.01)
        else:
            # A stream that breaks off has the status of one that does not, and fewer events than it was asked for.
            if is_long and connection.events < LONG_TOKENS:
                sample.failed += 1
            elif is_long:
                sample.long_answered += 1
            else:
                sample.short_answered += 1
                sample.short_s = time.perf_counter() - begun
        close([connection])


async def _measure_all(rounds: int) -> list[Figure]:
    figures: list[Figure] = []
    async with open_engines([LLAMA_SERVER], _routes) as (gateway, _):
        for kind in KINDS:
            figures += _figures(kind, [await _measure_pair(kind, gateway, number) for number in range(rounds)])
    return figures


async def _measure_pair(kind: Kind, gateway: Target, number: int) -> Pair:
    if number % 2 == 0:
        by_tokens = await _measure(kind, gateway, BY_TOKENS)
        return by_tokens, await _measure(kind, gateway, BY_SLOTS)
    by_slots = await _measure(kind, gateway, BY_SLOTS)
    return await _measure(kind, gateway, BY_TOKENS), by_slots


def _figures(kind: Kind, pairs: Sequence[Pair]) -> list[Figure]:
    shown = []
    for way, samples in zip((BY_TOKENS, BY_SLOTS), zip(*pairs, strict=True), strict=True):
        shown.append(
            Figure(f"{kind.name}: short", statistics.median(each.short_per_s for each in samples), "req/s", of=way)
        )
        if kind.long_clients:
            shown.append(Figure(f"{kind.name}: long answered", sum(each.long_answered for each in samples), "", of=way))
        else:
            cpu_us = statistics.median(each.cpu_us for each in samples)
            shown.append(Figure(f"{kind.name}: gateway's CPU per answer", cpu_us, "us", of=way))
        shown.append(Figure(f"{kind.name}: failed", sum(each.failed for each in samples), "", of=way))
    ratios = [by_tokens.short_per_s / by_slots.short_per_s for by_tokens, by_slots in pairs if by_slots.short_per_s]
    if ratios and not kind.long_clients:
        shown.append(Figure(f"{kind.name}: short, by tokens / by slots", statistics.median(ratios), "x", ">= 0.95"))
    return shown


def run(arguments: Sequence[str] = ()) -> list[Figure]:
    """Measure. `arguments`: `--rounds N`."""
    parser = argparse.ArgumentParser(prog="make bench ARGS=tokens", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args(arguments)
    assert SLOTS * LONG_TOKENS > CONTEXT
    return uvloop.run(_measure_all(options.rounds))
