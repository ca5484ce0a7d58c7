"""Nothing of an engine is left when it is ended, and nothing else is harmed."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from controller.runtimes.process.groups import read_stat
from controller.state import Phase
from tests.support.campaign import campaign_count
from tests.support.process_engines import ProcessEngines, numbers, zombies
from tests.support.runtime_contract import RUN, exited, only, running, start_shell
from tests.support.wait import until

pytestmark = pytest.mark.engines


@pytest.fixture
def bystander() -> Iterator[int]:
    """A process that is nobody's replica, and leads a session."""
    process = subprocess.Popen(["sleep", "600"], start_new_session=True)
    yield process.pid
    assert running(process.pid), "a process that is not ours was ended"
    process.kill()
    process.wait()


def family(pids: Path) -> str:
    """An engine with a child, one without an environment, one in its own session, and a grandchild."""
    return (
        f"exec 9>>{pids}; sleep 600 & echo $! >&9; env -i /bin/sleep 600 & echo $! >&9; "
        f"setsid sleep 600 & echo $! >&9; (sleep 600 & echo $! >&9; wait) & {RUN}"
    )


async def test_an_engine_is_asked_once_and_may_clean_up(processes: ProcessEngines) -> None:
    """Engines take a second SIGTERM as an order to drop everything; and some start programs as they end."""
    pids, go, helper, last = (processes.root / name for name in ("pids", "go", "helper", "last"))
    body = f"""
        trap 'echo asked' TERM
        sleep 600 & first=$!
        until [ "$(cat /proc/$first/comm)" = sleep ]; do :; done  # until then it has the shell's ears
        echo $first > {pids}
        (trap '' TERM; touch {helper}; while [ ! -e {last} ]; do :; done) & child=$!
        while [ ! -e {helper} ]; do :; done; rm {helper}; echo $$ >> {pids}
        while [ ! -e {go} ]; do :; done
        sleep 600 & cleaner=$!; touch {helper}
        wait $child; sleep 0.3
        kill -9 $cleaner && echo cleaned
    """
    runtime, request = await start_shell(processes, body)
    await until("the engine's children", lambda: len(numbers(pids)) == 2)
    stop = asyncio.create_task(runtime.stop_replica(request.name, 3600))
    await until("the end of the engine's child", lambda: not running(numbers(pids)[0]))
    await until("the engine's answer to SIGTERM", lambda: processes.log(request.name).read_text() != "")
    go.touch()
    await until("a program that cleans up", helper.exists)
    last.touch()
    await stop
    assert await runtime.read_log_tail(request.name) == "asked\ncleaned"


async def test_what_an_ending_engine_leaves_is_asked_too(processes: ProcessEngines) -> None:
    pids, go, up = (processes.root / name for name in ("pids", "go", "up"))
    body = f"""
        leave() {{
            sleep 600 & left=$!
            until [ "$(cat /proc/$left/comm)" = sleep ]; do :; done  # until then it has the shell's ears
            echo $left > {pids}
            exit 0
        }}
        trap leave TERM
        (trap 'echo asked' TERM; touch {up}; while [ ! -e {go} ]; do :; done) &
        while :; do :; done
    """
    runtime, request = await start_shell(processes, body)
    await until("the engine's child", up.exists)
    stop = asyncio.create_task(runtime.stop_replica(request.name, 3600))
    await until("what the engine starts as it ends", lambda: len(numbers(pids)) == 1)
    await until("the end of what it started", lambda: not running(numbers(pids)[0]))
    go.touch()
    await stop
    assert await runtime.read_log_tail(request.name) == "asked"


async def test_the_whole_family_is_ended(processes: ProcessEngines, bystander: int) -> None:
    pids = processes.root / "pids"
    runtime, request = await start_shell(processes, family(pids))
    await until("four descendants", lambda: len(numbers(pids)) == 4)
    assert all(running(pid) for pid in numbers(pids))
    await runtime.stop_replica(request.name, 30)
    assert [pid for pid in numbers(pids) if running(pid)] == []
    assert bystander not in numbers(pids)


@pytest.mark.parametrize("adopted", [False, True])
async def test_a_dead_engine_has_ended_with_its_children(processes: ProcessEngines, adopted: bool) -> None:
    runtime = processes.runtime()
    pids = processes.root / "pids"
    request = processes.request(processes.shell(family(pids)))
    await runtime.start_replica(request)
    await until("four descendants", lambda: len(numbers(pids)) == 4)
    if adopted:
        runtime = processes.runtime()
        await runtime.list_replicas()
    events = runtime.watch_events()
    processes.kill(request.name)
    await anext(events)
    seen = await only(runtime)
    # What it left may be gone by now, or not: it is never "ended" while something runs.
    if seen.phase is Phase.EXITED:
        assert [pid for pid in numbers(pids) if running(pid)] == []
    while seen.phase is not Phase.EXITED:
        async with asyncio.timeout(60):
            await anext(events)
        seen = await only(runtime)
    assert [pid for pid in numbers(pids) if running(pid)] == []
    await runtime.remove_replica(request.name)
    await runtime.close()


async def test_a_process_without_its_main_thread_has_not_ended(processes: ProcessEngines) -> None:
    """Nor has one that is about to end; neither shows an environment, a folder or open files."""
    pids, script = processes.root / "pids", processes.root / "script.py"
    script.write_text(
        "import ctypes, os, platform, threading, time\n"
        "threading.Thread(target=time.sleep, args=(600,)).start()\n"
        f"open({str(pids)!r}, 'w').write(str(os.getpid()))\n"
        # The system call exit ends one thread alone.
        "ctypes.CDLL(None).syscall(60 if platform.machine() == 'x86_64' else 93, 0)\n"
    )
    runtime, request = await start_shell(processes, f"{sys.executable} {script} & {RUN}")

    def without_main_thread() -> bool:
        stat = read_stat(numbers(pids)[0]) if numbers(pids) else None
        return stat is not None and stat.is_exiting

    await until("the end of a main thread", without_main_thread)
    (pid,) = numbers(pids)
    assert running(pid)
    processes.kill(request.name)
    await exited(runtime)
    assert not running(pid)
    await runtime.remove_replica(request.name)


async def test_a_pid_that_was_given_out_again_is_somebody_else(processes: ProcessEngines, bystander: int) -> None:
    runtime, request = await start_shell(processes, "exit 0")
    await exited(runtime)
    stat = read_stat(bystander)
    assert stat is not None
    changes = {"pid": bystander, "start_ticks": stat.process.start_ticks - 1, "ended": False}
    forged = processes.record(request.name).model_copy(update=changes)
    processes.record_path(request.name).write_text(forged.model_dump_json())

    later = processes.runtime()
    assert (await only(later)).phase is Phase.EXITED
    await later.stop_replica(request.name, 0)
    assert await later.list_replicas() == []


async def test_a_session_number_that_was_given_out_again_is_somebody_elses(processes: ProcessEngines) -> None:
    """The new holder of the engine's pid has led a session too, and is gone: only its child is left."""
    runtime, request = await start_shell(processes, "exit 0")
    await exited(runtime)
    session, child = await asyncio.to_thread(orphan)
    changes = {"pid": session, "start_ticks": 1, "ended": False}
    forged = processes.record(request.name).model_copy(update=changes)
    processes.record_path(request.name).write_text(forged.model_dump_json())

    later = processes.runtime()
    assert (await only(later)).phase is Phase.EXITED
    await later.remove_replica(request.name)
    assert running(child)
    os.kill(child, signal.SIGKILL)


def orphan() -> tuple[int, int]:
    """A session whose leader is gone, and the one process that is left in it."""
    script = (
        "import subprocess; child = subprocess.Popen(['sleep', '600'], stdout=subprocess.DEVNULL); "
        "print(child.pid, flush=True); child.returncode = 0"
    )
    leader = subprocess.Popen([sys.executable, "-c", script], start_new_session=True, stdout=subprocess.PIPE)
    output, _ = leader.communicate()
    stat = read_stat(int(output))
    assert stat is not None
    assert stat.session == leader.pid
    assert read_stat(leader.pid) is None
    return leader.pid, int(output)


async def test_a_record_from_before_a_reboot_has_ended(processes: ProcessEngines, bystander: int) -> None:
    runtime, request = await start_shell(processes, "exit 0")
    await exited(runtime)
    stat = read_stat(bystander)
    assert stat is not None
    changes = {"pid": bystander, "start_ticks": stat.process.start_ticks, "ended": False, "boot_id": "an earlier boot"}
    forged = processes.record(request.name).model_copy(update=changes)
    processes.record_path(request.name).write_text(forged.model_dump_json())

    later = processes.runtime()
    assert (await only(later)).phase is Phase.EXITED
    await later.stop_replica(request.name, 0)


async def test_starts_and_ends_leave_nothing(processes: ProcessEngines) -> None:
    runtime = processes.runtime()
    definition = processes.shell("sleep 600 & exec sleep 600")
    zombies_before = zombies()
    fds: set[int] = set()
    for attempt in range(1, 1 + campaign_count(5, 50)):
        request = processes.request(definition, attempt=attempt)
        await runtime.start_replica(request)
        await runtime.list_replicas()
        await runtime.stop_replica(request.name, 30)
        if attempt == 1:
            fds = open_fds()
    await runtime.close()
    assert open_fds() <= fds
    assert zombies() == zombies_before
    assert runtime._children == {}
    assert processes.left() == []


def open_fds() -> set[int]:
    """Our open file descriptors."""
    return {int(entry.name) for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink()}
