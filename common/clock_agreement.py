"""Whether the wall clock agrees with the time that the kernel counts since boot. Pure.

A wall clock is set: by a person, by a time service, by a battery that ran out. CLOCK_BOOTTIME is not: it counts the
seconds since boot, suspended ones too, and runs at the wall clock's own pace. So the wall clock of one reading plus the
seconds counted since then is what the wall clock should show now. `judge_clock` compares the two; `next_record` keeps
the reading that is counted from.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from pydantic import FiniteFloat

TOLERANCE_S: Final = 60.0
"""Seconds by which the wall clock may differ from the count, and still agrees: what a time service corrects."""
ANCHOR_S: Final = 86_400.0
"""Seconds after which an agreeing reading becomes the one that is counted from, so that small corrections do not add up
to a disagreement. A clock can thus be wrong unnoticed by `TOLERANCE_S` a day."""
RESTART_S: Final = 900.0
"""Seconds that a restart of the host may take from the last check to the kernel's start. Nothing counts them."""
HOLD_S: Final = 86_400.0
"""Seconds of checks after which a wall clock that disagrees by the same all the time is believed."""
LONGEST_STEP_S: Final = 120.0
"""Most seconds that one check adds to a hold. What is above it is a suspended host or a program that did not run, where
no operator could look at the hold."""


class ClockReading(NamedTuple):
    """A reading of the wall clock and of the time since boot, taken together."""

    wall: float
    """Unix time in seconds, by the wall clock."""
    uptime: float
    """Seconds since boot, with those of suspends."""
    boot: str
    """Identifies the boot that `uptime` counts from."""


@dataclass(frozen=True, slots=True)
class ClockHold:
    """A hold: the wall clock disagrees with the count since boot, so nothing is deleted by it."""

    ahead_s: FiniteFloat
    """Seconds by which the wall clock was ahead of the count when the hold began; below 0: behind."""
    passed_s: FiniteFloat
    """Seconds of checks since then."""


@dataclass(frozen=True, slots=True)
class ClockRecord:
    """The anchor that is counted from, and the result of the last check. A program keeps one on disk over restarts."""

    wall: FiniteFloat
    """Unix time in seconds of the anchor: the moment that is counted from."""
    uptime: FiniteFloat
    """Seconds since boot at the anchor."""
    boot: str
    """The boot that `uptime` counts from."""
    slack_s: FiniteFloat
    """Seconds by which the wall clock may be ahead of the count beyond `TOLERANCE_S`: `RESTART_S` where the anchor is
    the last check before the host was started again, else 0."""
    checked_at: FiniteFloat
    """Unix time in seconds of the last check: by the wall clock if it agreed, else by the count."""
    checked_uptime: FiniteFloat
    """Seconds since boot at the last check."""
    hold: ClockHold | None
    """None: the wall clock agreed at the last check."""
    schema_version: int = 1
    """Version of this form."""


class ClockVerdict(NamedTuple):
    """How a wall clock compares with the count: the time by the count, how far the clock is ahead, whether they
    agree."""

    counted: float
    """Unix time in seconds by the count from the anchor. After a restart of the host, the least that it can be."""
    ahead_s: float
    """Seconds by which the wall clock is ahead of `counted`; below 0: behind."""
    agrees: bool


def trust_reading(reading: ClockReading) -> ClockRecord:
    """Return a record that believes the reading's wall clock: the reading is the anchor, and there is no hold."""
    wall, uptime, boot = reading
    return ClockRecord(wall, uptime, boot, slack_s=0.0, checked_at=wall, checked_uptime=uptime, hold=None)


def judge_clock(record: ClockRecord, reading: ClockReading) -> ClockVerdict:
    """Compare a reading's wall clock with the count: the wall clock at the anchor plus the seconds since then."""
    record = _anchor_in_boot(record, reading)
    counted = record.wall + reading.uptime - record.uptime
    ahead_s = reading.wall - counted
    return ClockVerdict(counted, ahead_s, agrees=-TOLERANCE_S <= ahead_s <= TOLERANCE_S + record.slack_s)


def next_record(record: ClockRecord, reading: ClockReading) -> ClockRecord:
    """Return the record after a check, which the caller keeps for the next one. A reading that agrees ends a hold.

    A reading that disagrees begins a hold, or prolongs the hold that began with the same difference (to `TOLERANCE_S`).
    After `HOLD_S` seconds of checks within one hold, the reading's wall clock is believed.
    """
    verdict = judge_clock(record, reading)
    record = _anchor_in_boot(record, reading)
    if verdict.agrees:
        if record.slack_s or reading.uptime - record.uptime >= ANCHOR_S:
            return trust_reading(reading)
        return replace(record, checked_at=reading.wall, checked_uptime=reading.uptime, hold=None)
    hold = record.hold
    if hold is None or abs(verdict.ahead_s - hold.ahead_s) > TOLERANCE_S:
        hold = ClockHold(verdict.ahead_s, 0.0)
    else:
        step_s = min(max(0.0, reading.uptime - record.checked_uptime), LONGEST_STEP_S)
        hold = ClockHold(hold.ahead_s, hold.passed_s + step_s)
    if hold.passed_s >= HOLD_S:
        return trust_reading(reading)
    return replace(record, checked_at=verdict.counted, checked_uptime=reading.uptime, hold=hold)


def _anchor_in_boot(record: ClockRecord, reading: ClockReading) -> ClockRecord:
    """Return the record with its anchor in the reading's boot. If the host was started after the last check, the boot
    was no earlier than that check."""
    if record.boot == reading.boot:
        return record
    return replace(
        record,
        wall=record.checked_at,
        uptime=0.0,
        boot=reading.boot,
        slack_s=RESTART_S,
        checked_uptime=reading.uptime,
    )


def describe_hold(verdict: ClockVerdict, passed_s: float) -> str:
    """Return sentences for operators about a wall clock that does not agree. `passed_s`: seconds of the hold so far."""
    side = "ahead of" if verdict.ahead_s > 0 else "behind"
    return (
        f"The wall clock is {_span_words(abs(verdict.ahead_s))} {side} the time counted since it was last believed. "
        "Nothing is deleted as expired by it until it comes back or is confirmed, for another "
        f"{_span_words(HOLD_S - passed_s)} at most."
    )


def _span_words(seconds: float) -> str:
    """Return a span in its two largest units: `40 d 2 h`, `3 h 0 min`, `12 min 5 s`."""
    whole = max(0, round(seconds))
    for unit, size, smaller, smaller_size in (("d", 86_400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if whole >= size:
            return f"{whole // size} {unit} {whole % size // smaller_size} {smaller}"
    return f"{whole} s"
