"""`roundhouse down`, over a real controller and real engine processes (the stub backend)."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest

from cli.output import CommandError, ExitCode
from cli.up.run import stop_orphans
from cli.up.supervisor import ProcessRecord, UpRecord, write_record
from controller.runtimes.process.groups import read_stat
from controller.settings import load_settings
from controller.state_dir import StateDir
from tests.support.cli import Output, Roundhouse
from tests.support.roundhouse_stack import RoundhouseStack
from tests.support.runtime_fixtures import ProcessRuntimeFixture

pytestmark = pytest.mark.slow

NOTHING = (ExitCode.DONE, "nothing was running\n")


@pytest.fixture
async def stubs(folder: Path) -> AsyncIterator[RoundhouseStack]:
    """A controller with two stub engines, both loaded."""
    stack = RoundhouseStack(folder, "process")
    stack.declare({"a": {"backend": "stub"}, "b": {"backend": "stub"}})
    stack.start("controller")
    try:
        await stack.loaded("a", "b")
        yield stack
    finally:
        for pid in engine_pids(stack):
            os.killpg(pid, signal.SIGKILL)
        with suppress(KeyError):  # the test has ended it
            stack.kill("controller")


def engine_pids(stack: RoundhouseStack) -> list[int]:
    """Of every engine that the state folder knows and that runs."""
    pids = [json.loads(path.read_text())["pid"] for path in (stack.state / "replicas").glob("*.json")]
    return [pid for pid in pids if pid is not None and (stat := read_stat(pid)) is not None and not stat.has_ended]


async def down(stack: RoundhouseStack, roundhouse: Roundhouse, *arguments: str, runtime: str = "process") -> Output:
    options = ("--state", str(stack.state), "--runtime", runtime)
    return await asyncio.to_thread(roundhouse, "down", *options, *arguments)


async def test_a_running_controller_is_asked_and_waited_for(stubs: RoundhouseStack, roundhouse: Roundhouse) -> None:
    assert len(engine_pids(stubs)) == 2
    assert (await down(stubs, roundhouse))[:2] == (ExitCode.DONE, "stopped controller and its engines\n")
    assert (engine_pids(stubs), ProcessRuntimeFixture().left(stubs)) == ([], [])
    assert "Traceback" not in stubs.log("controller")
    # The lock is free: nothing of it runs.
    StateDir.open_folder(stubs.state).close()


@pytest.mark.parametrize("runtime", ["process", "auto"])
async def test_engines_of_a_killed_controller_are_stopped(
    stubs: RoundhouseStack, roundhouse: Roundhouse, runtime: str
) -> None:
    names = sorted(ProcessRuntimeFixture().left(stubs))
    stubs.kill("controller")
    assert len(engine_pids(stubs)) == 2
    stopped = await down(stubs, roundhouse, "--json", runtime=runtime)
    expected = {"stopped": [f"engine {name}" for name in names], "killed": []}
    assert (stopped.code, stopped.json, engine_pids(stubs)) == (ExitCode.DONE, expected, [])
    assert (await down(stubs, roundhouse, runtime=runtime))[:2] == NOTHING


def test_nothing_was_running_and_nothing_is_made(folder: Path, roundhouse: Roundhouse) -> None:
    assert roundhouse("down", "--state", str(folder / "state"))[:2] == NOTHING
    assert not (folder / "state").exists()


def test_a_recorded_process_that_is_another_by_now_is_left_alone(folder: Path, roundhouse: Roundhouse) -> None:
    myself = ProcessRecord.of(os.getpid())
    assert myself is not None
    other = ProcessRecord(pid=myself.pid, start_ticks=myself.start_ticks - 1)
    write_record(folder, UpRecord(up=other, children={"gateway": other, "controller": other}))
    assert roundhouse("down", "--state", str(folder))[:2] == NOTHING


def test_a_damaged_record_is_one_line(folder: Path, roundhouse: Roundhouse) -> None:
    (folder / "up.json").write_text("{")
    line = f"{folder}/up.json cannot be read (it is damaged): remove it when no controller or gateway runs"
    assert roundhouse("down", "--state", str(folder)) == Output(ExitCode.FAILED, err=f"roundhouse: {line}\n")


async def test_a_state_folder_that_stays_in_use_is_told(folder: Path) -> None:
    store = StateDir.open_folder(folder)
    try:
        with pytest.raises(CommandError) as raised:
            await stop_orphans(load_settings(state=folder, runtime="process"), grace_s=1.0, lock_wait_s=0.2)
    finally:
        store.close()
    assert raised.value.code is ExitCode.LOCKED
    assert str(raised.value) == f"state folder {folder} is in use by process {os.getpid()}"


async def test_the_lock_of_a_controller_that_is_ending_is_waited_for(folder: Path) -> None:
    store = StateDir.open_folder(folder)
    settings = load_settings(state=folder, runtime="process")
    stopping = asyncio.create_task(stop_orphans(settings, grace_s=1.0, lock_wait_s=60.0))
    # One turn of the loop: it has tried once, and waits.
    await asyncio.sleep(0)
    store.close()
    assert await stopping == []
