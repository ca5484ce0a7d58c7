"""What it is worth to send the turns of a conversation where its cache is, and what it costs: 40 conversations on four
replicas, with `session_id` and without it, where the gateway sends each turn to a replica that has least to do.

The engines are fakes that wait as long as they would compute (see `batching_engine`), of two kinds: with twelve slots
each, which is more than the conversations need; and with six requests at a time and a cache of prefixes, where turns
queue. Each conversation asks again as soon as it is answered, which keeps the engines full, or after a pause of a
second in the mean, which does not; a new one begins after its last turn. Every round measures both ways, in another
order each time; shown are medians, and the medians of the rounds' ratios.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import uvloop

from contract.routing import ModelRoute
from tests.bench.batching_engine import SLOTS
from tests.bench.report import Figure, median_ratio
from tests.bench.targets import process
from tests.fakes.fake_controller import route
from tests.fakes.gateway_harness import GatewayHarness, gateway_harness

REPLICAS, CONVERSATIONS, TURNS = 4, 40, 8
OPENING_WORDS, TURN_WORDS, ANSWER_TOKENS = 600, 60, 40
WARM_UP_S, SECONDS = 4.0, 10.0
AFFINITY, LEAST = "with session_id", "least in flight"
AIM: Final = ">= 0.98"
KINDS: Final[dict[str, dict[str, Any]]] = {
    "slots": {"target_inflight": SLOTS, "session_cache": SLOTS, "session_binding": "slot"},
    "prefixes": {"target_inflight": 6, "session_cache": 16, "session_binding": None},
}
"""Kind of engine to what the gateway is told of it."""
PAUSES: Final = {"full": 0.0, "unhurried": 1.0}
"""Name of a load to the mean seconds between an answer and the next turn."""


@dataclass
class Seen:
    """What the answers within the measured time were like."""

    begins_at: float
    ends_at: float
    first_token_s: list[float] = field(default_factory=list)
    answers: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0


async def _converse(
    gateway: GatewayHarness, names: itertools.count[int], seen: Seen, pause_s: float, *, has_session: bool
) -> None:
    """Hold one conversation after the other until the time is over."""
    while time.perf_counter() < seen.ends_at:
        name = f"talk{next(names)}"
        said = [{"role": "system", "content": f"{name} " + "before " * OPENING_WORDS}]
        for turn in range(TURNS):
            said.append({"role": "user", "content": f"{turn} " + "hello " * TURN_WORDS})
            fields = {"session_id": name} if has_session else {}
            if not await _ask(gateway, said, fields, seen):
                return
            if pause_s:
                await asyncio.sleep(random.expovariate(1 / pause_s))


async def _ask(gateway: GatewayHarness, said: list[dict[str, str]], fields: dict[str, str], seen: Seen) -> bool:
    """Have one turn answered; False: the time is over."""
    body = {"messages": said, "max_tokens": ANSWER_TOKENS, "stream": True, **fields}
    usage: dict[str, Any] = {}
    asked_at, first_at, text = time.perf_counter(), 0.0, ""
    async with gateway.post(
        "/v1/chat/completions", model="m", stream_options={"include_usage": True}, **body
    ) as answer:
        assert answer.status == 200, await answer.text()
        async for line in answer.content:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            usage = event.get("usage") or usage
            for choice in event["choices"]:
                first_at = first_at or time.perf_counter()
                text += choice["delta"].get("content") or ""
    said.append({"role": "assistant", "content": text})
    now = time.perf_counter()
    if seen.begins_at <= asked_at and first_at <= seen.ends_at:
        seen.first_token_s.append(first_at - asked_at)
        seen.prompt_tokens += usage["prompt_tokens"]
        seen.cached_tokens += usage["prompt_tokens_details"]["cached_tokens"]
    seen.answers += seen.begins_at <= now <= seen.ends_at
    return now < seen.ends_at


async def _measure(kind: str, names: itertools.count[int], pause_s: float, *, has_session: bool) -> Seen:
    """Measure one way, with engines and a gateway that have seen nothing."""
    command = [sys.executable, "-m", "tests.bench.batching_engine", kind, str(REPLICAS)]
    async with process(command, out=asyncio.subprocess.PIPE) as engines, gateway_harness() as gateway:
        assert engines.stdout is not None
        ports = [int(await engines.stdout.readline()) for _ in range(REPLICAS)]
        await gateway.publish(_model(kind, ports))
        begins_at = time.perf_counter() + WARM_UP_S
        seen = Seen(begins_at, begins_at + SECONDS)
        async with asyncio.TaskGroup() as group:
            for _ in range(CONVERSATIONS):
                group.create_task(_converse(gateway, names, seen, pause_s, has_session=has_session))
    return seen


def _model(kind: str, ports: Sequence[int]) -> ModelRoute:
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    return route("m", urls, queue_limit=CONVERSATIONS, **KINDS[kind])


async def _measure_all(rounds: int) -> list[Figure]:
    names = itertools.count()
    shown: list[Figure] = []
    for kind, (load, pause_s) in itertools.product(KINDS, PAUSES.items()):
        seen: dict[str, list[Seen]] = {AFFINITY: [], LEAST: []}
        for number in range(rounds):
            for way in (AFFINITY, LEAST) if number % 2 else (LEAST, AFFINITY):
                seen[way].append(await _measure(kind, names, pause_s, has_session=way == AFFINITY))
        shown += _figures(f"{kind}, {load}", seen)
    return shown


def _figures(where: str, seen: dict[str, list[Seen]]) -> list[Figure]:
    first = {way: [statistics.median(each.first_token_s) * 1000 for each in rounds] for way, rounds in seen.items()}
    rates = {way: [each.answers / SECONDS for each in rounds] for way, rounds in seen.items()}
    shown = []
    for way, rounds in seen.items():
        cached = sum(each.cached_tokens for each in rounds) / sum(each.prompt_tokens for each in rounds)
        late = statistics.median(statistics.quantiles(each.first_token_s, n=10)[-1] * 1000 for each in rounds)
        shown += [
            Figure(f"{where}: first token p50", statistics.median(first[way]), "ms", of=way),
            Figure(f"{where}: first token p90", late, "ms", of=way),
            Figure(f"{where}: answers per second", statistics.median(rates[way]), "1/s", of=way),
            Figure(f"{where}: part of the prompts that was cached", cached, "", of=way),
        ]
    for name, values, aim in (("first token p50", first, ""), ("answers per second", rates, AIM)):
        ratio = median_ratio(values[AFFINITY], values[LEAST])
        shown.append(Figure(f"{where}: {name}, {AFFINITY} over {LEAST}", ratio, "x", aim))
    return shown


def run(arguments: Sequence[str] = ()) -> list[Figure]:
    """Measure. `arguments`: `--rounds N`."""
    parser = argparse.ArgumentParser(prog="make bench ARGS=affinity", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    return uvloop.run(_measure_all(parser.parse_args(arguments).rounds))
