"""The clock of one program: its record outlives the program, and what it says is said once."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from pathlib import Path

import pytest

from common.clock_agreement import ClockReading
from common.trusted_clock import TrustedClock, clock_reader

DAY = 86_400.0


@dataclass
class Clocks:
    """Clocks that a test moves."""

    now: float = 1_800_000_000.0
    ahead_s: float = 0.0
    boot: str = "first"
    booted_at: float = 1_700_000_000.0

    def __call__(self) -> ClockReading:
        return ClockReading(self.now + self.ahead_s, self.now - self.booted_at, self.boot)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "clock.json"


def checked(path: Path, clocks: Clocks) -> TrustedClock:
    """A program that starts and checks once."""
    clock = TrustedClock(path, clocks)
    clock.check()
    return clock


def test_a_jump_is_noticed_by_who_runs_and_by_who_starts_after_it(path: Path) -> None:
    clocks = Clocks()
    clock = checked(path, clocks)
    assert (clock.read_earliest(), clock.read_latest(), clock.describe_hold()) == (clocks.now, clocks.now, None)
    clocks.ahead_s = 40 * DAY
    for each in (clock, TrustedClock(path, clocks), checked(path, clocks)):
        assert (each.read_earliest(), each.read_latest()) == (clocks.now, clocks.now + 40 * DAY)
        assert "40 d 0 h ahead" in str(each.describe_hold())
    clocks.ahead_s = -3600
    assert (clock.read_earliest(), clock.read_latest()) == (clocks.now - 3600, clocks.now)
    clocks.ahead_s = 0
    assert clock.describe_hold() is None
    assert checked(path, clocks).read_earliest() == clocks.now


def test_a_hold_is_logged_when_it_begins_and_when_it_ends(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    clocks = Clocks()
    clock = checked(path, clocks)
    clocks.ahead_s = -3600
    for _ in range(3):
        clocks.now += 10
        clock.check()
    assert [record.message.partition(" the time")[0] for record in caplog.records] == [
        "The wall clock is 1 h 0 min behind"
    ]
    checked(path, clocks)  # a restart: not again
    assert len(caplog.records) == 1
    clocks.ahead_s = 0
    clock.check()
    clock.check()
    assert [record.message for record in caplog.records[1:]] == ["the wall clock came back"]


def test_an_operator_confirms_for_the_next_program_too(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    clocks = Clocks()
    clock = checked(path, clocks)
    assert not clock.confirm()
    assert not caplog.records
    clocks.ahead_s = 40 * DAY
    clock.check()
    assert clock.confirm()
    assert not clock.confirm()
    for each in (clock, TrustedClock(path, clocks)):
        assert (each.read_earliest(), each.describe_hold()) == (clocks.now + 40 * DAY, None)
    assert [record.message for record in caplog.records[1:]] == ["the wall clock was confirmed by an operator"]


def test_the_time_of_a_hold_goes_on_after_a_restart(path: Path) -> None:
    clocks = Clocks()
    checked(path, clocks)
    clocks.ahead_s = 40 * DAY
    clock = checked(path, clocks)
    for _ in range(60):
        clocks.now += 60
        clock.check()
    assert "another 23 h 0 min" in str(checked(path, clocks).describe_hold())


def test_a_restart_of_the_host_counts_from_the_last_check(path: Path) -> None:
    clocks = Clocks()
    clock = checked(path, clocks)
    for _ in range(30):
        clocks.now += 10
        clock.check()
    next_boot = Clocks(clocks.now + 730, 0, "second", clocks.now + 700)
    assert TrustedClock(path, next_boot).describe_hold() is None
    next_boot.ahead_s = 40 * DAY
    assert TrustedClock(path, next_boot).describe_hold() is not None


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"[]", b"\xff", b'{"wall": NaN, "uptime": 0, "boot": "", "slack_s": 0}', None]
)
def test_an_unreadable_record_is_no_first_start(
    path: Path, content: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    clocks = Clocks()
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content)
    clock = checked(path, clocks)
    assert clock.read_earliest() < 1_000_000_000
    assert clock.read_latest() == clocks.now
    assert "cannot be read, so the wall clock is not believed at once" in caplog.records[0].message
    clock.confirm()
    assert clock.read_earliest() == clocks.now


def test_an_unwritable_record_is_told_once_and_tried_again(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clocks, is_full = Clocks(), True

    def write(path: Path, content: bytes) -> None:
        if is_full:
            raise OSError(28, "No space left on device")
        path.write_bytes(content)

    monkeypatch.setattr("common.trusted_clock.write_atomic", write)
    clock = checked(path, clocks)
    clock.check()
    assert len(caplog.records) == 1
    assert "No space left" in caplog.records[0].message
    is_full = False
    clock.check()
    assert path.exists()


def test_without_a_state_folder_nothing_is_written_or_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    clock = checked(tmp_path / "none" / "clock.json", Clocks())
    assert clock.describe_hold() is None
    assert not caplog.records
    assert list(tmp_path.iterdir()) == []


async def test_the_task_of_a_program_checks_by_itself(path: Path) -> None:
    task = asyncio.create_task(TrustedClock(path, Clocks()).run())
    async with asyncio.timeout(10):
        while not path.exists():  # noqa: ASYNC110 - a thread writes it
            await asyncio.sleep(0.01)
    task.cancel()


async def test_nothing_is_written_after_the_task_has_ended(path: Path) -> None:
    clocks, is_read, may_go_on = Clocks(), threading.Event(), threading.Event()
    clock = TrustedClock(path, clocks)

    def check() -> None:
        is_read.set()
        may_go_on.wait(10)
        TrustedClock.check(clock)

    setattr(clock, "check", check)  # noqa: B010 - a disk that is slow
    task = asyncio.create_task(clock.run())
    await asyncio.to_thread(is_read.wait, 10)
    task.cancel()
    await asyncio.sleep(0.05)
    assert not task.done()
    may_go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert path.exists()


def test_a_host_that_names_no_boot_counts_from_the_start_of_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    first, again = clock_reader()(), clock_reader()()
    assert first.boot == again.boot
    assert first.uptime <= again.uptime
    monkeypatch.setattr("common.processes.PROC", Path("/nowhere"))
    first, other = clock_reader()(), clock_reader()()
    assert first.boot != other.boot
    assert 0 <= first.uptime < 60
