"""Whether memory still grows, told from warm-up, steps and noise; and what a piece of work leaves in cycles."""

from __future__ import annotations

import gc
import math
from random import Random

import pytest

from common.processes import without_tracebacks
from tests.support.memory import LEAST_FIGURES, Line, fit_line, judge_growth, leftovers_of

MINUTES = [float(number) for number in range(116)]


def _grows(mib: list[float]) -> bool:
    growth = judge_growth(MINUTES, mib)
    assert growth is not None
    return growth.grows


def test_a_line_through_figures() -> None:
    assert fit_line([0, 1, 2, 3], [5, 7, 9, 11]) == Line(per_minute=2, error_per_minute=0, minutes=3)
    noisy = fit_line([0, 1, 2, 3], [0, 1, 0, 1])
    assert noisy.per_minute == pytest.approx(0.2)
    assert noisy.error_per_minute == pytest.approx(math.sqrt(0.8 / 2 / 5))


@pytest.mark.parametrize(("minutes", "reason"), [([0, 1], "2 figures"), ([3, 3, 3], "one time")])
def test_what_makes_no_line(minutes: list[float], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        fit_line(minutes, [1.0] * len(minutes))


def test_a_leak_grows_through_the_noise() -> None:
    noise = Random(1)
    for per_minute in (0.03, 0.3, 5):
        assert _grows([60 + per_minute * minute + noise.uniform(-0.3, 0.3) for minute in MINUTES]), per_minute


def test_what_comes_to_an_end_does_not_grow() -> None:
    noise = Random(2)
    assert not _grows([60.0] * len(MINUTES))
    assert not _grows([60 + noise.uniform(-2, 2) for _ in MINUTES])
    assert not _grows([60 + 30 * (1 - math.exp(-minute / 10)) + noise.uniform(-0.5, 0.5) for minute in MINUTES])
    assert not _grows([90 - 0.3 * minute for minute in MINUTES])


def test_one_step_is_no_growth_wherever_it_is() -> None:
    noise = Random(3)
    for at in (10, 60, 80):
        assert not _grows([(60 if minute < at else 70) + noise.uniform(-0.5, 0.5) for minute in MINUTES]), at


def test_few_figures_say_nothing() -> None:
    assert judge_growth([], []) is None
    count = 2 * LEAST_FIGURES - 3
    assert judge_growth(MINUTES[:count], [float(number) for number in range(count)]) is None
    assert judge_growth(MINUTES[: count + 2], [float(number) for number in range(count + 2)]) is not None


class _Ring:
    def __init__(self) -> None:
        self.own = self


def _keep_error(*, cut: bool) -> None:
    try:
        int("none")
    except ValueError as error:
        kept = without_tracebacks(error) if cut else error
    assert kept


def test_cycles_are_counted_and_nothing_else() -> None:
    with leftovers_of("tests") as left:
        _Ring()
        _Ring().own = None  # type: ignore[assignment]
        [object() for _ in range(3)]
    assert left == {"tests.unit.support.test_memory_growth._Ring": 1}
    assert gc.isenabled()
    assert not gc.garbage


def test_an_error_that_a_frame_keeps_is_a_cycle_unless_its_traceback_is_cut() -> None:
    with leftovers_of("tests") as left:
        _keep_error(cut=False)
    assert left == {"tests.unit.support.test_memory_growth._keep_error (running)": 1}
    with leftovers_of("tests") as left:
        _keep_error(cut=True)
    assert not left
