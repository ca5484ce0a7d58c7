"""The contract of runtimes: one engine from start to end, whatever it runs as."""

from __future__ import annotations

import asyncio
import stat

import pytest

from controller.engines import get_engine
from controller.engines.base import Launch
from controller.runtimes.base import RuntimeUnavailableError, StartError
from controller.state import HOST, Phase
from tests.support.campaign import campaign_count
from tests.support.runtime_contract import (
    RUN,
    ContractEngines,
    exited,
    only,
    running,
    says_and_waits,
    start_shell,
    wait_for_log,
)
from tests.support.wait import until

pytestmark = pytest.mark.engines


async def test_an_engine_is_started_seen_and_ended(engines: ContractEngines) -> None:
    runtime = engines.runtime()
    request = engines.request(engines.shell(f"echo hello; {RUN}"), "some/model:q4", attempt=3, claims={HOST: 64})
    assert await runtime.list_replicas() == []

    await runtime.start_replica(request)
    seen = await only(runtime)
    assert (seen.id, seen.name, seen.phase) == (request.id, request.name, Phase.RUNNING)
    assert (seen.claims, seen.exit) == ({HOST: 64}, None)
    assert seen.started_at is not None
    assert seen.created_at <= seen.started_at
    assert (seen.base_url or "").startswith("http://127.0.0.1:")
    assert f"{engines.models_inside}/m.gguf" in seen.argv
    await wait_for_log(runtime, request.name, "hello")
    pids = engines.pids(request.name)
    assert pids
    assert all(running(pid) for pid in pids)

    await runtime.stop_replica(request.name, 30)
    assert await runtime.list_replicas() == []
    assert engines.left() == []
    assert [pid for pid in pids if running(pid)] == []
    assert await runtime.read_log_tail(request.name) == "hello"
    saved = engines.state / "logs" / "ended" / f"{request.name}.log"
    assert saved.read_text() == "hello\n"
    assert stat.S_IMODE(saved.stat().st_mode) == 0o600


async def test_starting_a_name_again_and_ending_it_again_are_no_errors(engines: ContractEngines) -> None:
    runtime, request = await start_shell(engines)
    before = engines.identity(request.name)
    await runtime.start_replica(request)
    assert engines.identity(request.name) == before

    await runtime.stop_replica(request.name, 30)
    await runtime.stop_replica(request.name, 30)
    await runtime.remove_replica(request.name)
    assert await runtime.list_replicas() == []
    assert await runtime.read_host_mib(request.name) is None


async def test_what_runs_is_not_removed(engines: ContractEngines) -> None:
    runtime, request = await start_shell(engines)
    before = engines.identity(request.name)
    await runtime.remove_replica(request.name)
    assert (await only(runtime)).phase is Phase.RUNNING
    assert engines.identity(request.name) == before


async def test_several_are_started_and_stopped_at_once(engines: ContractEngines) -> None:
    runtime = engines.runtime()
    requests = [engines.request(engines.shell(RUN), attempt=attempt) for attempt in range(1, 4)]
    await asyncio.gather(*(runtime.start_replica(request) for request in requests))
    seen = await runtime.list_replicas()
    assert {each.name for each in seen} == {request.name for request in requests}
    assert len({each.base_url for each in seen}) == 3
    pids = [pid for request in requests for pid in engines.pids(request.name)]
    await asyncio.gather(*(runtime.stop_replica(request.name, 30) for request in requests))
    assert await runtime.list_replicas() == []
    assert [pid for pid in pids if running(pid)] == []


async def test_concurrent_ends_are_one(engines: ContractEngines) -> None:
    runtime, request = await start_shell(engines)
    pids = engines.pids(request.name)
    await asyncio.gather(
        runtime.stop_replica(request.name, 30),
        runtime.stop_replica(request.name, 30),
        runtime.remove_replica(request.name),
    )
    assert [pid for pid in pids if running(pid)] == []
    assert await runtime.list_replicas() == []


async def test_concurrent_removals_are_one(engines: ContractEngines) -> None:
    runtime = engines.runtime()
    for attempt in range(1, 1 + campaign_count(2, 20)):
        request = engines.request(engines.shell("echo x"), attempt=attempt)
        await runtime.start_replica(request)
        await exited(runtime)
        await asyncio.gather(*(runtime.remove_replica(request.name) for _ in range(4)))
        assert await runtime.list_replicas() == []


async def test_an_engine_that_ends_when_asked_is_given_time_and_is_not_waited_for_longer(
    engines: ContractEngines,
) -> None:
    body = f"trap 'echo leaving; sleep 0.3; echo left; exit 0' TERM; {says_and_waits('here')}"
    runtime, request = await start_shell(engines, body)
    await wait_for_log(runtime, request.name, "here")
    async with asyncio.timeout(60):
        await runtime.stop_replica(request.name, 3600)
    assert await runtime.read_log_tail(request.name) == "here\nleaving\nleft"


async def test_an_engine_that_ignores_its_stop_signal_runs_for_its_grace_and_is_killed_with_its_children(
    engines: ContractEngines,
) -> None:
    """And a stop whose caller went away can be made again."""
    runtime, request = await start_shell(
        engines, f"(trap '' TERM; exec sleep 600) & trap 'echo asked' TERM; {says_and_waits('up')}"
    )
    await wait_for_log(runtime, request.name, "up")
    await until("its two children", lambda: len(engines.pids(request.name)) >= 3)
    stop = asyncio.create_task(runtime.stop_replica(request.name, 3600))
    await wait_for_log(runtime, request.name, "asked")
    assert not stop.done()
    assert (await only(runtime)).phase is Phase.RUNNING
    stop.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stop
    assert (await only(runtime)).phase is Phase.RUNNING

    pids = engines.pids(request.name)
    await runtime.stop_replica(request.name, 0.2)
    assert await runtime.list_replicas() == []
    assert [pid for pid in pids if running(pid)] == []


async def test_a_stop_whose_caller_leaves_at_once_can_be_made_again(engines: ContractEngines) -> None:
    runtime, request = await start_shell(engines, f"trap '' TERM; {RUN}")
    pids = engines.pids(request.name)
    stop = asyncio.create_task(runtime.stop_replica(request.name, 3600))
    await asyncio.sleep(0)
    stop.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stop
    await runtime.stop_replica(request.name, 0)
    assert await runtime.list_replicas() == []
    assert [pid for pid in pids if running(pid)] == []


async def test_a_start_that_fails_says_why_and_leaves_nothing(engines: ContractEngines) -> None:
    runtime = engines.runtime()
    request, words = engines.unstartable()
    with pytest.raises(StartError, match=words):
        await runtime.start_replica(request)
    assert await runtime.list_replicas() == []
    assert engines.left() == []
    assert await runtime.read_log_after(request.name, None) is None


@pytest.mark.parametrize("fault", [ValueError("no such option"), TypeError("no number"), KeyError("program")])
async def test_a_definition_without_a_command_line_fails_for_good(
    engines: ContractEngines, monkeypatch: pytest.MonkeyPatch, fault: Exception
) -> None:
    def render_command(*_: object) -> Launch:
        raise fault

    runtime = engines.runtime()
    request = engines.request(engines.shell(RUN))
    monkeypatch.setattr(type(get_engine(request.definition)), "render_command", render_command)
    with pytest.raises(
        StartError, match=f"the definition of m cannot be turned into a command line: {fault}"
    ) as caught:
        await runtime.start_replica(request)
    assert caught.value.permanent
    assert await runtime.list_replicas() == []


async def test_what_cannot_be_reached_is_unavailable_and_never_empty(engines: ContractEngines) -> None:
    request = engines.request(engines.shell(RUN))
    await engines.runtime().start_replica(request)
    before = engines.identity(request.name)
    name = request.name
    with engines.unreachable() as runtime:
        for call in (
            runtime.list_replicas(),
            runtime.stop_replica(name, 0),
            runtime.remove_replica(name),
            runtime.read_host_mib(name),
        ):
            with pytest.raises(RuntimeUnavailableError):
                await call
    assert (await only(runtime)).phase is Phase.RUNNING
    assert engines.identity(name) == before
