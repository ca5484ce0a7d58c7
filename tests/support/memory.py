"""Memory of a process: how much the system says it takes, whether that still grows, and what only the cyclic garbage
collector can free.

The gateway collects rarely (`gateway.__main__.tune_garbage_collector`), and by the number of objects, not by what they
hold: a cycle that holds a request's body holds it for minutes.
"""

from __future__ import annotations

import contextlib
import gc
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, FunctionType, MethodType

_FIELDS = ("Rss", "Pss", "Private_Dirty", "Anonymous")


def memory_of(pid: int) -> dict[str, float]:
    """By field of `smaps_rollup`, in lower case, in MiB."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    found = ((name, re.search(rf"^{name}:\s+(\d+) kB", text, re.MULTILINE)) for name in _FIELDS)
    return {name.lower(): int(match[1]) / 1024 for name, match in found if match}


BEARABLE_MIB_PER_HOUR = 1.0
"""A slope below this is not told from none: the allocator's own steps are as large."""
LEAST_FIGURES = 8
"""With fewer, a fit of a half says nothing."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line through figures by least squares."""

    per_minute: float
    error_per_minute: float
    """The slope's standard error."""
    minutes: float
    """Length of what it was fitted to."""


@dataclass(frozen=True, slots=True)
class Growth:
    """What the second half of a run says, and its last quarter."""

    half: Line
    quarter: Line
    grows: bool


def fit_line(minutes: Sequence[float], figures: Sequence[float]) -> Line:
    """The line of least squares through at least three figures.

    Raises:
        ValueError: there are fewer, or all are of one time.
    """
    count = len(minutes)
    if count < 3:
        raise ValueError(f"{count} figures make no line")
    mean_x, mean_y = sum(minutes) / count, sum(figures) / count
    spread = sum((x - mean_x) ** 2 for x in minutes)
    if not spread:
        raise ValueError("all figures are of one time")
    slope = sum((x - mean_x) * (y - mean_y) for x, y in zip(minutes, figures, strict=True)) / spread
    rest = sum((y - mean_y - slope * (x - mean_x)) ** 2 for x, y in zip(minutes, figures, strict=True))
    return Line(slope, (rest / (count - 2) / spread) ** 0.5, max(minutes) - min(minutes))


def judge_growth(minutes: Sequence[float], mib: Sequence[float]) -> Growth | None:
    """Whether memory (`mib` at `minutes`, ascending) still grows at the end; None: too few figures to say.

    It does where the second half rises by more than is bearable, twice its standard error taken off, and the last
    quarter does so too: what only warms up rises ever less, and what steps up once is level after the step.
    """
    begin, end = minutes[0] if minutes else 0.0, minutes[-1] if minutes else 0.0
    half = [(x, y) for x, y in zip(minutes, mib, strict=True) if x >= begin + (end - begin) / 2]
    quarter = [(x, y) for x, y in half if x >= begin + (end - begin) * 3 / 4]
    if len(half) < LEAST_FIGURES or len(quarter) < LEAST_FIGURES // 2:
        return None
    lines = tuple(fit_line([x for x, _ in part], [y for _, y in part]) for part in (half, quarter))
    rises = [(line.per_minute - 2 * line.error_per_minute) * 60 > BEARABLE_MIB_PER_HOUR for line in lines]
    return Growth(lines[0], lines[1], grows=all(rises))


@contextlib.contextmanager
def leftovers_of(*packages: str) -> Iterator[Counter[str]]:
    """Counts, at its end, these packages' objects and running code that were left in cycles. The collector is off until
    then."""
    found: Counter[str] = Counter()
    gc.disable()
    gc.freeze()  # what was there before is not looked at
    try:
        yield found
    finally:
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        gc.set_debug(0)
        found.update(name for each in gc.garbage if (name := name_of(each)).partition(".")[0] in packages)
        gc.garbage.clear()
        gc.unfreeze()
        gc.enable()


def name_of(value: object) -> str:
    """An object's type, or of code what it is and where, with the module in front."""
    if isinstance(value, FrameType):
        return f"{value.f_globals.get('__name__')}.{value.f_code.co_qualname} (running)"
    if isinstance(value, FunctionType):
        return f"{value.__module__}.{value.__qualname__} (function)"
    if isinstance(value, MethodType):
        return f"{type(value.__self__).__module__}.{type(value.__self__).__qualname__}.{value.__name__} (method)"
    return f"{type(value).__module__}.{type(value).__qualname__}"
