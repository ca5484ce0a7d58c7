"""Engines' logs: tails, bounds, locks, and those that are kept of removed replicas."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from controller.runtimes.base import RuntimeUnavailableError
from controller.runtimes.logs import KEPT_LOGS, TAIL_BYTES, EndedLogs, find_highest_attempt, plain_tail
from controller.runtimes.process.logs import ProcessLogs
from tests.support.small_disk import no_space

NAME = "rh-a-m-0-12345678-1"


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", ""),
        (b"one\ntwo\n", "one\ntwo"),
        (b"one\n\n\ntwo\n\n", "one\n\n\ntwo"),
        (b"\x1b[1;31mred\x1b[0m \x1b]0;title\x07and \x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\\n", "red and link"),
        (b"10%\r20%\r100%\r\nnext\r\n", "100%\nnext"),
        (b"10%\r20%\r", "20%"),
        (b"a\x00b\x08c\ttab\n", "abc\ttab"),
        ("größer\n".encode(), "größer"),
        (b"\xff\xfe bad\n", "\ufffd\ufffd bad"),
    ],
)
def test_a_tail_is_plain_text(data: bytes, text: str) -> None:
    assert plain_tail(data) == text


def test_a_tail_has_at_most_so_many_lines_and_bytes() -> None:
    data = b"".join(b"line %d\n" % number for number in range(1000))
    assert plain_tail(data).splitlines() == [f"line {number}" for number in range(950, 1000)]
    assert plain_tail(data, 3) == "line 997\nline 998\nline 999"
    long = plain_tail("ü".encode() * 100_000)
    assert set(long) == {"ü"}
    assert TAIL_BYTES - 1 <= len(long.encode()) <= TAIL_BYTES


def test_a_log_within_its_bound_is_left_alone(tmp_path: Path) -> None:
    logs = ProcessLogs(tmp_path, 1000)
    logs.log_path(NAME).write_bytes(b"x" * 1000)
    logs.bound_log(NAME)
    assert logs.log_path(NAME).stat().st_size == 1000
    logs.bound_log("rh-a-none-0-12345678-1")
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == [f"{NAME}.log"]


def test_a_log_that_is_deleted_while_its_cut_waits_stays_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logs = ProcessLogs(tmp_path, 1000)
    logs.log_path(NAME).write_bytes(b"x" * 2000)

    class Deletes:
        def __enter__(self) -> None:
            logs.log_path(NAME).unlink()

        def __exit__(self, *_: object) -> None: ...

    monkeypatch.setattr(logs, "_cut_lock", Deletes())
    logs.bound_log(NAME)
    assert [path for path in tmp_path.iterdir() if path.is_file()] == []


def test_a_long_log_keeps_whole_lines_at_its_end(tmp_path: Path) -> None:
    logs = ProcessLogs(tmp_path, 1000)
    lines = [b"line %04d\n" % number for number in range(200)]
    fd = logs.open_log(NAME)
    os.write(fd, b"".join(lines))
    logs.bound_log(NAME)
    os.write(fd, b"after\n")
    os.close(fd)
    assert logs.log_path(NAME).read_bytes() == b"after\n"
    assert logs.log_path(NAME).with_suffix(".log.1").read_bytes() == b"".join(lines[-49:])
    assert logs.read_tail(NAME, 2) == "line 0199\nafter"


@pytest.mark.parametrize("missed_lines", [50_000, 200_000])
def test_a_follower_who_is_far_behind_at_a_cut_misses_no_line_that_is_kept(tmp_path: Path, missed_lines: int) -> None:
    logs = ProcessLogs(tmp_path, 2_000_000)
    fd = logs.open_log(NAME)
    os.write(fd, b"early line\n" * 150_000)
    part = logs.read_after(NAME, None, 1, has_ended=False)
    lines = [f"line {number:06d}" for number in range(missed_lines)]
    os.write(fd, "".join(f"{line}\n" for line in lines).encode())
    logs.bound_log(NAME)
    os.write(fd, b"after\n")
    os.close(fd)
    seen: list[str] = []
    while "after" not in seen:
        assert part is not None
        part = logs.read_after(NAME, part.cursor, 1, has_ended=False)
        seen += part.lines if part is not None else ()
    kept = logs.log_path(NAME).with_suffix(".log.1").read_text().splitlines()
    assert seen == [*(line for line in kept if line != "early line"), "after"]


def files_below(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_an_ended_replica_leaves_one_bounded_file_if_it_wrote(tmp_path: Path) -> None:
    logs = ProcessLogs(tmp_path, 10**6)
    os.close(logs.open_log(NAME))
    logs.retire_log(NAME)
    assert files_below(tmp_path) == []
    logs.log_path(NAME).write_bytes(b"".join(b"line %06d\n" % number for number in range(10_000)))
    for _ in range(2):
        logs.retire_log(NAME)
        assert logs.read_tail(NAME, 1) == "line 009999"
    [kept] = files_below(tmp_path)
    assert kept == tmp_path / "ended" / f"{NAME}.log"
    assert kept.stat().st_size <= 64 * 1024


def test_the_oldest_ended_logs_go_first(tmp_path: Path) -> None:
    logs = ProcessLogs(tmp_path, 1000)
    names = [f"rh-a-m-0-12345678-{attempt}" for attempt in range(1, KEPT_LOGS + 6)]
    for age, name in enumerate(names):
        logs.log_path(name).write_text(name)
        logs.retire_log(name)
        os.utime(tmp_path / "ended" / f"{name}.log", (1_000_000 + age, 1_000_000 + age))
    assert {path.stem for path in (tmp_path / "ended").iterdir()} == set(names[-KEPT_LOGS:])
    assert logs.read_tail(names[0]) == ""


def test_an_old_log_that_cannot_be_deleted_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    logs = EndedLogs(tmp_path)
    for attempt in range(2, KEPT_LOGS + 2):
        logs.save_log(f"rh-a-m-0-12345678-{attempt}", b"x")

    def refuse(path: Path, missing_ok: bool = False) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(Path, "unlink", refuse)
    logs.save_log(NAME, b"newest")
    assert logs.read_log(NAME) == b"newest"
    assert "Operation not permitted" in caplog.text


def test_the_highest_attempt_of_kept_logs_is_known(tmp_path: Path) -> None:
    here, there = (EndedLogs(tmp_path / folder / "logs" / "ended") for folder in ("", "hosts/a"))
    assert find_highest_attempt(tmp_path) == 0
    for name in ("rh-a-m-0-12345678-9", "rh-a-m-0-87654321-10", "rh-a-other-1-12345678-3"):
        here.save_log(name, b"x")
    (tmp_path / "logs" / "ended" / "notes.log").write_text("of somebody else")
    assert find_highest_attempt(tmp_path) == 10
    there.save_log("rh-a-m-0-12345678-11", b"x")
    assert find_highest_attempt(tmp_path) == 11, "the hosts' numbers are the same row"


def test_a_log_shows_whether_somebody_still_writes_to_it(tmp_path: Path) -> None:
    logs = ProcessLogs(tmp_path, 1000)
    assert not logs.is_written_to(NAME)
    fd = logs.open_log(NAME)
    inherited = os.dup(fd)
    os.close(fd)
    assert logs.is_written_to(NAME)
    open_files = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(BlockingIOError):
        logs.open_log(NAME)
    assert len(list(Path("/proc/self/fd").iterdir())) == open_files
    os.close(inherited)
    assert not logs.is_written_to(NAME)


def test_a_full_disk_loses_lines_and_nothing_else(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    logs = ProcessLogs(tmp_path, 1000)
    logs.log_path(NAME).write_bytes(b"x\n" * 1000)
    with no_space():
        logs.bound_log(NAME)
        assert logs.log_path(NAME).stat().st_size == 0
    logs.log_path(NAME).write_bytes(b"x\n")
    with no_space():
        logs.retire_log(NAME)
    assert files_below(tmp_path) == []
    assert "log lines are lost" in caplog.text


def test_a_kept_log_that_cannot_be_read_is_no_error_of_the_system(tmp_path: Path) -> None:
    logs = EndedLogs(tmp_path)
    assert logs.read_log("rh-a-m-0") is None
    logs.log_path("rh-a-m-0").mkdir()
    with pytest.raises(RuntimeUnavailableError, match="the kept log of rh-a-m-0 cannot be read: Is a directory"):
        logs.read_log("rh-a-m-0")


def test_logs_of_a_clock_that_was_ahead_do_not_displace_newer_ones(tmp_path: Path) -> None:
    logs, ahead = EndedLogs(tmp_path), time.time() + 40 * 86_400
    for number in range(KEPT_LOGS):
        logs.save_log(f"rh-a-m-0-{number}", b"ahead\n")
        os.utime(logs.log_path(f"rh-a-m-0-{number}"), (ahead, ahead))
    for number in range(KEPT_LOGS, KEPT_LOGS + 3):
        logs.save_log(f"rh-a-m-0-{number}", b"right\n")
    assert len(list(tmp_path.iterdir())) == KEPT_LOGS
    assert [logs.read_log(f"rh-a-m-0-{number}") for number in range(KEPT_LOGS, KEPT_LOGS + 3)] == [b"right\n"] * 3
