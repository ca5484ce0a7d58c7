"""Which processes count as a replica's; with real ones. How they are ended is an integration test."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from controller.runtimes.process import groups
from controller.runtimes.process.groups import START_ENV, ReplicaMark, find_leader, group_members, send_signal
from controller.runtimes.process.stat import Process, read_stat


@pytest.fixture
def stranger() -> Iterator[Process]:
    """A process that leads a session and carries no mark."""
    with subprocess.Popen(["sleep", "600"], env={}, start_new_session=True) as child:
        stat = read_stat(child.pid)
        assert stat is not None
        yield stat.process
        child.kill()


def mark(folder: Path, leader: Process | None = None, start_id: str = "0123") -> ReplicaMark:
    return ReplicaMark(start_id, folder / "work", folder / "log", leader)


def test_a_stranger_is_no_member(stranger: Process, tmp_path: Path) -> None:
    assert group_members(mark(tmp_path)) == []
    earlier = Process(stranger.pid, stranger.start_ticks - 1)
    assert group_members(mark(tmp_path, earlier)) == []
    assert find_leader(mark(tmp_path, earlier)) is None


def test_the_leader_is_one(stranger: Process, tmp_path: Path) -> None:
    assert group_members(mark(tmp_path, stranger)) == [stranger]


def test_who_was_known_as_a_member_stays_one(stranger: Process, tmp_path: Path) -> None:
    earlier = Process(stranger.pid, stranger.start_ticks - 1)
    assert group_members(mark(tmp_path), {stranger, earlier}) == [stranger]


def test_the_start_id_is_compared_as_a_whole(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "600"], env={START_ENV: "01234", "X": f"{START_ENV}=0123"}) as child:
        stat = read_stat(child.pid)
        assert stat is not None
        assert group_members(mark(tmp_path)) == []
        assert group_members(mark(tmp_path, start_id="01234")) == [stat.process]
        assert find_leader(mark(tmp_path, start_id="01234")) is None, "it leads no session"
        child.kill()


def test_an_environment_that_is_empty_for_a_moment_is_read_again(
    stranger: Process, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / str(stranger.pid)
    folder.mkdir()
    (folder / "exe").symlink_to("/bin/sleep")
    (folder / "environ").touch()
    monkeypatch.setattr(groups, "PROC", tmp_path)
    assert group_members(mark(tmp_path)) == []
    text = f"A=1\0{START_ENV}=0123\0".encode()
    monkeypatch.setattr(time, "sleep", lambda seconds: (folder / "environ").write_bytes(text))
    assert group_members(mark(tmp_path)) == [stranger]


def test_a_signal_reaches_exactly_the_process_that_was_meant(stranger: Process) -> None:
    send_signal(Process(stranger.pid, stranger.start_ticks - 1), signal.SIGKILL)
    send_signal(Process(2**22 + 1, 1), signal.SIGKILL)
    assert os.waitpid(stranger.pid, os.WNOHANG) == (0, 0)
    send_signal(stranger, signal.SIGTERM)
    ended = os.waitid(os.P_PID, stranger.pid, os.WEXITED | os.WNOWAIT)
    assert ended is not None
    assert ended.si_status == signal.SIGTERM
    send_signal(stranger, signal.SIGKILL)
