"""Whether a gateway's memory ever stops growing under hostile clients."""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.campaigns.record import Outcome, Table
from tests.support.memory import BEARABLE_MIB_PER_HOUR, judge_growth
from tests.support.tormented_gateway import Torment, TormentedGateway, tormented_gateway

ABOUT = """
A gateway process of its own under hostile clients of every kind, each from an address of its own, with names, keys,
Hosts, paths and beginnings that never come again, while its replicas, keys and engines come and go; good clients beside
them compare their answers. Every minute its memory is read (`smaps_rollup`), and what it holds besides. A line through
the anonymous memory of the second half, and one through that of the last quarter, must not both rise.
"""
MINUTES, RATE, EVERY_S = 120.0, 60.0, 60.0
SHOWN = 24
"""Rows of a table; the data has them all."""
_MIB = 1024 * 1024

Figures = Mapping[str, Any]
"""What was seen at one time: `TormentedGateway.figures`."""


class Beside(NamedTuple):
    """Figures of another run that are shown beside."""

    label: str
    data: Path


def declare_options(parser: argparse.ArgumentParser) -> None:
    """What this campaign can be told besides its seed."""
    parser.add_argument("--minutes", type=float, help=f"how long (default: {MINUTES:g})")
    parser.add_argument("--rate", type=float, help=f"hostile clients per second (default: {RATE:g})")
    parser.add_argument("--every", type=float, help=f"seconds between figures (default: {EVERY_S:g})")
    parser.add_argument("--data", type=Path, help="file to which figures are appended as they are taken")
    parser.add_argument(
        "--trace", type=Path, help="folder for what is allocated where; the figures are no measure then"
    )
    parser.add_argument(
        "--beside", type=_beside, action="append", metavar="LABEL=DATA", help="show the figures of another run, too"
    )


def _beside(text: str) -> Beside:
    label, _, path = text.rpartition("=")
    return Beside(label, Path(path))


def run(
    seed: int,
    *,
    minutes: float = MINUTES,
    rate: float = RATE,
    every: float = EVERY_S,
    data: Path | None = None,
    trace: Path | None = None,
    beside: Sequence[Beside] = (),
) -> Outcome:
    """Torment a gateway for so long. `data` None: figures are kept in memory alone; `trace` None: nothing is traced."""
    with tempfile.TemporaryDirectory(prefix="rh") as folder:
        taken, here = asyncio.run(_torment(Path(folder), Torment(seed, rate), minutes * 60, every, data, trace))
    tables = [*tables_of(taken), Table("Hostile clients", ("kind", "begun"), sorted(here.begun.items()))]
    for other in beside:
        lines = other.data.read_text().splitlines()
        tables += tables_of([json.loads(line) for line in lines], f": {other.label}")
    return Outcome(tables, failures_of(taken, here.wrong))


async def _torment(
    folder: Path, torment: Torment, seconds: float, every_s: float, data: Path | None, trace: Path | None
) -> tuple[list[Figures], TormentedGateway]:
    taken: list[Figures] = []
    async with tormented_gateway(folder, torment, trace) as here:

        async def look() -> None:
            taken.append(await here.figures())
            if data is not None:
                with data.open("a") as file:
                    print(json.dumps(taken[-1]), file=file, flush=True)

        await here.run(look, every_s, seconds)
    return taken, here


def failures_of(taken: Sequence[Figures], wrong: Sequence[str]) -> list[str]:
    failures = [f"wrong answer: {said}" for said in wrong]
    growth = judge_growth(_minutes(taken), [figures["anonymous"] for figures in taken])
    if growth is not None and growth.grows:
        failures.append(f"memory still grows, by {growth.half.per_minute:.4f} MiB a minute")
    return failures


def tables_of(taken: Sequence[Figures], label: str = "") -> list[Table]:
    """The verdict, and how it went. `label` ends the titles."""
    minutes = _minutes(taken)
    step = max(1, (len(taken) - 1) // SHOWN)
    shown = [number for number in range(len(taken)) if number % step == 0 or number == len(taken) - 1]
    rows = [(f"{minutes[number]:.0f}", *map(_Cells(taken[number]).show, _COLUMNS.values())) for number in shown]
    return [
        Table(f"Memory{label}", ("figure", "value"), list(_verdict(taken, minutes))),
        Table(f"As it went{label}", ("minute", *_COLUMNS), rows),
    ]


def _minutes(taken: Sequence[Figures]) -> list[float]:
    return [(figures["at"] - taken[0]["at"]) / 60 for figures in taken]


def _verdict(taken: Sequence[Figures], minutes: Sequence[float]) -> Iterator[tuple[str, object]]:
    first, last = taken[0], taken[-1]
    span_s = max(1.0, last["at"] - first["at"])
    for name, words in (("anonymous", "anonymous memory"), ("rss", "resident memory")):
        values = [figures[name] for figures in taken]
        shown = " / ".join(f"{value:.1f}" for value in (values[0], values[-1], max(values)))
        yield f"{words} at the beginning / at the end / at most", f"{shown} MiB"
    growth = judge_growth(minutes, [figures["anonymous"] for figures in taken])
    if growth is not None:
        for words, line in (("second half", growth.half), ("last quarter", growth.quarter)):
            slope = f"{line.per_minute:+.4f} ± {line.error_per_minute:.4f} MiB a minute"
            yield f"slope of the {words} ({line.minutes:.0f} min)", slope
    answer = "too few figures to say" if growth is None else "yes" if growth.grows else "no"
    yield f"still grows, by more than {BEARABLE_MIB_PER_HOUR:g} MiB an hour", answer
    yield "time", f"{minutes[-1]:.0f} min"
    yield "hostile clients", f"{last['hostile']:,} ({last['hostile'] / span_s:.0f} a second)"
    yield "good answers, all compared", f"{last['good']:,}, and {last['wrong']} that were wrong"
    yield "routing tables", last["tables"]
    yield "CPU of the gateway, of one core", f"{(last['cpu_s'] - first['cpu_s']) / span_s:.1%}"
    yield "CPU of clients, engines and controller", f"{(last['own_cpu_s'] - first['own_cpu_s']) / span_s:.1%}"


_COLUMNS = {
    "anonymous": "anonymous",
    "resident": "rss",
    "heap": "heap",
    "of it used": "heap_used",
    "Python's blocks": "blocks",
    "tracked": "tracked",
    "files": "fds",
    "threads": "threads",
    "series": "series",
    "stored": "stored_responses",
    "to engines": "engine_connections",
    "clients": "hostile_now",
}
"""Column to figure. MiB, or a count; `tracked`: container objects since the cyclic collector last ran."""


class _Cells(NamedTuple):
    figures: Figures

    def show(self, name: str) -> str:
        """One figure; empty where the gateway did not tell."""
        value = self.figures.get(name, "")
        if name in ("rss", "anonymous"):
            return f"{value:.1f}"
        if name.startswith("heap") and value:
            return f"{value / _MIB:.1f}"
        return f"{value:g}" if isinstance(value, float) else str(value)
