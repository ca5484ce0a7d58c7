"""The contract of runtimes: whose engine it is. Found again by the next controller, and never somebody else's."""

from __future__ import annotations

from contextlib import suppress

import pytest

from controller.runtimes.base import StartError
from controller.state import HOST, Phase
from tests.support.runtime_contract import RUN, ContractEngines, only, running

pytestmark = pytest.mark.engines


async def test_another_controller_finds_what_the_first_one_started(engines: ContractEngines) -> None:
    first = engines.runtime()
    definition = engines.shell(f"sleep 600 & {RUN}")
    request = engines.request(definition, "team/model:1", attempt=2, claims={HOST: 64})
    await first.start_replica(request)
    before, identity = await only(first), engines.identity(request.name)
    await first.close()

    second = engines.runtime()
    assert await only(second) == before
    await second.start_replica(request)
    assert engines.identity(request.name) == identity, "adopted, not restarted"
    pids = engines.pids(request.name)
    await second.stop_replica(request.name, 30)
    assert await second.list_replicas() == []
    assert [pid for pid in pids if running(pid)] == []


@pytest.mark.parametrize("end", ["stop", "remove"])
async def test_what_was_only_half_created_is_listed_and_can_be_ended(engines: ContractEngines, end: str) -> None:
    request = engines.request(engines.shell(RUN), "team/model:1", attempt=2, claims={HOST: 64})
    await engines.half_created(request)
    runtime = engines.runtime()
    seen = await only(runtime)
    assert (seen.id, seen.name, seen.phase, seen.claims) == (request.id, request.name, Phase.CREATED, {HOST: 64})
    assert (seen.started_at, seen.base_url, seen.exit) == (None, None, None)
    await (runtime.stop_replica(request.name, 30) if end == "stop" else runtime.remove_replica(request.name))
    assert await runtime.list_replicas() == []
    assert engines.left() == []


async def test_two_instances_do_not_see_each_other(engines: ContractEngines) -> None:
    other = engines.other_instance()
    here, there = engines.runtime(), other.runtime()
    mine, others = engines.request(engines.shell(RUN)), other.request(other.shell(RUN))
    await here.start_replica(mine)
    await there.start_replica(others)
    before = other.identity(others.name)
    assert (await only(here)).name == mine.name
    assert (await only(there)).name == others.name
    assert await here.read_log_after(others.name, None) is None
    for end in (here.stop_replica(others.name, 0), here.remove_replica(others.name)):
        with suppress(ValueError):  # a runtime may refuse the name, or take it for one that is gone
            await end
    assert (await only(there)).phase is Phase.RUNNING
    await here.stop_replica(mine.name, 0)
    await here.close()
    assert (await only(there)).phase is Phase.RUNNING
    assert other.identity(others.name) == before
    await there.stop_replica(others.name, 0)


async def test_what_is_foreign_is_left_alone_whatever_its_name(engines: ContractEngines) -> None:
    runtime = engines.runtime()
    request = engines.request(engines.shell(RUN))
    engines.foreign(request.name)
    assert await runtime.list_replicas() == []
    assert await runtime.read_host_mib(request.name) is None
    assert await runtime.read_log_after(request.name, None) is None
    await runtime.stop_replica(request.name, 0)
    await runtime.remove_replica(request.name)
    with suppress(StartError):  # what has the name may be reported, and is never replaced
        await runtime.start_replica(request)
    assert await runtime.list_replicas() == []
    assert engines.foreign_runs(request.name)
