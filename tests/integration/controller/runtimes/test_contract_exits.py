"""The contract of runtimes: what is told of an engine that has ended, and that somebody is woken by it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from controller.engines import ENGINES
from controller.observe.load_progress import LoadProgress
from controller.runtimes.base import Runtime
from controller.runtimes.logs import EXIT_LINES
from controller.state import Phase
from tests.support.runtime_contract import (
    RUN,
    ContractEngines,
    ended,
    exited,
    give,
    only,
    start_shell,
    wait_for_log,
    waiting_for,
)
from tests.support.wait import until

pytestmark = pytest.mark.engines


async def test_an_end_has_its_exit_code_and_plain_last_lines(engines: ContractEngines) -> None:
    # One stream: of two, Docker keeps each one's order and not the order between them.
    broken = r"printf 'loading 10%%\rloading 100%%\r\n\033[31mfile is \033[0mbroken\n'"
    runtime, request = await start_shell(engines, f"exec >&2; seq 1 900; {broken}; exit 7")
    seen = await exited(runtime)
    assert seen.exit is not None
    assert (seen.id, seen.exit.code, seen.exit.oom) == (request.id, 7, False)
    lines = seen.exit.log_tail.splitlines()
    assert len(lines) == EXIT_LINES
    assert lines[-3:] == ["900", "loading 100%", "file is broken"]

    await runtime.start_replica(request)
    assert await only(runtime) == seen, "a start that has ended is not begun again"
    assert await only(engines.runtime()) == seen, "another controller is told the same"
    await runtime.remove_replica(request.name)
    assert await runtime.list_replicas() == []
    assert engines.left() == []
    assert await runtime.read_log_tail(request.name, 2) == "loading 100%\nfile is broken"


async def test_a_killed_engine_is_seen_with_how_it_ended(engines: ContractEngines) -> None:
    runtime, request = await start_shell(engines, f"echo last words; {RUN}")
    await wait_for_log(runtime, request.name, "last words")
    engines.kill(request.name)
    exit_ = await ended(runtime)
    assert (exit_.code, exit_.oom, exit_.log_tail) == (engines.killed_code, False, "last words")


async def test_an_end_that_no_controller_saw_is_still_known(engines: ContractEngines) -> None:
    first = engines.runtime()
    request = engines.request(engines.shell(f"{waiting_for(engines, 'go')}; echo gone; exit 3"))
    await first.start_replica(request)
    await first.close()
    give(engines, "go")
    exit_ = await ended(engines.runtime())
    assert exit_.code == (3 if engines.tells_codes_of_unseen_ends else None)
    assert exit_.log_tail == "gone"


async def test_an_engine_that_cannot_load_says_why_in_its_last_line(engines: ContractEngines) -> None:
    runtime = engines.runtime()
    request = engines.request(engines.stub(stub_load_s=0.1, stub_fail="no luck"))
    await runtime.start_replica(request)
    exit_ = await ended(runtime)
    assert exit_.code == 1
    assert exit_.log_tail.splitlines()[-2:] == ["loading: 100 %", "no luck"]
    assert ENGINES["stub"].parse_progress(exit_.log_tail) == 1.0


async def test_a_load_s_progress_is_read_from_the_log(engines: ContractEngines) -> None:
    body = f"echo 'loading: 50 %'; {waiting_for(engines, 'go')}; echo 'loading: 100 %'; {RUN}"
    runtime, request = await start_shell(engines, body)
    progress = LoadProgress(runtime, wake=lambda: None, interval_s=0.02)
    progress.track_engines({request.name: ENGINES["stub"]})
    await until("half of the load", lambda: progress.fractions == {request.name: 0.5})
    give(engines, "go")
    await until("the end of the load", lambda: progress.fractions == {request.name: 1.0})
    await progress.close()


async def phases_at(runtime: Runtime, events: AsyncIterator[None], told: list[Phase]) -> None:
    """Look at every event, as the controller does, and never without one."""
    async for _ in events:
        told[:] = [seen.phase for seen in await runtime.list_replicas()]


@pytest.mark.parametrize("adopted", [False, True])
async def test_an_end_wakes_whoever_waits_for_events(engines: ContractEngines, adopted: bool) -> None:
    runtime = engines.runtime()
    request = engines.request(engines.shell(RUN))
    await runtime.start_replica(request)
    if adopted:
        runtime = engines.runtime()
        await runtime.list_replicas()
    told: list[Phase] = []
    watch = asyncio.create_task(phases_at(runtime, runtime.watch_events(), told))
    await asyncio.sleep(0)
    engines.kill(request.name)
    await until("the end was told", lambda: told == [Phase.EXITED])
    await runtime.close()
    async with asyncio.timeout(60):
        await watch


async def test_closing_ends_events_and_leaves_engines_running(engines: ContractEngines) -> None:
    runtime, request = await start_shell(engines)
    before = engines.identity(request.name)
    watches = [asyncio.create_task(phases_at(runtime, runtime.watch_events(), [])) for _ in range(2)]
    await asyncio.sleep(0)
    await runtime.close()
    async with asyncio.timeout(60):
        await asyncio.gather(*watches)
    assert (await only(engines.runtime())).phase is Phase.RUNNING
    assert engines.identity(request.name) == before
