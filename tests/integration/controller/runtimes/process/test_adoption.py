"""A controller that died, at any moment, leaves engines that the next one knows."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from controller.hosts import HOST
from controller.state import Phase
from tests.support.process_engines import ProcessEngines, numbers
from tests.support.runtime_contract import RUN, ended, only, running
from tests.support.wait import until

pytestmark = pytest.mark.engines

REPOSITORY = Path(__file__).resolve().parents[5]

OWNER = """
import asyncio, os, signal, subprocess, sys, time
from pathlib import Path
from controller.runtimes.process import launch
from tests.support.process_engines import ProcessEngines

root, moment = Path(sys.argv[1]), sys.argv[2]
processes = ProcessEngines(root)

def die(*args, **settings):
    os.kill(os.getpid(), signal.SIGKILL)

def wait():
    (root / "forked").write_text(str(os.getpid()))
    while not (root / "go").exists():
        time.sleep(0.01)

if moment == "before spawn":
    launch.subprocess.Popen = die
if moment == "between fork and exec":
    popen = subprocess.Popen
    launch.subprocess.Popen = lambda *args, **settings: popen(*args, preexec_fn=wait, **settings)
if moment == "after spawn":
    launch.Records.note_started = die

async def main():
    runtime = processes.runtime()
    await runtime.start_replica(processes.request(processes.shell(sys.argv[3])))
    await runtime.list_replicas()
    (root / "started").touch()
    await asyncio.sleep(600)

asyncio.run(main())
"""


def owner(processes: ProcessEngines, moment: str, body: str = RUN) -> subprocess.Popen[bytes]:
    """Another controller, which starts an engine."""
    command = [sys.executable, "-c", OWNER, str(processes.root), moment, body]
    return subprocess.Popen(command, cwd=REPOSITORY, env={**os.environ, "PYTHONPATH": str(REPOSITORY)})


async def test_the_engines_of_a_killed_controller_are_adopted(processes: ProcessEngines) -> None:
    first = owner(processes, "after all")
    await until("an engine of another controller", (processes.root / "started").exists)
    first.send_signal(signal.SIGKILL)
    first.wait()

    runtime = processes.runtime()
    request = processes.request(processes.shell(RUN))
    seen = await only(runtime)
    assert (seen.id, seen.phase) == (request.id, Phase.RUNNING)
    assert running(processes.leader(request.name))

    events = runtime.watch_events()
    processes.kill(request.name)
    async with asyncio.timeout(60):
        await anext(events)
    exit_ = await ended(runtime)
    assert exit_.code is None
    await runtime.remove_replica(request.name)
    assert await runtime.list_replicas() == []


@pytest.mark.parametrize("deletes_folder", [False, True])
async def test_an_engine_without_its_record_is_known_again(processes: ProcessEngines, deletes_folder: bool) -> None:
    first = processes.runtime()
    request = processes.request(processes.shell(RUN), claims={HOST: 5})
    await first.start_replica(request)
    before, pid = await only(first), processes.leader(request.name)
    if deletes_folder:
        shutil.rmtree(processes.state / "replicas")
    else:
        processes.record_path(request.name).unlink()
        assert await only(first) == before
        processes.record_path(request.name).unlink()
    runtime = processes.runtime()
    assert await only(runtime) == before
    await runtime.stop_replica(request.name, 30)
    assert not running(pid)
    assert await runtime.list_replicas() == []
    assert processes.left() == []


async def test_an_adopted_engine_is_ended_with_its_family(processes: ProcessEngines) -> None:
    pids = processes.root / "pids"
    first = owner(processes, "after all", f"exec 9>>{pids}; echo $$ >&9; sleep 600 & echo $! >&9; {RUN}")
    await until("an engine of another controller", (processes.root / "started").exists)
    first.send_signal(signal.SIGKILL)
    first.wait()
    await until("the engine's child", lambda: len(numbers(pids)) == 2)

    runtime = processes.runtime()
    await runtime.stop_replica((await only(runtime)).name, 30)
    assert [pid for pid in numbers(pids) if running(pid)] == []


async def test_a_controller_that_died_before_the_spawn_leaves_a_half_created_replica(processes: ProcessEngines) -> None:
    assert owner(processes, "before spawn").wait() == -signal.SIGKILL
    runtime = processes.runtime()
    seen = await only(runtime)
    assert seen.phase is Phase.CREATED
    await runtime.start_replica(processes.request(processes.shell(RUN)))
    assert (await only(runtime)).phase is Phase.CREATED
    await runtime.remove_replica(seen.name)
    assert await runtime.list_replicas() == []


async def test_an_engine_whose_start_was_not_recorded_is_adopted(processes: ProcessEngines) -> None:
    assert owner(processes, "after spawn").wait() == -signal.SIGKILL
    runtime = processes.runtime()
    seen = await only(runtime)
    assert seen.phase is Phase.RUNNING
    pid = processes.leader(seen.name)
    assert running(pid)
    await runtime.stop_replica(seen.name, 30)
    assert not running(pid)


@pytest.mark.parametrize("removed_before_exec", [True, False])
async def test_a_child_between_fork_and_exec_is_ended(processes: ProcessEngines, removed_before_exec: bool) -> None:
    """Killed between fork and exec, a controller leaves a child that carries no mark but the lock on its log."""
    first = owner(processes, "between fork and exec")
    forked = processes.root / "forked"
    await until("a child between fork and exec", lambda: bool(numbers(forked)))
    first.send_signal(signal.SIGKILL)
    first.wait()
    (child,) = numbers(forked)
    assert running(child)

    runtime = processes.runtime()
    seen = await only(runtime)
    assert seen.phase is Phase.CREATED
    if removed_before_exec:
        remove = asyncio.create_task(runtime.remove_replica(seen.name))
        done, _ = await asyncio.wait([remove], timeout=0.2)
        assert not done
        (processes.root / "go").touch()
        await remove
        assert not running(child)
    else:
        (processes.root / "go").touch()
        await until("the exec", lambda: Path(f"/proc/{child}/comm").read_text() == "sleep\n")
        seen = await only(runtime)
        assert seen.phase is Phase.RUNNING
        assert processes.record(seen.name).pid == child
        await runtime.stop_replica(seen.name, 30)
    assert await runtime.list_replicas() == []
