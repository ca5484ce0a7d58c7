"""The contract of runtimes: one engine from start to end, whatever it runs as; whose it is, and its log."""

from __future__ import annotations

import asyncio
import stat
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest

from controller.engines import ENGINES, get_engine
from controller.engines.base import Launch
from controller.hosts import HOST
from controller.observe.prober import LoadProgress
from controller.runtimes.base import Runtime, RuntimeUnavailableError, StartError
from controller.runtimes.logs import EXIT_LINES
from controller.state import Phase
from tests.support.campaign import campaign_count
from tests.support.runtime_contract import (
    RUN,
    ContractEngines,
    LogReader,
    ended,
    exited,
    give,
    only,
    running,
    says_and_waits,
    start_shell,
    wait_for_log,
    waiting_for,
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


async def test_an_engine_that_ends_when_asked_is_given_time_and_no_more(engines: ContractEngines) -> None:
    body = f"trap 'echo leaving; sleep 0.3; echo left; exit 0' TERM; {says_and_waits('here')}"
    runtime, request = await start_shell(engines, body)
    await wait_for_log(runtime, request.name, "here")
    async with asyncio.timeout(60):
        await runtime.stop_replica(request.name, 3600)
    assert await runtime.read_log_tail(request.name) == "here\nleaving\nleft"


async def test_an_engine_that_ignores_its_stop_signal_is_killed_after_its_grace(engines: ContractEngines) -> None:
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


async def phases_at(runtime: Runtime, events: AsyncIterator[None], reported: list[Phase]) -> None:
    """Look at every event, as the controller does, and never without one."""
    async for _ in events:
        reported[:] = [seen.phase for seen in await runtime.list_replicas()]


@pytest.mark.parametrize("adopted", [False, True])
async def test_an_end_wakes_whoever_waits_for_events(engines: ContractEngines, adopted: bool) -> None:
    runtime = engines.runtime()
    request = engines.request(engines.shell(RUN))
    await runtime.start_replica(request)
    if adopted:
        runtime = engines.runtime()
        await runtime.list_replicas()
    reported: list[Phase] = []
    watch = asyncio.create_task(phases_at(runtime, runtime.watch_events(), reported))
    await asyncio.sleep(0)
    engines.kill(request.name)
    await until("the end was told", lambda: reported == [Phase.EXITED])
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


COUNT = "i=0; while [ $i -lt 30 ]; do echo line $i; i=$((i+1)); sleep 0.01; done"


async def test_a_log_is_followed_to_its_end_and_beyond_the_replica_s(engines: ContractEngines) -> None:
    body = f"echo begin; {waiting_for(engines, 'go')}; {COUNT}; printf 'last words'; exit 3"
    runtime, request = await start_shell(engines, body)
    reader = LogReader(runtime, request.name)
    await until("the first line", reader.read)
    give(engines, "go")
    expected = ["begin", *(f"line {number}" for number in range(30)), "last words"]
    assert await reader.finish() == expected
    assert reader.parts > 1
    assert await runtime.list_ended_logs("m") == [], "it is not gone yet"

    await runtime.remove_replica(request.name)
    assert await runtime.list_ended_logs("m") == [request.name]
    assert await runtime.list_ended_logs("other") == []
    assert await reader.read() == expected, "nothing is repeated"
    again = LogReader(engines.runtime(), request.name, 2)
    assert await again.read() == ["line 29", "last words"]
    assert not again.running


async def test_a_stop_in_the_middle_loses_no_line(engines: ContractEngines) -> None:
    body = f"trap 'echo leaving; echo left; exit 0' TERM; echo one; echo same; {says_and_waits('same')}"
    runtime, request = await start_shell(engines, body)
    await wait_for_log(runtime, request.name, "same\nsame")
    reader = LogReader(runtime, request.name)
    assert await reader.read() == ["one", "same", "same"]
    await runtime.stop_replica(request.name, 30)
    assert await reader.read() == ["one", "same", "same", "leaving", "left"]
    assert not reader.running


async def test_another_controller_goes_on_where_one_was(engines: ContractEngines) -> None:
    body = f"echo one; {waiting_for(engines, 'go')}; echo two; {waiting_for(engines, 'end')}; echo three; exit 1"
    runtime, request = await start_shell(engines, body)
    reader = LogReader(runtime, request.name)
    await until("one", reader.read)
    await runtime.close()
    reader.runtime = engines.runtime()
    give(engines, "go")

    async def both() -> bool:
        return await reader.read() == ["one", "two"]

    await until("two", both)
    assert reader.running
    give(engines, "end")
    await exited(reader.runtime)
    reader.runtime = engines.runtime()
    assert await reader.finish() == ["one", "two", "three"]


async def test_a_burst_comes_in_bounded_parts_with_long_lines_whole(engines: ContractEngines) -> None:
    long = "head -c 40000 /dev/zero | tr '\\0' x"
    burst = f"printf begin; {long}; echo end; seq -f '%06g {'y' * 90}' 1 6000"
    runtime, request = await start_shell(
        engines, f"echo first; {waiting_for(engines, 'go')}; {{ {burst}; }} | cat; {RUN}"
    )
    reader = LogReader(runtime, request.name)
    await until("the first line", reader.read)
    give(engines, "go")
    await wait_for_log(runtime, request.name, "006000")

    async def all_of_it() -> bool:
        return (await reader.read())[-1].startswith("006000")

    await until("the last line", all_of_it)
    assert reader.parts > 2
    assert reader.lines[:2] == ["first", f"begin{'x' * 40000}end"]
    assert [int(line[:6]) for line in reader.lines[2:]] == list(range(1, 6001))
    assert reader.running


async def test_what_is_kept_of_a_log_is_bounded(engines: ContractEngines) -> None:
    runtime = engines.runtime(log_mib=2)
    body = f"seq -f 'line %08g {'x' * 80}' 1 60000; echo done; {waiting_for(engines, 'go')}; echo more; {RUN}"
    request = engines.request(engines.shell(body))
    await runtime.start_replica(request)
    await wait_for_log(runtime, request.name, "done")
    await runtime.list_replicas()
    assert 100_000 < engines.log_bytes(request.name) <= 2 * 2**20
    give(engines, "go")
    await wait_for_log(runtime, request.name, f"line 00060000 {'x' * 80}\ndone\nmore")
    await runtime.stop_replica(request.name, 30)
    saved = engines.state / "logs" / "ended" / f"{request.name}.log"
    assert 10_000 < saved.stat().st_size <= 64 * 1024
    assert (await runtime.read_log_tail(request.name, 2)) == "done\nmore"


async def test_only_names_of_this_instance_s_replicas_have_logs(engines: ContractEngines) -> None:
    runtime = engines.runtime()
    name = f"rh-{engines.instance}-m-0-12345678-1"
    bad = ("", "..", "a", f"{name}/../x", "../replicas/x", f"rh-{engines.instance}-../json")
    for each in (name, *bad, f"rh-{engines.instance}-../../../etc/passwd", "rh-other-m-0-12345678-1"):
        assert await runtime.read_log_after(each, None) is None, each
    assert await runtime.read_log_tail(name) == ""


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
