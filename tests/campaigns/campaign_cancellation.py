"""How soon an engine stops when its client leaves."""

from __future__ import annotations

import asyncio
import statistics

from tests.campaigns.record import Outcome, Table

ABOUT = """
A client of a real llama-server behind a whole Roundhouse leaves while the engine generates. The engine's log must say
that it cancels the request and frees the slot: for every API, blocking and streaming, on an idle and on a busy engine.
The figures are the seconds until the slot is free.
"""
TESTS = ("tests/e2e/test_gateway_cancellation.py",)
COLUMNS = ("API", "answer", "engine", "times", "median", "worst")


def run(seed: int) -> Outcome:
    """Nothing here is random: the seed changes nothing."""
    rows: list[tuple[object, ...]] = []
    failures: list[str] = []
    for stream in (False, True):
        for busy in (False, True):
            answer, engine = "streaming" if stream else "blocking", "busy" if busy else "idle"
            try:
                times = _measure(stream, busy)
            except AssertionError as error:
                failures.append(f"{answer}, {engine}: {error}")
                continue
            for path, seen in times.items():
                figures = f"{statistics.median(seen):.3f} s", f"{max(seen):.3f} s"
                rows.append((f"`{path}`", answer, engine, len(seen), *figures))
    return Outcome((Table("Seconds until the slot is free", COLUMNS, rows),), failures)


def _measure(stream: bool, busy: bool) -> dict[str, list[float]]:
    # Imported here: how many times it tries is decided when the module is imported, and the environment says it.
    from tests.e2e.test_gateway_cancellation import measured
    from tests.support.llama_slots import endless_stack

    with endless_stack() as stack:
        return asyncio.run(measured(stack, stream=stream, busy=busy))
