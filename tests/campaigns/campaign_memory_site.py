"""Whether the memory of each program stays flat under hostile clients."""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

from tests.campaigns.record import Outcome, Table
from tests.support.tormented_site import PROGRAMS, TormentedSite, tormented_site

ABOUT = """
A whole Roundhouse under `up` for twenty minutes: hostile clients of every kind at the gateway, odd documents and
searches, declarations and statements that are refused or taken back, and downloads from a hub that fails; a good client
beside them compares its answers. The anonymous memory of controller, gateway, retrieval and transfers, children
included, is read every ten seconds. In the second half it must be flat: the median of its last fifth at most 5 % above
that of its first fifth.
"""
MINUTES, RATE, EVERY_S = 20.0, 40.0, 10.0
MOST_GROWTH = 1.05
TESTS = ("tests/e2e/test_memory_site.py",)

Reading = Mapping[str, float]
"""MiB by program, as `TormentedSite.read_memory`."""


def declare_options(parser: argparse.ArgumentParser) -> None:
    """What this campaign can be told besides its seed."""
    parser.add_argument("--minutes", type=float, help=f"how long (default: {MINUTES:g})")
    parser.add_argument("--rate", type=float, help=f"hostile clients per second (default: {RATE:g})")


def run(seed: int, *, minutes: float = MINUTES, rate: float = RATE) -> Outcome:
    """Torment a site for so long."""
    with tempfile.TemporaryDirectory(prefix="rh", ignore_cleanup_errors=True) as folder:
        readings, here = asyncio.run(take_readings(Path(folder), seed, rate, minutes * 60, EVERY_S))
    good = ("good answers, all compared", f"{here.good:,}, and {len(here.wrong)} that were wrong")
    tables = [
        Table("Memory in the second half", ("program", "first fifth", "last fifth", "ratio"), memory_rows(readings)),
        Table("Clients", ("kind", "begun"), [good, *sorted(here.begun.items())]),
    ]
    return Outcome(tables, find_failures(readings, here.wrong))


async def take_readings(
    folder: Path, seed: int, rate: float, seconds: float, every_s: float
) -> tuple[list[Reading], TormentedSite]:
    readings: list[Reading] = []
    async with tormented_site(folder, seed, rate) as here:
        await here.run(lambda: readings.append(here.read_memory()), every_s, seconds)
    return readings, here


def memory_rows(readings: Sequence[Reading]) -> list[tuple[str, str, str, str]]:
    """By program: medians of the first and the last fifth of the second half, in MiB, and their ratio."""
    return [
        (program, f"{first:.1f} MiB", f"{last:.1f} MiB", f"{last / first:.3f}")
        for program in PROGRAMS
        for first, last in [_compare_fifths([reading[program] for reading in readings])]
    ]


def find_failures(readings: Sequence[Reading], wrong: Sequence[str]) -> list[str]:
    """What did not hold; empty: all did."""
    failures = [f"wrong answer: {said}" for said in wrong]
    for program in PROGRAMS:
        first, last = _compare_fifths([reading[program] for reading in readings])
        if last > first * MOST_GROWTH:
            failures.append(f"{program} grows: {first:.1f} MiB, and {last:.1f} MiB at the end")
    return failures


def _compare_fifths(values: Sequence[float]) -> tuple[float, float]:
    half = values[len(values) // 2 :]
    fifth = max(1, len(half) // 5)
    return median(half[:fifth]), median(half[-fifth:])
