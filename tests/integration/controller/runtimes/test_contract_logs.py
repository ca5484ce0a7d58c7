"""The contract of runtimes: engines' logs as they grow, where to go on, and what is kept of them."""

from __future__ import annotations

import pytest

from tests.support.runtime_contract import (
    RUN,
    ContractEngines,
    LogReader,
    exited,
    give,
    says_and_waits,
    start_shell,
    wait_for_log,
    waiting_for,
)
from tests.support.wait import until

pytestmark = pytest.mark.engines

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
