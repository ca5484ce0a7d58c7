"""Real engines as processes, beside the contract's; how ends become events, and how logs are bounded."""

from __future__ import annotations

import asyncio
import errno
import os
import signal

import pytest
import uvloop

from contract.desired import Definition
from controller.engines.ct2 import CT2Definition
from controller.engines.llama_cpp import LlamaCppDefinition
from controller.engines.llama_server import LlamaServerDefinition
from controller.engines.vllm import VllmServeDefinition
from controller.runtimes.base import RuntimeUnavailableError
from controller.runtimes.process.groups import ExitWatch, Process, read_stat, wait_any
from controller.state import Phase
from tests.support.clockwork_folders import make_ct2
from tests.support.process_engines import ProcessEngines
from tests.support.runtime_contract import RUN, LogReader, ended, only, ready, running, serve_and_end, start_shell
from tests.support.wait import until
from worker.clockwork import SENTENCE, make_model

pytestmark = pytest.mark.engines


async def test_ctranslate2_serves_and_ends_as_a_process(processes: ProcessEngines) -> None:
    make_ct2(processes.models / "m")
    await serve_and_end(processes, CT2Definition(backend="ct2", model_path="m"), SENTENCE)


@pytest.mark.embedded
async def test_a_killed_launcher_ends_its_server(processes: ProcessEngines, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(processes.root))
    make_model(processes.models / "clockwork.gguf")
    runtime = processes.runtime()
    request = processes.request(processes.llama_server("clockwork.gguf"))
    await runtime.start_replica(request)
    await ready(runtime)
    family = processes.pids(request.name)
    assert len(family) > 1
    processes.kill(request.name)
    exit_ = await ended(runtime)
    assert exit_.code == -signal.SIGKILL
    assert [each for each in family if running(each)] == []
    await runtime.remove_replica(request.name)
    await runtime.close()


async def test_preflight_names_what_is_missing(processes: ProcessEngines, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = processes.runtime()
    (processes.models / "m.gguf").write_bytes(b"GGUF")

    async def error(definition: Definition) -> str | None:
        return (await runtime.check_preflight("m", definition, None)).error

    missing = processes.root / "llama-server"
    named = LlamaServerDefinition(model_path="m.gguf", llama_server_binary=str(missing))
    assert await error(named) == f"program {missing} does not exist"
    (processes.models / "hf").mkdir()
    (processes.models / "hf" / "config.json").write_text('{"auto_map": {"AutoModel": "m.Own"}}')
    wrong = await error(VllmServeDefinition(backend="vllm_serve", model_path="hf"))
    assert (wrong or "").startswith("model_path: hf brings code of its own along (m.Own, in ")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    wrong = await error(LlamaCppDefinition(backend="llama_cpp", model_path="m.gguf"))
    assert wrong == "Python package llama_cpp is not installed: pip install 'roundhouse[llama-cpp]'"


async def test_what_is_gone_renders_no_more(processes: ProcessEngines) -> None:
    runtime, definition = processes.runtime(), processes.stub()
    await runtime.start_replica(processes.request(definition))
    seen = await only(runtime)
    await runtime.stop_replica(seen.name, 0)
    assert await runtime.render_replica(seen, definition, None) is None


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
def test_an_end_is_an_event_in_the_controller_s_event_loop(processes: ProcessEngines, adopted: bool) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(killed_engine_is_an_event(processes, adopted=adopted))


async def test_an_event_needs_no_timer(processes: ProcessEngines, monkeypatch: pytest.MonkeyPatch) -> None:
    """Were ends looked for again and again, the loop would set one."""
    timers: list[float] = []
    runtime, request = await start_shell(processes)
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
async def test_ends_are_seen_without_pidfds(
    processes: ProcessEngines, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(pid: int, flags: int = 0) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "pidfd_open", refuse)
    await killed_engine_is_an_event(processes, adopted=False)
    runtime, request = await start_shell(processes, attempt=2)
    await runtime.stop_replica(request.name, 30)
    assert await runtime.list_replicas() == []


async def test_waiting_has_its_limit() -> None:
    stat = read_stat(os.getpid())
    assert stat is not None
    await wait_any([stat.process], 0.01)
    await wait_any([], 0)
