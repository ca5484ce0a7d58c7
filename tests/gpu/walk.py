"""Walks the steps in their order: those without a result are tried, and each result is kept at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, Protocol

from tests.gpu.results import Results
from tests.gpu.step import Available, NotTriedError, Outcome, Step, StepFailedError, find_missing

_LENGTH: Final = 2000
"""Most characters of an error that is kept: some bring a log."""
NO_TIME: Final = "no time left: --limit"


class Place(Protocol):
    """Where steps run: what the host has, and how to be rid of what a step has left."""

    @property
    def available(self) -> Available:
        """What the host has."""

    async def prepare(self, model: str | None) -> None:
        """Make a step's model. Raises NotTriedError."""

    async def settle(self) -> None:
        """End everything that a step has started."""


async def walk_steps(
    steps: Sequence[Step],
    place: Place,
    results: Results,
    tell: Callable[[Step, Outcome, bool], None],
    limit_s: float | None = None,
) -> list[tuple[Step, Outcome]]:
    """What came of each step. `tell` is told of each as it ends, and whether its result is an earlier run's. `limit_s`:
    of all steps together; those that it leaves no time are not tried. None: there is no limit.

    A step that is cancelled leaves no result, so that the next run tries it again.
    """
    rows, ends = [], None if limit_s is None else time.monotonic() + limit_s
    for step in steps:
        outcome = results.find(step)
        is_known = outcome is not None
        if outcome is None:
            outcome = await try_step(step, place, None if ends is None else max(0.0, ends - time.monotonic()))
            results.add(step, outcome)
        tell(step, outcome, is_known)
        rows.append((step, outcome))
    return rows


async def try_step(step: Step, place: Place, left_s: float | None = None) -> Outcome:
    """Run one step, however it ends. `left_s`: the time that is left for it; None: its own limit alone holds."""
    if (reason := find_missing(step.needs, place.available)) is not None:
        return Outcome("not tried", reason)
    if left_s is not None and left_s <= 0:
        return Outcome("not tried", NO_TIME)
    began = time.monotonic()
    outcome = await _run(step, place, left_s)
    outcome = replace(outcome, seconds=time.monotonic() - began)
    try:
        await place.settle()
    except Exception as error:
        reason = f"{outcome.reason or outcome.status}; and what it started does not end: {error}"
        return replace(outcome, status="failed", reason=reason[:_LENGTH])
    return outcome


async def _run(step: Step, place: Place, left_s: float | None) -> Outcome:
    is_cut = left_s is not None and left_s < step.limit_s
    try:
        async with asyncio.timeout(left_s if is_cut else step.limit_s):
            await place.prepare(step.needs.model)
            return Outcome("passed", figures=dict(await step.run(place)))
    except NotTriedError as error:
        return Outcome("not tried", str(error))
    except StepFailedError as error:
        return Outcome("failed", str(error), dict(error.figures))
    except TimeoutError:
        if is_cut:
            return Outcome("not tried", NO_TIME)
        return Outcome("failed", f"took longer than {step.limit_s:g} s")
    except Exception as error:
        # One step that goes wrong in a way that nobody foresaw must not cost the others.
        return Outcome("failed", f"{type(error).__name__}: {error}"[:_LENGTH])
