"""Following a log: every line once, whatever is done to the file meanwhile."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.runtimes.base import is_replica_name, names_of, replica_name
from controller.runtimes.docker.containers import DockerLogCursor, parse_records
from controller.runtimes.logs import PART_BYTES, LogMark, last_lines, plain_lines, whole_lines
from controller.runtimes.process.logs import ProcessLogs
from controller.state import ReplicaId
from tests.support.campaign import campaign_count

NAME = "rh-a-m-0-12345678-1"
STEPS = {"line": "\n", "long line": " " * 300 + "\n", "half": " ", "cut": None, "read": None}
"""What is done to a log; a text is written. No line is longer than what a cut leaves."""


class Follower:
    """Reads a log as a client does: the last lines first, then what follows."""

    def __init__(self, logs: ProcessLogs, first: int = 50) -> None:
        self.logs = logs
        self.first = first
        self.cursor: str | None = None
        self.lines: list[str] = []
        self.running = True

    def read(self, *, ended: bool = False) -> list[str]:
        part = self.logs.read_after(NAME, self.cursor, self.first, has_ended=ended)
        assert part is not None
        self.cursor, self.running = part.cursor, part.running
        self.lines += part.lines
        return list(part.lines)

    def finish(self) -> None:
        while self.running:
            self.read(ended=True)


@pytest.fixture
def logs(tmp_path: Path) -> ProcessLogs:
    return ProcessLogs(tmp_path, 10_000)


@pytest.fixture
def engine(logs: ProcessLogs) -> Iterator[int]:
    fd = logs.open_log(NAME)
    yield fd
    os.close(fd)


def test_a_log_is_followed_in_whole_lines(logs: ProcessLogs, engine: int) -> None:
    os.write(engine, b"one\ntwo\nthr")
    follower = Follower(logs, first=1)
    behind = Follower(logs, first=0)
    assert (follower.read(), behind.read()) == (["two"], [])
    assert follower.read() == []
    os.write(engine, b"ee\n\nload 10%\rload 20%\r\n\x1b[31mred\x1b[0m\nrest")
    assert (follower.read(), follower.running) == (["three", "", "load 20%", "red"], True)
    assert behind.read() == ["three", "", "load 20%", "red"]
    assert (follower.read(ended=True), follower.running) == (["rest"], False)
    assert follower.read(ended=True) == []


def test_a_cut_repeats_and_loses_no_line(logs: ProcessLogs, engine: int) -> None:
    os.write(engine, b"".join(b"line %05d\n" % number for number in range(400)))
    follower = Follower(logs, first=2)
    assert follower.read() == ["line 00398", "line 00399"]
    os.write(engine, b"".join(b"line %05d\n" % number for number in range(400, 600)))
    os.write(engine, b"".join(b"line %05d\n" % number for number in range(600, 1000)))
    logs.bound_log(NAME)
    assert logs.log_path(NAME).stat().st_size == 0
    os.write(engine, b"after the cut\n")
    # More was written since than a cut leaves: what it leaves is given, and what follows.
    left = follower.read() + follower.read()
    assert left == [*(f"line {number:05}" for number in range(1000 - len(left) + 1, 1000)), "after the cut"]
    assert follower.read() == []


def test_a_cut_right_behind_the_follower_repeats_nothing(logs: ProcessLogs, engine: int) -> None:
    os.write(engine, b"".join(b"line %05d\n" % number for number in range(1000)))
    follower = Follower(logs, first=1)
    follower.read()
    os.write(engine, b"unseen\n")
    logs.bound_log(NAME)
    # As long as before: by its size alone, the file was never cut.
    os.write(engine, b"".join(b"next %05d\n" % number for number in range(1100)))
    follower.lines.clear()
    for _ in range(3):
        follower.read()
    assert follower.lines == ["unseen", *(f"next {number:05}" for number in range(1100))]


def test_an_end_goes_on_in_what_was_kept(logs: ProcessLogs, engine: int) -> None:
    os.write(engine, b"one\ntwo\n")
    follower = Follower(logs)
    assert follower.read() == ["one", "two"]
    os.write(engine, b"three\nlast words")
    logs.retire_log(NAME)
    assert follower.read() == ["three", "last words"]
    assert not follower.running
    assert follower.read() == []
    assert Follower(logs, first=1).read() == ["last words"]


def test_a_log_that_is_gone_altogether_ends_its_follower(logs: ProcessLogs, engine: int) -> None:
    os.write(engine, b"one\n")
    follower = Follower(logs)
    follower.read()
    logs.retire_log(NAME)
    logs.ended_logs.log_path(NAME).unlink()
    assert follower.read() == []
    assert not follower.running
    assert logs.read_after(NAME, None, 50, has_ended=True) is None


@pytest.mark.parametrize(
    "cursor", ["", "0", "x_y_z", "1_2_3", "1_2_9-zz-1-1", "1_2_1-1", "../..", f"0_{'9' * 30}_1-1-1-1", "٣_1_1-1-1-1"]
)
def test_a_cursor_that_is_none_begins_anew(logs: ProcessLogs, engine: int, cursor: str) -> None:
    os.write(engine, b"one\n")
    part = logs.read_after(NAME, cursor, 50, has_ended=False)
    assert part is not None
    assert part.lines == ("one",)


def test_parts_are_bounded_and_follow_one_another(tmp_path: Path) -> None:
    logs = ProcessLogs(tmp_path, 10 * PART_BYTES)
    lines = [f"{number:07} {'x' * 90}" for number in range(3 * PART_BYTES // 99)]
    logs.log_path(NAME).write_text("first\n")
    follower = Follower(logs)
    follower.read()
    with logs.log_path(NAME).open("a") as file:
        file.write("\n".join(lines))
    parts = []
    while follower.running:
        parts.append(follower.read(ended=True))
    assert len(parts) > 2
    assert all(sum(len(line) + 1 for line in part) <= PART_BYTES + 1 for part in parts)
    assert follower.lines == ["first", *lines]


def test_a_line_without_an_end_is_given_in_the_end(tmp_path: Path) -> None:
    logs = ProcessLogs(tmp_path, 10 * PART_BYTES)
    logs.log_path(NAME).write_bytes(b"a\n")
    follower = Follower(logs)
    follower.read()
    with logs.log_path(NAME).open("ab") as file:
        file.write(b"x" * (2 * PART_BYTES + 10))
    assert [len(line) for line in follower.read()] == [PART_BYTES]
    follower.finish()
    assert sum(len(line) for line in follower.lines) == 2 * PART_BYTES + 11


@settings(max_examples=campaign_count(40, 2_000))
@given(
    st.lists(st.sampled_from(sorted(STEPS)), min_size=30, max_size=80) | st.lists(st.sampled_from(sorted(STEPS))),
    st.booleans(),
)
def test_no_line_is_given_twice_nor_out_of_order(
    tmp_path_factory: pytest.TempPathFactory, steps: list[str], kept: bool
) -> None:
    logs = ProcessLogs(tmp_path_factory.mktemp("logs"), 1400)
    fd = logs.open_log(NAME)
    follower, number = Follower(logs, first=1000), 0
    for step in steps:
        if STEPS[step] is not None:
            number += 1
            os.write(fd, f"<{number}>{STEPS[step]}".encode())
        elif step == "cut":
            logs.bound_log(NAME)
        else:
            follower.read()
    os.close(fd)
    if kept:
        logs.retire_log(NAME)
    follower.running = True
    if number:
        follower.finish()
    seen = [int(each) for line in follower.lines for each in re.findall(r"<(\d+)>", line)]
    assert seen == sorted(set(seen))
    if "cut" not in steps:
        assert seen == list(range(1, number + 1))


def test_lines_of_a_text() -> None:
    assert [plain_lines(data) for data in (b"", b"\n")] == [[], [""]]
    assert plain_lines(b"a\r\nb\x1b[1m\n\nc") == ["a", "b", "", "c"]
    assert (last_lines(b"a\nb\n\n", 1), last_lines(b"a\n", 0)) == (("b",), ())
    assert whole_lines(b"a\nb", has_ended=False) == b"a\n"
    assert whole_lines(b"a\nb", has_ended=True) == b"a\nb"
    assert whole_lines(b"a\nbcd", has_ended=True, max_bytes=3) == b"a\n"
    assert whole_lines(b"abcd", has_ended=False, max_bytes=3) == b"abc"


def test_what_was_given_is_found_again() -> None:
    text = b"same\n" * 3 + b"one\ntwo\nthree\n"
    mark = LogMark().mark_after(b"same\n").mark_after(b"same\nsame\none\n")
    assert mark.rest_of(text) == b"two\nthree\n"
    assert LogMark.parse(str(mark)) == mark
    assert LogMark().rest_of(text) == text
    assert LogMark.of(b"elsewhere\n").rest_of(text) == text
    assert LogMark.of(text).rest_of(text) == b""
    assert LogMark.of(b"gone before\n" + text[:19]).rest_of(text) == text[19:], "it began earlier than the text does"
    alike = [b"%d%s\n" % (number, b" " * 300) for number in range(3)]
    assert LogMark.of(alike[0]).rest_of(b"".join(alike)) == b"".join(alike[1:])


def test_docker_s_records() -> None:
    def stamp(number: int) -> bytes:
        return b"2026-01-01T00:00:00.00000000%dZ " % number

    data = stamp(1) + b"one\n" + stamp(2) + b"two\n" + stamp(2) + b"three\n"
    records = parse_records(data)
    assert [each.data for each in records] == [b"one\n", b"two\n", b"three\n"]
    place = DockerLogCursor().cursor_after(records[:2])
    assert DockerLogCursor.parse(str(place)) == place
    assert [each.data for each in place.records_after(records)] == [b"three\n"]
    place = place.cursor_after(records[2:])
    assert place.records_after(records) == []
    more = parse_records(stamp(2) + b"four\n" + stamp(3) + b"five\n")
    assert [each.data for each in place.records_after([*records[1:], *more])] == [b"four\n", b"five\n"]
    since = place.filter_since()
    assert since is not None
    assert 1767225600 - 1 < since <= 1767225600.000000002


def test_docker_s_long_lines_are_put_together() -> None:
    stamp = b"2026-01-01T00:00:00.000000001Z "
    long = b"x" * 16_384
    (record,) = parse_records(stamp + long + stamp + long + stamp + b"end\n")
    assert record.data == long + long + b"end\n"


def test_a_replicas_name_is_read_back_and_no_other_is() -> None:
    ids = {name: ReplicaId(name, 3, "deadbeefcafe", 12) for name in ("m", "m-0", "a/b:c", "m-0-deadbeef")}
    for model, replica in ids.items():
        name = replica_name("a", replica)
        assert is_replica_name("a", name)
        assert not is_replica_name("b", name)
        assert [other for other in ids if names_of("a", other).fullmatch(name)] == [model]
    for bad in ("", "..", "rh-a-../../x", "rh-a-x/y", "rh-a-", "rh-a-x.log", "rh-a-X", "rh-a-x\n", f"rh-a-{'x' * 99}"):
        assert not is_replica_name("a", bad), bad
