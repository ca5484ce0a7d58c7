"""What is told of a piece of work's cycles."""

from __future__ import annotations

import gc

from common.tracebacks import without_tracebacks
from tests.support.leftovers import leftovers_of


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
    assert left == {"tests.unit.support.test_leftovers._Ring": 1}
    assert gc.isenabled()
    assert not gc.garbage


def test_an_error_that_a_frame_keeps_is_a_cycle_unless_its_traceback_is_cut() -> None:
    with leftovers_of("tests") as left:
        _keep_error(cut=False)
    assert left == {"tests.unit.support.test_leftovers._keep_error (running)": 1}
    with leftovers_of("tests") as left:
        _keep_error(cut=True)
    assert not left
