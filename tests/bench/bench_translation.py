"""What it costs to serve an API that an engine does not speak: the same engine, asked for chat completions that pass
through, and for the families that the gateway makes of them, in one run.

Every round measures every family, so that a noisy machine is noisy for all, and medians are shown. Per chunk it is the
gateway's CPU time that is told: streams are paced as an engine's are, so their wall time is the engine's.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import uvloop

from tests.bench.bench_gateway import Seen
from tests.bench.load import CHAT, TEXT, allow_many_files, events_per_second, post_bytes, sequential_p50_ms
from tests.bench.report import Figure
from tests.bench.targets import GATEWAY, Target, targets

ROUNDS = 5
REQUESTS, SECONDS = 2000, 1.0
"""Of one measurement, whichever is over first."""
STREAMS, EVENTS, PACE_S = 64, 300, 0.01
"""Streams long enough that their beginnings and ends count for little."""

BLOCKING: Final = "one after the other, p50"
PER_CHUNK: Final = f"CPU per chunk, {STREAMS} streams of {EVENTS}"


@dataclass(frozen=True, slots=True)
class Family:
    name: str
    path: str
    asked: dict[str, Any]
    limit: str = "max_tokens"
    """Its field for the tokens of an answer at most."""

    def request(self, port: int, secret: str, tokens: int, **fields: Any) -> bytes:
        """As it goes over the wire."""
        return post_bytes(port, secret, self.path, **self.asked, **{self.limit: tokens}, **fields)


_SAID: Final = {"messages": [{"role": "user", "content": TEXT}]}
PASSED: Final = Family("chat, passed", CHAT, _SAID)
FAMILIES: Final = (
    PASSED,
    Family("completions", "/v1/completions", {"prompt": TEXT}),
    Family("messages", "/v1/messages", _SAID),
    Family("responses", "/v1/responses", {"input": TEXT, "store": False}, "max_output_tokens"),
    Family("responses, stored", "/v1/responses", {"input": TEXT, "store": True}, "max_output_tokens"),
)


async def measure_round(target: Target, secret: str, seen: Seen) -> None:
    port = target.port
    for family in FAMILIES:
        blocking = family.request(port, secret, 100)
        seen.add(BLOCKING, family.name, await sequential_p50_ms(port, blocking, REQUESTS, SECONDS))
        paced = family.request(port, secret, EVENTS, stream=True, user=f"pace:{PACE_S}")
        before = target.cpu_s()
        await events_per_second(port, paced, STREAMS, EVENTS)
        seen.add(PER_CHUNK, family.name, (target.cpu_s() - before) / (STREAMS * EVENTS) * 1e6)


async def measure_all() -> Seen:
    secret, seen = f"sk-{secrets.token_urlsafe(32)}", Seen()
    async with targets(secret, (GATEWAY,)) as (_, gateway):
        for _ in range(ROUNDS):
            await measure_round(gateway, secret, seen)
    return seen


def figures(seen: Seen) -> list[Figure]:
    """Medians side by side, and what each family adds to what passes."""
    units = {BLOCKING: "ms", PER_CHUNK: "us"}
    shown = [
        Figure(figure, median, unit, of=family.name)
        for figure, unit in units.items()
        for family in FAMILIES
        if (median := seen.median(figure, family.name)) is not None
    ]
    for figure, aim in ((BLOCKING, "<= 0.3"), (PER_CHUNK, "<= 15")):
        passed = seen.median(figure, PASSED.name)
        for family in FAMILIES[1:]:
            translated = seen.median(figure, family.name)
            if passed is not None and translated is not None:
                shown.append(Figure(f"{family.name} adds: {figure}", translated - passed, units[figure], aim))
    return shown


def run(arguments: Sequence[str] = ()) -> list[Figure]:
    """Measure. Takes no options."""
    allow_many_files()
    return figures(uvloop.run(measure_all()))
