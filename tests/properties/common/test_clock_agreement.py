"""A wall clock that jumps and comes back deletes nothing early; an honest one holds nothing."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from common.clock_agreement import (
    HOLD_S,
    LONGEST_STEP_S,
    RESTART_S,
    TOLERANCE_S,
    ClockReading,
    ClockRecord,
    describe_hold,
    judge_clock,
    next_record,
    trust_reading,
)

HOUR, DAY = 3600.0, 86_400.0
BEGUN = 1_800_000_000.0


@dataclass
class Host:
    """A host and a program on it that checks its clock as it runs. `true` is the time that nobody can read."""

    true: float = BEGUN
    offset: float = 0.0
    booted_at: float = BEGUN - 5 * DAY
    boots: int = 0
    off_s: float = 0.0
    record: ClockRecord = field(init=False)
    stored: list[tuple[float, float]] = field(default_factory=list)
    """True time and stamp of each object."""

    def __post_init__(self) -> None:
        self.record = trust_reading(self.read())

    def read(self) -> ClockReading:
        return ClockReading(self.true + self.offset, self.true - self.booted_at, f"boot-{self.boots}")

    @property
    def bounds(self) -> tuple[float, float]:
        """What `TrustedClock.read_earliest` and `read_latest` return."""
        reading = self.read()
        verdict = judge_clock(self.record, reading)
        both = (reading.wall, reading.wall if verdict.agrees else verdict.counted)
        return min(both), max(both)

    def is_held(self) -> bool:
        return self.record.hold is not None

    def check(self) -> None:
        self.look()
        self.record = next_record(self.record, self.read())
        self.look()

    def look(self) -> None:
        """Nothing seems older than it is, but for what is tolerated and what the host was off, which nobody counts."""
        earliest = self.bounds[0]
        allowed = self.off_s + TOLERANCE_S * (2 + (self.true - BEGUN) / DAY)
        for made_at, stamp in self.stored:
            assert earliest - stamp <= self.true - made_at + allowed

    def store(self) -> None:
        self.stored.append((self.true, self.bounds[1]))

    def run(self, seconds: float) -> None:
        """The program runs, checks and stores."""
        for _ in range(5):
            self.true += seconds / 5
            self.check()
            self.store()

    def rest(self, seconds: float) -> None:
        self.true += seconds
        self.check()

    def reboot(self, off_s: float) -> None:
        self.true += off_s
        self.off_s += off_s
        self.boots += 1
        self.booted_at = self.true
        self.true += 30
        self.check()


SPANS = st.sampled_from((20.0, 300.0, HOUR, 5 * HOUR))
STEPS = st.one_of(
    st.tuples(st.just("run"), SPANS),
    st.tuples(st.just("rest"), st.one_of(SPANS, st.just(10 * DAY))),
    st.tuples(st.just("reboot"), st.sampled_from((5.0, 90.0, 600.0))),
)
OFFSETS = st.sampled_from((40 * DAY, 2 * HOUR, -HOUR, -30 * DAY, 20.0, -20.0))
"""Of a wrong clock: above what a restart of the host hides, or within the tolerance."""


def take(host: Host, step: tuple[str, float]) -> None:
    getattr(host, step[0])(step[1])


@given(
    st.lists(
        st.tuples(
            st.lists(st.one_of(STEPS, st.tuples(st.just("reboot"), st.just(2 * DAY))), max_size=4),
            OFFSETS,
            st.lists(STEPS, max_size=4),
        ),
        max_size=5,
    )
)
@example([([("run", HOUR)], 40 * DAY, [("run", HOUR), ("rest", 20.0), ("reboot", 90.0)])])
@example([([("reboot", 2 * DAY), ("run", 5 * HOUR)], 40 * DAY, [("run", 5 * HOUR)] * 4)])
def test_a_clock_that_comes_back_has_deleted_nothing_early(
    episodes: list[tuple[list[tuple[str, float]], float, list[tuple[str, float]]]],
) -> None:
    host = Host()
    for before, offset, during in episodes:
        for step in before:
            take(host, step)
        host.offset = offset
        for step in during:
            take(host, step)
        host.offset = 0.0
        host.check()


@given(st.lists(STEPS, max_size=20))
def test_an_honest_clock_holds_nothing(steps: list[tuple[str, float]]) -> None:
    host = Host()
    for step in steps:
        take(host, step)
        assert host.bounds == (host.true, host.true)
        assert not host.is_held()


def held_for(host: Host, limit_s: float) -> float:
    """Let the program check every 10 s until the clock is believed; return the seconds that took."""
    began = host.true
    while host.bounds[0] != host.read().wall or host.is_held():
        host.true += 10
        host.check()
        assert host.true - began <= limit_s
    return host.true - began


@pytest.mark.parametrize("offset", [40 * DAY, -40 * DAY])
def test_a_clock_that_stays_wrong_is_believed_after_a_day_of_running(offset: float) -> None:
    host = Host()
    host.offset = offset
    host.check()
    host.rest(30 * DAY)  # the program did not run: nobody could see that it holds
    host.reboot(60)
    assert host.bounds[0] != host.read().wall or offset < 0
    assert HOLD_S - LONGEST_STEP_S <= held_for(host, HOLD_S + 60) <= HOLD_S + 60


def test_a_host_that_was_off_for_long_is_believed_after_a_day() -> None:
    host = Host()
    host.reboot(2 * DAY)
    assert host.is_held()
    assert host.bounds == (host.true - 2 * DAY, host.true)
    assert held_for(host, HOLD_S + 60) >= HOLD_S


def test_a_hold_is_for_one_difference_alone() -> None:
    host = Host()
    host.reboot(2 * DAY)
    for _ in range(700):  # most of a day
        host.true += LONGEST_STEP_S
        host.check()
    host.offset = 40 * DAY
    for _ in range(60):
        host.true += LONGEST_STEP_S
        host.check()
    assert host.bounds[0] < host.true


def test_a_clock_that_creeps_is_noticed_and_small_corrections_do_not_add_up() -> None:
    host = Host()
    for _ in range(10):
        host.true += 10
        host.offset += TOLERANCE_S / 3
        host.check()
    assert host.is_held()
    assert host.bounds[0] == host.true
    host = Host()
    for _ in range(10):
        host.run(DAY)
        host.offset += TOLERANCE_S / 2
        host.check()
        assert not host.is_held()


def test_a_host_without_a_battery_is_believed_as_soon_as_its_time_comes() -> None:
    host = Host()
    host.offset = -BEGUN
    host.reboot(120)
    assert host.is_held()
    assert host.bounds[1] >= BEGUN
    host.offset = 0.0
    host.check()
    assert not host.is_held()
    assert host.bounds == (host.true, host.true)


def test_a_restart_of_the_host_hides_no_more_than_a_restart_takes() -> None:
    host = Host()
    host.reboot(RESTART_S)
    assert not host.is_held()
    host.reboot(RESTART_S + 2 * TOLERANCE_S)
    assert host.is_held()


@pytest.mark.parametrize(
    ("ahead_s", "words"), [(40 * DAY, "40 d 0 h ahead of"), (-HOUR, "1 h 0 min behind"), (-61.4, "1 min 1 s behind")]
)
def test_a_hold_is_told_in_sentences(ahead_s: float, words: str) -> None:
    host = Host()
    host.offset = ahead_s
    told = describe_hold(judge_clock(host.record, host.read()), HOUR)
    assert f"The wall clock is {words} the time counted" in told
    assert "another 23 h 0 min at most" in told
