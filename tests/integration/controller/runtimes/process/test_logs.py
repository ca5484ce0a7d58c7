"""How processes' logs are bounded: cut while an engine writes on. The rest is the contract's."""

from __future__ import annotations

import pytest

from tests.support.process_engines import ProcessEngines
from tests.support.runtime_contract import RUN, LogReader
from tests.support.wait import until

pytestmark = pytest.mark.engines


async def test_a_log_that_is_cut_while_it_is_followed_repeats_nothing(processes: ProcessEngines) -> None:
    runtime = processes.runtime(log_mib=1)
    body = f'i=0; while [ $i -lt 40 ]; do i=$((i+1)); seq -f "$i %05g {"x" * 60}" 1 1000; sleep 0.01; done'
    request = processes.request(processes.shell(body))
    await runtime.start_replica(request)
    lines = await LogReader(runtime, request.name).finish()
    seen = [tuple(int(word) for word in line.split()[:2]) for line in lines if line.endswith("x" * 60)]
    assert seen == sorted(set(seen))
    assert seen[-1] == (40, 1000)
    assert (processes.state / "logs" / f"{request.name}.log.1").exists()


async def test_a_log_is_bounded_and_its_end_is_kept(processes: ProcessEngines) -> None:
    runtime = processes.runtime(log_mib=1)
    go = processes.root / "go"
    body = f"seq -f 'line %09g' 100000; touch {go}; while [ -e {go} ]; do sleep 0.01; done; echo last; {RUN}"
    request = processes.request(processes.shell(body))
    await runtime.start_replica(request)
    await until("the engine's many lines", go.exists)
    assert processes.log(request.name).stat().st_size > 2**20
    await runtime.list_replicas()
    assert processes.log(request.name).stat().st_size == 0
    assert (await runtime.read_log_tail(request.name, 2)) == "line 000099999\nline 000100000"
    go.unlink()
    await until("a line after the cut", lambda: processes.log(request.name).read_bytes() == b"last\n")
    assert (await runtime.read_log_tail(request.name, 2)) == "line 000100000\nlast"

    await runtime.stop_replica(request.name, 30)
    (kept,) = [path for path in (processes.state / "logs").rglob("*") if path.is_file()]
    assert kept.stat().st_size <= 64 * 1024
    assert (await runtime.read_log_tail(request.name, 2)) == "line 000100000\nlast"
