"""What a new user does in the first hour, as the README says it, with its times."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.campaigns.record import Outcome, Table
from tests.support.first_hour import FirstHour, Step

PAGE = "first-hour"
ABOUT = """
A new user follows the README: a clone in an empty folder, `make up`, a GGUF file copied into it, the same file used
where it lies, a key with the gateway on another address, a service of a real `systemd --user` in its own namespaces.
127.0.0.2 and a free port stand for 0.0.0.0 and 8080. Each step ends with a right answer by curl; no warning, error or
answer but "not yet" may come before it. Times are the machine's, without typing, beside whatever else runs; pip's
sources are those of the machine.
"""
BOUNDS_S = {
    "An own GGUF file from outside the project": 60.0,
    "The same file, left where it lies": 60.0,
    "A key, and an address of the network": 120.0,
    "A service of systemd": 180.0,
}
"""Most seconds of a step. The first one's are mostly pip's, and have no bound."""
TESTS = ("tests/e2e/test_new_user.py",)


def run(seed: int) -> Outcome:
    """Walk it once, with the real installation. Nothing is random."""
    with tempfile.TemporaryDirectory(prefix="rh", ignore_cleanup_errors=True) as folder:
        hour = FirstHour(Path(folder))
        failures: list[str] = []
        try:
            asyncio.run(hour.walk())
        except Exception as error:
            failures.append(f"{hour.steps[-1].title}: led nowhere\n{error}")
    return Outcome(
        [Table("Steps", ("step", "typed", "time", "bound", "refused"), _rows(hour.steps))],
        [*failures, *failures_of(hour.steps)],
    )


def failures_of(steps: Sequence[Step]) -> list[str]:
    """What was refused, and what took too long."""
    failures = [f"{step.title}: {line}" for step in steps for line in step.refusals]
    slow = [step for step in steps if step.seconds > BOUNDS_S.get(step.title, step.seconds)]
    return failures + [f"{step.title}: {step.seconds:.0f} s, bound {BOUNDS_S[step.title]:.0f} s" for step in slow]


def _rows(steps: Sequence[Step]) -> list[tuple[str, ...]]:
    return [
        (
            step.title,
            "<br>".join(f"`{command}`" for command in step.commands),
            f"{step.seconds:.1f} s",
            f"{BOUNDS_S[step.title]:.0f} s" if step.title in BOUNDS_S else "",
            str(len(step.refusals)),
        )
        for step in steps
    ]
