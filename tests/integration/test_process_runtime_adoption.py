"""A controller that died, at any moment, leaves engines that the next one knows."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from controller.state import Phase
from tests.support.process_engines import (
    RUN,
    Place,
    end_all,
    exited,
    numbers,
    only,
    request_for,
    running,
    until,
    wait_for,
)

REPOSITORY = Path(__file__).resolve().parents[2]

OWNER = """
import asyncio, os, signal, subprocess, sys, time
from pathlib import Path
from controller.runtimes import process_records, process_spawn
from tests.support.process_engines import Place, request_for

root, moment = Path(sys.argv[1]), sys.argv[2]
place = Place.__new__(Place)
place.root, place.state, place.models = root, root / "state", root / "models"

def die(*args, **settings):
    os.kill(os.getpid(), signal.SIGKILL)

def wait():
    (root / "forked").write_text(str(os.getpid()))
    while not (root / "go").exists():
        time.sleep(0.01)

if moment == "before spawn":
    process_spawn.subprocess.Popen = die
if moment == "between fork and exec":
    popen = subprocess.Popen
    process_spawn.subprocess.Popen = lambda *args, **settings: popen(*args, preexec_fn=wait, **settings)
if moment == "after spawn":
    process_records.Records.begun = die

async def main():
    runtime = place.runtime()
    await runtime.start(request_for(place.definition(sys.argv[3])))
    await runtime.list()
    (root / "started").touch()
    await asyncio.sleep(600)

asyncio.run(main())
"""


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path)
    yield place
    end_all(place)


def owner(place: Place, moment: str, body: str = RUN) -> subprocess.Popen[bytes]:
    """Another controller, which starts an engine."""
    command = [sys.executable, "-c", OWNER, str(place.root), moment, body]
    return subprocess.Popen(command, cwd=REPOSITORY, env={**os.environ, "PYTHONPATH": str(REPOSITORY)})


async def test_the_engines_of_a_killed_controller_are_adopted(place: Place) -> None:
    first = owner(place, "after all")
    await until((place.root / "started").exists, "an engine of another controller")
    first.send_signal(signal.SIGKILL)
    first.wait()

    runtime = place.runtime()
    request = request_for(place.definition(RUN))
    seen = await only(runtime)
    assert (seen.id, seen.phase) == (request.id, Phase.RUNNING)
    pid = place.record(request.name).pid
    assert pid is not None
    assert running(pid)

    events = runtime.events()
    os.kill(pid, signal.SIGKILL)
    async with asyncio.timeout(60):
        await anext(events)
    seen = await exited(runtime)
    assert seen.exit is not None
    assert seen.exit.code is None
    await runtime.remove(request.name)
    assert await runtime.list() == []


async def test_an_adopted_engine_is_ended_with_its_family(place: Place) -> None:
    pids = place.root / "pids"
    first = owner(place, "after all", f"exec 9>>{pids}; echo $$ >&9; sleep 600 & echo $! >&9; {RUN}")
    await until((place.root / "started").exists, "an engine of another controller")
    first.send_signal(signal.SIGKILL)
    first.wait()
    await until(lambda: len(numbers(pids)) == 2, "the engine's child")

    runtime = place.runtime()
    await runtime.stop((await only(runtime)).name, 30)
    assert [pid for pid in numbers(pids) if running(pid)] == []


async def test_a_controller_that_died_before_the_spawn_leaves_a_half_created_replica(place: Place) -> None:
    assert owner(place, "before spawn").wait() == -signal.SIGKILL
    runtime = place.runtime()
    seen = await only(runtime)
    assert seen.phase is Phase.CREATED
    await runtime.start(request_for(place.definition(RUN)))
    assert (await only(runtime)).phase is Phase.CREATED
    await runtime.remove(seen.name)
    assert await runtime.list() == []


async def test_an_engine_whose_start_was_not_recorded_is_adopted(place: Place) -> None:
    assert owner(place, "after spawn").wait() == -signal.SIGKILL
    runtime = place.runtime()
    seen = await only(runtime)
    assert seen.phase is Phase.RUNNING
    record = place.record(seen.name)
    assert record.pid is not None
    assert running(record.pid)
    await runtime.stop(seen.name, 30)
    assert not running(record.pid)


@pytest.mark.parametrize("removed_before_exec", [True, False])
async def test_a_child_that_was_not_yet_the_engine_cannot_escape(place: Place, removed_before_exec: bool) -> None:
    """Killed between fork and exec, a controller leaves a child that carries no mark but the lock on its log."""
    first = owner(place, "between fork and exec")
    forked = place.root / "forked"
    await until(lambda: bool(numbers(forked)), "a child between fork and exec")
    first.send_signal(signal.SIGKILL)
    first.wait()
    (child,) = numbers(forked)
    assert running(child)

    runtime = place.runtime()
    seen = await only(runtime)
    assert seen.phase is Phase.CREATED
    if removed_before_exec:
        remove = asyncio.create_task(runtime.remove(seen.name))
        await asyncio.sleep(0.2)
        assert not remove.done()
        (place.root / "go").touch()
        await remove
        assert not running(child)
    else:
        (place.root / "go").touch()
        await asyncio.to_thread(wait_for, lambda: Path(f"/proc/{child}/comm").read_text() == "sleep\n", "the exec")
        seen = await only(runtime)
        assert seen.phase is Phase.RUNNING
        assert place.record(seen.name).pid == child
        await runtime.stop(seen.name, 30)
    assert await runtime.list() == []
