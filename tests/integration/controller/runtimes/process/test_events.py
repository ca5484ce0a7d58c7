"""How ends of processes become events: at once, without asking, in every event loop, and without pidfds."""

from __future__ import annotations

import asyncio
import errno
import os

import pytest
import uvloop

from controller.runtimes.base import RuntimeUnavailableError
from controller.runtimes.process.exit_watch import ExitWatch, wait_any
from controller.runtimes.process.stat import Process, read_stat
from controller.state import Phase
from tests.support.process_engines import ProcessEngines
from tests.support.runtime_contract import RUN, only

pytestmark = pytest.mark.engines


async def killed_engine_is_an_event(processes: ProcessEngines, *, adopted: bool) -> None:
    """The test, for any event loop."""
    runtime = processes.runtime()
    request = processes.request(processes.shell(RUN))
    await runtime.start_replica(request)
    if adopted:
        runtime = processes.runtime()
        await runtime.list_replicas()
    events = runtime.watch_events()
    processes.kill(request.name)
    async with asyncio.timeout(60):
        await anext(events)
    assert (await only(runtime)).phase is Phase.EXITED
    await runtime.remove_replica(request.name)
    await runtime.close()


@pytest.mark.parametrize("adopted", [False, True])
def test_an_end_is_an_event_in_the_event_loop_that_the_controller_runs_in(
    processes: ProcessEngines, adopted: bool
) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(killed_engine_is_an_event(processes, adopted=adopted))


async def test_an_event_needs_no_timer(processes: ProcessEngines, monkeypatch: pytest.MonkeyPatch) -> None:
    """Were ends looked for again and again, the loop would set one."""
    timers: list[float] = []
    runtime = processes.runtime()
    request = processes.request(processes.shell(RUN))
    await runtime.start_replica(request)
    await runtime.list_replicas()
    loop = asyncio.get_running_loop()
    real = loop.call_later

    def call_later(delay: float, *args: object, **settings: object) -> object:
        timers.append(delay)
        return real(delay, *args, **settings)  # type: ignore[arg-type]

    monkeypatch.setattr(loop, "call_later", call_later)
    events = runtime.watch_events()
    processes.kill(request.name)
    await anext(events)
    assert timers == []
    await runtime.close()


async def test_an_engine_that_cannot_be_watched_yet_runs_and_is_watched_later(
    processes: ProcessEngines, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_pid: int) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    runtime = processes.runtime()
    request = processes.request(processes.shell(RUN))
    with monkeypatch.context() as patch:
        patch.setattr(os, "pidfd_open", refuse)
        await runtime.start_replica(request)
        with pytest.raises(RuntimeUnavailableError, match="Too many open files"):
            await runtime.list_replicas()
    assert (await only(runtime)).phase is Phase.RUNNING
    events = runtime.watch_events()
    processes.kill(request.name)
    async with asyncio.timeout(60):
        await anext(events)
    await runtime.close()


async def test_a_closed_runtime_has_no_events(processes: ProcessEngines) -> None:
    runtime = processes.runtime()
    await runtime.close()
    assert [each async for each in runtime.watch_events()] == []


async def test_many_ends_may_be_one_event(processes: ProcessEngines) -> None:
    runtime = processes.runtime()
    definition = processes.shell(RUN)
    names = []
    for attempt in range(1, 6):
        request = processes.request(definition, attempt=attempt)
        await runtime.start_replica(request)
        names.append(request.name)
    events = runtime.watch_events()
    for name in names:
        processes.kill(name)
    count = 0
    async with asyncio.timeout(60):
        while count == 0 or any(seen.phase is Phase.RUNNING for seen in await runtime.list_replicas()):
            await anext(events)
            count += 1
    assert count <= len(names)
    await runtime.close()


async def test_an_end_before_the_watch_is_reported_too() -> None:
    ended: asyncio.Queue[Process] = asyncio.Queue()
    watch = ExitWatch(ended.put_nowait)
    stat = read_stat(os.getpid())
    assert stat is not None
    never, reused = Process(2**22 + 1, 1), Process(os.getpid(), stat.process.start_ticks - 1)
    watch.add_process(never)
    watch.add_process(reused)
    watch.add_process(reused)
    async with asyncio.timeout(60):
        assert {await ended.get(), await ended.get()} == {never, reused}
    watch.close()
    assert ended.empty()


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EPERM])
async def test_without_pidfds_ends_are_looked_for(
    processes: ProcessEngines, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(pid: int, flags: int = 0) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "pidfd_open", refuse)
    await killed_engine_is_an_event(processes, adopted=False)
    runtime = processes.runtime()
    request = processes.request(processes.shell(RUN), attempt=2)
    await runtime.start_replica(request)
    await runtime.stop_replica(request.name, 30)
    assert await runtime.list_replicas() == []


async def test_waiting_has_its_limit() -> None:
    stat = read_stat(os.getpid())
    assert stat is not None
    await wait_any([stat.process], 0.01)
    await wait_any([], 0)
