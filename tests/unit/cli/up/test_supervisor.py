"""Keeping processes running, with tiny scripts as children."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import Process
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from cli.output import ExitCode
from cli.up.supervisor import (
    FIRST_DELAY_S,
    MAX_DELAY_S,
    ChildSpec,
    Ending,
    FatalExit,
    Supervisor,
    count_failures,
    ending_words,
    restart_delay_s,
)
from tests.support.stand_in_up import runs
from tests.support.wait import until

pytestmark = pytest.mark.slow

FOREVER = "import signal; signal.pause()"
FATAL = {
    3: FatalExit(ExitCode.ADDRESS_TAKEN, "its address is taken"),
    5: FatalExit(ExitCode.FAILED, "not yet"),
}


def spec(name: str, script: str = FOREVER) -> ChildSpec:
    return ChildSpec(name, (sys.executable, "-c", script), os.environ, FATAL)


class Watched:
    """A supervisor with what it said."""

    def __init__(self, *specs: ChildSpec) -> None:
        self.lines: list[str] = []
        self.pids: Mapping[str, int] = {}
        self.told = asyncio.Event()
        self.supervisor = Supervisor(specs, say=self.lines.append, on_change=self._changed)
        self.running = asyncio.create_task(self.supervisor.run(self.told))

    def _changed(self, pids: Mapping[str, int]) -> None:
        self.pids = dict(pids)

    async def end(self) -> Ending:
        """Tell it to end, kill what still runs, wait for all; why it ended."""
        self.told.set()
        ending = await self.running
        for child in self.supervisor.children.values():
            child.kill()
        await self.supervisor.wait_until_ended()
        return ending


async def test_all_run_until_told_each_in_a_session_of_its_own() -> None:
    watched = Watched(spec("a"), spec("b"))
    await until("both run", lambda: len(watched.pids) == 2)
    for pid in watched.pids.values():
        assert os.getsid(pid) == pid
    assert await watched.end() == Ending(ExitCode.DONE)
    for pid in watched.pids.values():
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


async def test_a_child_that_was_killed_is_started_again_and_the_other_is_left_alone() -> None:
    watched = Watched(spec("a"), spec("b"))
    await until("both run", lambda: len(watched.pids) == 2)
    before = watched.pids
    os.kill(before["a"], signal.SIGKILL)
    await until("a runs again", lambda: watched.pids.get("a") not in (None, before["a"]))
    assert watched.pids["b"] == before["b"]
    assert watched.lines == [f"the a was ended by SIGKILL; it is started again in {FIRST_DELAY_S:g} s"]
    await watched.end()


async def test_a_child_that_ends_at_once_is_told_with_its_exit_code() -> None:
    watched = Watched(spec("a", "import sys; sys.exit(1)"), spec("b"))
    await until("it was started again", lambda: len(watched.lines) >= 2)
    assert watched.lines[:2] == [
        "the a ended with exit code 1; it is started again in 0.5 s",
        "the a ended with exit code 1; it is started again in 1 s",
    ]
    await watched.end()


async def test_a_fatal_exit_code_of_the_first_start_ends_everything() -> None:
    watched = Watched(spec("a", "import sys; sys.exit(3)"), spec("b"))
    assert await watched.running == Ending(ExitCode.ADDRESS_TAKEN, "the a ended: its address is taken")
    assert watched.lines == []
    await watched.end()


async def test_an_exit_that_is_fatal_at_first_passes_later(tmp_path: Path) -> None:
    # The first run is killed, the second ends with 5, the third stays.
    script = (
        f"import pathlib, signal, sys\nseen = pathlib.Path({str(tmp_path / 'runs')!r})\n"
        "runs = len(seen.read_text()) if seen.exists() else 0\nseen.write_text('x' * (runs + 1))\n"
        "sys.exit(5) if runs == 1 else signal.pause()"
    )
    runs = tmp_path / "runs"
    watched = Watched(spec("a", script))
    # The file exists before its first letter does.
    await until("it ran", lambda: runs.exists() and runs.read_text() == "x")
    os.kill(watched.pids["a"], signal.SIGKILL)
    await until("it ran three times", lambda: runs.read_text() == "xxx")
    assert "the a ended with exit code 5; it is started again in 1 s" in watched.lines
    await watched.end()


async def test_a_side_program_that_can_never_run_is_told_once_and_the_others_go_on() -> None:
    ends = {4: FatalExit(ExitCode.LOCKED, "another has it")}
    child = replace(spec("side", "import sys; sys.exit(4)"), fatal=ends, dies_alone=True)
    watched = Watched(child, spec("a"))
    await until("it is told", lambda: watched.lines)
    assert watched.lines == ["the side program is not started again: another has it"]
    assert await watched.end() == Ending(ExitCode.DONE)
    assert len(watched.lines) == 1


async def test_a_replacement_that_is_being_started_when_everything_ends_does_not_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    serves = f"import os, signal\nos.write(int(os.environ['LISTEN_FDS']) + 2, b'1')\n{FOREVER}"
    watched = Watched(spec("a", f"import os\nif 'LISTEN_FDS' not in os.environ:\n    {FOREVER}\n{serves}"))
    await until("it runs", lambda: "a" in watched.pids)
    child = watched.supervisor.children["a"]
    start, is_started, may_be_known = child._start, asyncio.Event(), asyncio.Event()

    async def start_slowly(*files: tuple[str, int]) -> Process:
        process = await start(*files)
        is_started.set()
        await may_be_known.wait()
        return process

    monkeypatch.setattr(child, "_start", start_slowly)
    watched.supervisor.replace_child("a", 60)
    await asyncio.wait_for(is_started.wait(), 60)
    watched.told.set()
    assert await watched.running == Ending(ExitCode.DONE)
    child.send_signal(signal.SIGTERM)
    assert await child.ends_within(60)
    may_be_known.set()
    try:
        await asyncio.wait_for(watched.supervisor.wait_until_ended(), 60)
    finally:
        child.kill()
    assert watched.lines == []


async def test_a_child_that_was_told_to_end_by_others_ends_everything() -> None:
    watched = Watched(spec("a", "pass"), spec("b"))
    assert await watched.running == Ending(ExitCode.DONE, "the a was told to end")
    await watched.end()


async def test_a_program_that_cannot_be_started_is_told() -> None:
    watched = Watched(ChildSpec("a", ("/nonexistent/program",), {}, {}))
    await until("it was tried", lambda: watched.lines)
    assert watched.lines[0] == "the a cannot be started: No such file or directory"
    assert await watched.end() == Ending(ExitCode.DONE)


async def test_killing_takes_the_childs_own_children_along(tmp_path: Path) -> None:
    script = (
        "import pathlib, signal, subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import signal; signal.pause()'])\n"
        f"pathlib.Path({str(tmp_path / 'pid')!r}).write_text(f'{{child.pid}}\\n')\nsignal.pause()"
    )
    watched = Watched(spec("a", script))
    await until("it has a child", lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().endswith("\n"))
    grandchild = int((tmp_path / "pid").read_text())
    await watched.end()
    await until("the grandchild is gone", lambda: not runs(grandchild))


def test_delays_double_up_to_a_bound_and_begin_anew_after_ten_seconds() -> None:
    assert [restart_delay_s(failures) for failures in (1, 2, 3)] == [0.5, 1.0, 2.0]
    assert restart_delay_s(1_000_000) == MAX_DELAY_S
    assert [count_failures(failures, 9.9) for failures in (0, 4)] == [1, 5]
    assert [count_failures(failures, 10.0) for failures in (0, 4)] == [1, 1]


def test_programs_and_endings_in_words() -> None:
    assert spec("gateway").title == "the gateway"
    assert replace(spec("transfers"), dies_alone=True).title == "the transfers program"
    endings = {1: "ended with exit code 1", -9: "was ended by SIGKILL", -99: "was ended by signal 99"}
    assert {code: ending_words(code) for code in endings} == endings
