"""Searches of the embedded vector store beside the bare library and qdrant-client's local mode, the store's part of an
ingestion, and what a chat waits while documents are ingested.

The store: chunks of dimension 384 with made vectors, ten tenants in one collection, each search within one of them;
before there is an index, while `optimize()` builds it, and afterwards. Each store has a process of its own, and their
order alternates from round to round; medians of the rounds are shown. Local mode gets fewer chunks, or a round would
take many minutes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from tests.bench.rag_ingest import Sizes, measure_chat, measure_share
from tests.bench.rag_sides import BARE, LOCAL, OURS
from tests.bench.report import Figure
from tests.bench.targets import CACHE
from tests.support import installed_engines
from tests.support.minilm_model import Minilm, ModelUnavailableError, prepare_minilm

CHUNKS, LOCAL_CHUNKS, SEARCHES = 100_000, 5_000, 400
QUICK_CHUNKS, QUICK_LOCAL_CHUNKS, QUICK_SEARCHES = 3_000, 300, 50
Measure = Callable[[Path, Minilm, Sizes], Coroutine[Any, Any, list[Figure]]]
PARTS: Final = ("store", "ingest", "chat")
SIZES, QUICK_SIZES = Sizes(documents=30, chats=40, rounds=5), Sizes(documents=2, chats=3, rounds=1)
_UNITS: Final = {"insert": "s", "optimize()": "s", "disk": "MiB", "searches during optimize()": ""}
Figures = Mapping[str, float]


def run(arguments: Sequence[str] = ()) -> list[Figure]:
    """Measure. `arguments`: `--only PART`, `--chunks N`, `--rounds N`, `--quick`, `--without SIDE`."""
    parser = argparse.ArgumentParser(prog="make bench ARGS=rag", description=__doc__)
    parser.add_argument("--only", choices=PARTS, action="append", help="a part; default: all")
    parser.add_argument("--chunks", type=int, help=f"in our store and the bare library (default: {CHUNKS})")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--without", choices=(BARE, LOCAL), action="append", default=[])
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_CHUNKS} chunks: whether it runs, no figures")
    options = parser.parse_args(arguments)
    print(f"load average before: {os.getloadavg()[0]:.2f} of {os.cpu_count()} cores", file=sys.stderr)
    figures: list[Figure] = []
    if "store" in (options.only or PARTS):
        figures += _measure_stores(options)
    sizes = QUICK_SIZES if options.quick else SIZES
    for part, measure in (("ingest", measure_share), ("chat", measure_chat)):
        if part in (options.only or PARTS):
            figures += _measure_engines(measure, sizes)
    return figures


def _measure_engines(measure: Measure, sizes: Sizes) -> list[Figure]:
    """Measure with real engines; where they are missing: nothing, and a line on stderr that says so."""
    try:
        installed_engines.needed("binary")
        model = prepare_minilm(CACHE / "minilm")
    except (pytest.skip.Exception, ModelUnavailableError) as error:
        print(f"measuring without engines: {error}", file=sys.stderr)
        return []
    with tempfile.TemporaryDirectory(prefix="rh-bench") as folder:
        return asyncio.run(measure(Path(folder), model, sizes))


def _measure_stores(options: argparse.Namespace) -> list[Figure]:
    chunks = options.chunks or (QUICK_CHUNKS if options.quick else CHUNKS)
    counts = {OURS: chunks, BARE: chunks, LOCAL: min(chunks, QUICK_LOCAL_CHUNKS if options.quick else LOCAL_CHUNKS)}
    sides = [name for name in counts if name not in options.without]
    searches = QUICK_SEARCHES if options.quick else SEARCHES
    rounds: dict[str, list[Figures]] = {name: [] for name in sides}
    for number in range(options.rounds):
        for name in reversed(sides) if number % 2 else sides:
            rounds[name].append(_measure_side(name, counts[name], searches))
    medians = {name: _median_of(each) for name, each in rounds.items()}
    shown = [
        Figure(figure, value, _unit_of(figure), of=f"{name}, {counts[name]:,}")
        for name, figures in medians.items()
        for figure, value in figures.items()
    ]
    return shown + _judge(medians[OURS]) + _compare(medians)


def _measure_side(name: str, chunks: int, searches: int) -> Figures:
    """One store in a process of its own, so that memory is its own, too."""
    with tempfile.TemporaryDirectory(prefix="rh-bench-rag") as folder:
        command = [sys.executable, "-m", "tests.bench.rag_side", name, str(Path(folder, "store"))]
        command += [str(chunks), str(searches)]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        figures: dict[str, float] = json.loads(done.stdout)
        return figures


def _median_of(rounds: Sequence[Figures]) -> Figures:
    return {name: statistics.median(each[name] for each in rounds if name in each) for name in rounds[0]}


def _unit_of(figure: str) -> str:
    if figure.startswith("memory"):
        return "MiB"
    return "" if figure.startswith("found") else _UNITS.get(figure, "ms")


def _judge(ours: Figures) -> list[Figure]:
    """What the project wants of our store."""
    shown = []
    for kind in ("dense", "sparse"):
        shown += [
            Figure(f"{kind} p50, indexed", ours[f"{kind}, indexed p50"], "ms", "<= 10"),
            Figure(f"{kind} p95, indexed", ours[f"{kind}, indexed p95"], "ms", "<= 25"),
        ]
        during, idle = f"{kind}, during optimize() p95", f"{kind}, unindexed p95"
        if during in ours:
            shown.append(Figure(f"{kind} p95, during optimize() over before", ours[during] / ours[idle], "x", "<= 3"))
    return shown


def _compare(medians: Mapping[str, Figures]) -> list[Figure]:
    """Ours over the bare library, which has as many chunks."""
    if BARE not in medians:
        return []
    ours, bare = medians[OURS], medians[BARE]
    names = ["insert", "optimize()", "memory, both", "disk"]
    names += [f"{kind}, {stage} p50" for stage in ("unindexed", "indexed") for kind in ("dense", "sparse")]
    names.append("longest search during optimize()")
    return [Figure(f"{name}, over the bare library", ours[name] / bare[name], "x") for name in names if bare.get(name)]
