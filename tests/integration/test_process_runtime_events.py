"""An engine's end is an event, at once and without asking."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvloop

from controller.runtimes.process import ProcessRuntime
from controller.runtimes.process_stat import Process, read_stat
from controller.runtimes.process_watch import ExitWatch, wait_any
from controller.state import Phase
from tests.support.process_engines import RUN, Place, end_all, only, request_for


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path)
    yield place
    end_all(place)


async def kill(runtime: ProcessRuntime, place: Place) -> None:
    """End the one engine as a crash would."""
    pid = place.record((await only(runtime)).name).pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)


async def killed_engine_is_an_event(place: Place, *, adopted: bool) -> None:
    """The test, for any event loop."""
    runtime = place.runtime()
    request = request_for(place.definition(RUN))
    await runtime.start(request)
    if adopted:
        runtime = place.runtime()
        await runtime.list()
    events = runtime.events()
    await kill(runtime, place)
    async with asyncio.timeout(60):
        await anext(events)
    assert (await only(runtime)).phase is Phase.EXITED
    await runtime.remove(request.name)
    await runtime.close()


@pytest.mark.parametrize("adopted", [False, True])
async def test_a_killed_engine_is_an_event(place: Place, adopted: bool) -> None:
    await killed_engine_is_an_event(place, adopted=adopted)


@pytest.mark.parametrize("adopted", [False, True])
def test_also_in_the_event_loop_that_the_controller_runs_in(place: Place, adopted: bool) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(killed_engine_is_an_event(place, adopted=adopted))


async def test_an_event_needs_no_timer(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Were ends looked for again and again, the loop would set one."""
    timers: list[float] = []
    runtime = place.runtime()
    await runtime.start(request_for(place.definition(RUN)))
    await runtime.list()
    loop = asyncio.get_running_loop()
    real = loop.call_later

    def call_later(delay: float, *args: object, **settings: object) -> object:
        timers.append(delay)
        return real(delay, *args, **settings)  # type: ignore[arg-type]

    monkeypatch.setattr(loop, "call_later", call_later)
    events = runtime.events()
    await kill(runtime, place)
    await anext(events)
    assert timers == []
    await runtime.close()


async def test_many_ends_may_be_one_event(place: Place) -> None:
    runtime = place.runtime()
    definition = place.definition(RUN)
    pids = []
    for attempt in range(1, 6):
        request = request_for(definition, attempt=attempt)
        await runtime.start(request)
        pids.append(place.record(request.name).pid)
    events = runtime.events()
    for pid in pids:
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
    count = 0
    async with asyncio.timeout(60):
        while count == 0 or any(seen.phase is Phase.RUNNING for seen in await runtime.list()):
            await anext(events)
            count += 1
    assert count <= len(pids)
    await runtime.close()


async def test_closing_ends_events_and_leaves_engines_running(place: Place) -> None:
    runtime = place.runtime()
    request = request_for(place.definition(RUN))
    await runtime.start(request)
    events = [runtime.events(), runtime.events()]
    waiting = [asyncio.create_task(drain(each)) for each in events]
    await asyncio.sleep(0)
    await runtime.close()
    assert await asyncio.gather(*waiting) == [0, 0]
    assert await drain(runtime.events()) == 0
    later = place.runtime()
    assert (await only(later)).phase is Phase.RUNNING
    await later.stop(request.name, 30)


async def drain(events: object) -> int:
    """How many events there were until the end."""
    return len([each async for each in events])  # type: ignore[attr-defined]


async def test_an_end_before_the_watch_is_reported_too() -> None:
    ended: asyncio.Queue[Process] = asyncio.Queue()
    watch = ExitWatch(ended.put_nowait)
    stat = read_stat(os.getpid())
    assert stat is not None
    never, reused = Process(2**22 + 1, 1), Process(os.getpid(), stat.process.start_ticks - 1)
    watch.add(never)
    watch.add(reused)
    watch.add(reused)
    async with asyncio.timeout(60):
        assert {await ended.get(), await ended.get()} == {never, reused}
    watch.close()
    assert ended.empty()


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EPERM])
async def test_without_pidfds_ends_are_looked_for(place: Place, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def refuse(pid: int, flags: int = 0) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "pidfd_open", refuse)
    await killed_engine_is_an_event(place, adopted=False)
    runtime = place.runtime()
    request = request_for(place.definition(RUN), attempt=2)
    await runtime.start(request)
    await runtime.stop(request.name, 30)
    assert await runtime.list() == []


async def test_waiting_has_its_limit() -> None:
    stat = read_stat(os.getpid())
    assert stat is not None
    await wait_any([stat.process], 0.01)
    await wait_any([], 0)
