"""The time by which a program expires what it stores: no single reading of the wall clock deletes anything for good."""

from __future__ import annotations

import asyncio
import logging
import secrets
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from pydantic import TypeAdapter, ValidationError

from common.atomic_write import write_atomic
from common.clock_agreement import (
    ClockReading,
    ClockRecord,
    describe_hold,
    judge_clock,
    next_record,
    trust_reading,
)
from common.processes import read_boot_id

log = logging.getLogger(__name__)

CHECK_EVERY_S: Final = 10.0
"""Seconds between two checks."""
WRITE_EVERY_S: Final = 60.0
"""Seconds after which a check writes the record also if nothing else changed than the time."""
_RECORD: Final = TypeAdapter(ClockRecord)


def clock_reader() -> Callable[[], ClockReading]:
    """Return a function that reads both clocks. On a system that names no boot, the seconds since boot count from this
    call, and another call counts from another boot."""
    try:
        boot = read_boot_id()
        return lambda: ClockReading(time.time(), time.clock_gettime(time.CLOCK_BOOTTIME), boot)
    except (OSError, AttributeError):
        boot, began_at = secrets.token_hex(8), time.monotonic()
        return lambda: ClockReading(time.time(), time.monotonic() - began_at, boot)


class TrustedClock:
    """The wall clock of one program, compared with the time since boot, over restarts of the program and the host.

    While both agree, `read_earliest` and `read_latest` return the wall clock. While they do not, one is the earlier and
    one the later of the wall clock and the count since it was last believed: expire by `read_earliest`, and stamp by
    `read_latest` what is to expire later, and nothing expires before its time whichever of the two is wrong. Run `run`
    as a task. Safe for threads.
    """

    def __init__(self, path: Path, read: Callable[[], ClockReading] | None = None) -> None:
        """Read the record at `path`, which `check` writes. Blocks; raises nothing. Without a record, the first one of
        an installation, the wall clock is believed; where the record cannot be read, it is not. `read` None: the clocks
        of this host."""
        self._path = path
        self._read = read or clock_reader()
        self._record = self._load_record()
        self._lock = threading.Lock()
        """Held while the record is replaced and written."""
        self._written_at = -WRITE_EVERY_S
        """Seconds since boot at the last write."""
        self._is_failing = False

    def read_earliest(self) -> float:
        """Return the Unix time in seconds to compare expiry times with: the wall clock, or while it disagrees the
        earlier of wall clock and count. By it, nothing expires too early."""
        reading = self._read()
        verdict = judge_clock(self._record, reading)
        return reading.wall if verdict.agrees else min(reading.wall, verdict.counted)

    def read_latest(self) -> float:
        """Return the Unix time in seconds to compute expiry times from: the wall clock, or while it disagrees the later
        of wall clock and count."""
        reading = self._read()
        verdict = judge_clock(self._record, reading)
        return reading.wall if verdict.agrees else max(reading.wall, verdict.counted)

    def describe_hold(self) -> str | None:
        """Return why nothing is deleted by the wall clock, in sentences for operators; None: it agrees."""
        record = self._record
        verdict = judge_clock(record, self._read())
        return (
            None if verdict.agrees else describe_hold(verdict, record.hold.passed_s if record.hold is not None else 0.0)
        )

    def check(self) -> None:
        """Compare the clocks, and write the record if that is due. Blocks on the disk; a failed write is logged once.
        The begin and the end of a hold are logged."""
        with self._lock:
            reading = self._read()
            verdict = judge_clock(self._record, reading)
            before, self._record = self._record.hold, next_record(self._record, reading)
            hold = self._record.hold
            is_new = hold is not None and (before is None or before.ahead_s != hold.ahead_s)
            if is_new:
                log.warning("%s", describe_hold(verdict, 0.0))
            elif hold is None and before is not None:
                log.warning("the wall clock %s", "came back" if verdict.agrees else "is believed as it is")
            is_changed = is_new or (hold is None) != (before is None)
            if is_changed or reading.uptime - self._written_at >= WRITE_EVERY_S:
                self._write_record(reading.uptime)

    def confirm(self) -> bool:
        """Believe the wall clock as it is now. Return whether it disagreed before. Blocks on the disk, as `check`."""
        with self._lock:
            reading = self._read()
            is_held = not judge_clock(self._record, reading).agrees
            self._record = trust_reading(reading)
            self._write_record(reading.uptime)
        if is_held:
            log.warning("the wall clock was confirmed by an operator")
        return is_held

    async def run(self) -> None:
        """Check every `CHECK_EVERY_S` seconds, in a thread, until cancelled. Never returns.

        A check that has begun ends before the cancellation does, so that nothing is written afterwards.
        """
        while True:
            check = asyncio.create_task(asyncio.to_thread(self.check))
            try:
                await asyncio.shield(check)
            except asyncio.CancelledError:
                await asyncio.wait([check])
                raise
            await asyncio.sleep(CHECK_EVERY_S)

    def _load_record(self) -> ClockRecord:
        reading = self._read()
        try:
            return _RECORD.validate_json(self._path.read_bytes())
        except (FileNotFoundError, NotADirectoryError):
            return trust_reading(reading)
        except (OSError, ValidationError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is damaged"
            log.warning("%s cannot be read, so the wall clock is not believed at once: %s", self._path, reason)
            return trust_reading(ClockReading(0.0, 0.0, ""))

    def _write_record(self, uptime: float) -> None:
        if not self._path.parent.is_dir():  # of a gateway that stores nothing
            return
        try:
            write_atomic(self._path, _RECORD.dump_json(self._record))
        except OSError as error:
            if not self._is_failing:
                log.warning("%s cannot be written, so a restart may hold deletions: %s", self._path, error)
            self._is_failing = True
        else:
            self._written_at, self._is_failing = uptime, False
