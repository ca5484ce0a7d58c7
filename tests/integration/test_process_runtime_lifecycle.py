"""One engine from start to end, as a process."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from controller.engines.stub import StubDefinition
from controller.runtimes import process, process_launch
from controller.runtimes.base import RuntimeUnavailableError, StartError
from controller.runtimes.nvml import NvmlReader
from controller.runtimes.process_stat import Process, alive
from controller.state import Gpu, Phase
from tests.fakes.fake_nvml import FakeNvml
from tests.support.process_engines import (
    INSTANCE,
    RUN,
    Place,
    end_all,
    exited,
    only,
    request_for,
    running,
    until,
    wait_for,
    zombies,
)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path)
    yield place
    end_all(place)


async def test_an_engine_is_started_seen_and_ended(place: Place) -> None:
    runtime = place.runtime()
    request = request_for(place.definition(f"echo hello; {RUN}"))
    assert await runtime.list() == []

    await runtime.start(request)
    seen = await only(runtime)
    assert (seen.id, seen.name, seen.phase) == (request.id, request.name, Phase.RUNNING)
    record = place.record(request.name)
    assert seen.base_url == f"http://127.0.0.1:{record.port}"
    assert seen.argv[0] == str(place.root / "engine.sh")
    assert seen.started_at is not None
    assert seen.created_at <= seen.started_at
    assert record.pid is not None
    assert running(record.pid)
    await until(lambda: place.log(request.name).read_text() == "hello\n", "the engine's output")

    await runtime.stop(request.name, 30)
    assert await runtime.list() == []
    assert not running(record.pid)
    assert record.pid not in zombies()
    assert not place.record_path(request.name).exists()
    assert not list((place.state / "work").iterdir())
    assert await runtime.log_tail(request.name) == "hello"
    await runtime.close()


async def test_starting_a_name_again_and_ending_it_again_are_no_errors(place: Place) -> None:
    runtime = place.runtime()
    request = request_for(place.definition(RUN))
    await runtime.start(request)
    before = place.record(request.name)
    await runtime.start(request)
    assert place.record(request.name) == before

    await runtime.stop(request.name, 30)
    await runtime.stop(request.name, 30)
    await runtime.remove(request.name)
    assert await runtime.list() == []


async def test_an_end_waits_for_a_start_whose_caller_has_gone(place: Place) -> None:
    go = threading.Event()

    class SlowReader(NvmlReader):
        def read(self) -> tuple[Gpu, ...] | None:
            go.wait(60)
            return (Gpu("GPU-a", 0, "NVIDIA Fake", 1000),)

    runtime = place.runtime(nvml=SlowReader(FakeNvml()))
    request = request_for(place.definition(RUN), claims={"GPU-a": 10})
    start = asyncio.create_task(runtime.start(request))
    await asyncio.sleep(0)
    start.cancel()
    with pytest.raises(asyncio.CancelledError):
        await start
    stop = asyncio.create_task(runtime.stop(request.name, 30))
    done, _ = await asyncio.wait([stop], timeout=0.1)
    assert not done
    go.set()
    await stop
    assert await runtime.list() == []


async def test_an_end_has_its_exit_code_and_plain_last_lines(place: Place) -> None:
    runtime = place.runtime()
    body = r"""printf 'loading 10%%\rloading 100%%\r\n\033[31mfile is \033[0mbroken\n'; exit 7"""
    request = request_for(place.definition(body))
    await runtime.start(request)
    seen = await exited(runtime)
    assert seen.exit is not None
    assert (seen.exit.code, seen.exit.log_tail) == (7, "loading 100%\nfile is broken")

    # Another controller learns the code from the record.
    later = await only(place.runtime())
    assert later.exit == seen.exit
    await runtime.remove(request.name)
    assert await runtime.list() == []
    assert await runtime.log_tail(request.name) == "loading 100%\nfile is broken"


async def test_a_killed_engine_has_its_signal_as_code(place: Place) -> None:
    runtime = place.runtime()
    request = request_for(place.definition(RUN))
    await runtime.start(request)
    pid = place.record(request.name).pid
    assert pid is not None
    os.kill(pid, 9)
    seen = await exited(runtime)
    assert seen.exit is not None
    assert seen.exit.code == -9


async def test_an_end_in_the_middle_of_a_look_keeps_its_code(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def ends_now(leader: Process) -> bool:
        os.kill(leader.pid, 9)
        wait_for(lambda: not alive(leader), "the engine's end")
        return False

    runtime = place.runtime()
    await runtime.start(request_for(place.definition(RUN)))
    monkeypatch.setattr(process, "alive", ends_now)
    seen = await only(runtime)
    assert seen.exit is not None
    assert seen.exit.code == -9


async def test_the_engine_gets_a_curated_environment(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROUNDHOUSE_API_KEYS", "secret-of-the-controller")
    monkeypatch.setenv("HF_TOKEN", "secret-of-the-controller")
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2")
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    runtime = place.runtime()
    out = place.root / "env"
    body = f"env > {out}.new; readlink /proc/self/fd/0 >> {out}.new; pwd >> {out}.new; mv {out}.new {out}; {RUN}"
    request = request_for(place.definition(body, env={"MINE": "yes", "CUDA_VISIBLE_DEVICES": "7"}))
    with stdin_of_ours():
        await runtime.start(request)
    await until(out.exists, "the engine's environment")
    lines = out.read_text().splitlines()
    env = dict(line.split("=", 1) for line in lines[:-2])
    assert lines[-2:] == ["/dev/null", str(place.state / "work" / request.name)]
    assert "secret-of-the-controller" not in env.values()
    assert "HTTPS_PROXY" not in env
    assert env["PATH"] == os.environ["PATH"]
    assert env["LC_ALL"] == "C.UTF-8"
    assert env["MINE"] == "yes"
    assert env["CUDA_VISIBLE_DEVICES"] == ""
    assert env["LLAMA_API_KEY"] == request.token
    assert env["ROUNDHOUSE_REPLICA"] == request.name
    assert env["ROUNDHOUSE_INSTANCE"] == INSTANCE
    assert request.token not in place.record_path(request.name).read_text()

    pid = place.record(request.name).pid
    assert pid is not None
    assert os.getsid(pid) == pid
    await runtime.stop(request.name, 30)


@contextmanager
def stdin_of_ours() -> Iterator[None]:
    """Our own stdin is a pipe that nobody writes to."""
    before = os.dup(0)
    read, write = os.pipe()
    os.dup2(read, 0)
    try:
        yield
    finally:
        os.dup2(before, 0)
        for fd in (before, read, write):
            os.close(fd)


async def test_claims_make_gpus_visible_by_their_pci_index(place: Place) -> None:
    fake = FakeNvml()
    for bus, uuid in ((0x41, "GPU-c"), (0x01, "GPU-a"), (0x21, "GPU-b")):
        fake.add(uuid=uuid, bus=bus)
    runtime = place.runtime(nvml=NvmlReader(fake))
    out = place.root / "env"
    body = f'echo "$CUDA_DEVICE_ORDER $CUDA_VISIBLE_DEVICES" > {out}.new; mv {out}.new {out}; {RUN}'
    request = request_for(place.definition(body), claims={"GPU-c": 100, "GPU-b": 100})
    await runtime.start(request)
    await until(out.exists, "the engine's environment")
    assert out.read_text() == "PCI_BUS_ID 1,2\n"
    assert (await only(runtime)).claims == {"GPU-c": 100, "GPU-b": 100}
    await runtime.stop(request.name, 30)

    with pytest.raises(StartError, match="GPU GPU-x is not there"):
        await runtime.start(request_for(place.definition(RUN), claims={"GPU-x": 1}))
    fake.fail("Unknown")
    with pytest.raises(StartError, match="cannot be read: Unknown Error"):
        await runtime.start(request)
    assert await runtime.list() == []


async def test_a_program_that_cannot_be_run_leaves_nothing(place: Place) -> None:
    runtime = place.runtime()
    definition = place.definition(RUN)
    (place.root / "engine.sh").unlink()
    with pytest.raises(StartError, match=r"engine\.sh cannot be started: No such file") as caught:
        await runtime.start(request_for(definition))
    assert caught.value.permanent
    (place.root / "engine.sh").write_text("neither a script nor a program")
    (place.root / "engine.sh").chmod(0o755)
    with pytest.raises(StartError, match="Exec format error"):
        await runtime.start(request_for(definition))
    assert await runtime.list() == []
    assert not [path for path in place.state.rglob("*") if path.is_file()]


async def test_a_taken_port_shows_as_an_early_end(place: Place) -> None:
    runtime = place.runtime()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        args = ["--port", str(taken.getsockname()[1])]
        request = request_for(StubDefinition(backend="stub", extra_args=args))
        await runtime.start(request)
        seen = await exited(runtime)
    assert seen.exit is not None
    assert seen.exit.code == 3
    assert "is taken" in seen.exit.log_tail


async def test_engines_that_start_together_have_different_ports(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def first_free(host: str, taken: Collection[int]) -> int:
        time.sleep(0.02)  # others have time to be told the same
        return min(set(range(40_000, 40_100)) - set(taken))

    monkeypatch.setattr(process_launch, "free_port", first_free)
    runtime = place.runtime()
    definition = place.definition(RUN)
    requests = [request_for(definition, attempt=attempt) for attempt in range(1, 9)]
    await asyncio.gather(*(runtime.start(request) for request in requests))
    urls = {seen.base_url for seen in await runtime.list()}
    assert urls == {f"http://127.0.0.1:{port}" for port in range(40_000, 40_008)}
    for request in requests:
        await runtime.stop(request.name, 30)


async def test_a_log_is_bounded_and_its_end_is_kept(place: Place) -> None:
    runtime = place.runtime(log_mib=1)
    go = place.root / "go"
    body = f"seq -f 'line %09g' 100000; touch {go}; while [ -e {go} ]; do sleep 0.01; done; echo last; {RUN}"
    request = request_for(place.definition(body))
    await runtime.start(request)
    await until(go.exists, "the engine's many lines")
    assert place.log(request.name).stat().st_size > 2**20
    await runtime.list()
    assert place.log(request.name).stat().st_size == 0
    assert (await runtime.log_tail(request.name, 2)) == "line 000099999\nline 000100000"
    go.unlink()
    await until(lambda: place.log(request.name).read_bytes() == b"last\n", "a line after the cut")
    assert (await runtime.log_tail(request.name, 2)) == "line 000100000\nlast"

    await runtime.stop(request.name, 30)
    (kept,) = [path for path in (place.state / "logs").rglob("*") if path.is_file()]
    assert kept.stat().st_size <= 64 * 1024
    assert (await runtime.log_tail(request.name, 2)) == "line 000100000\nlast"


async def test_files_and_folders_are_for_their_owner_alone(place: Place) -> None:
    before = os.umask(0)
    try:
        runtime = place.runtime(log_mib=1)
        request = request_for(place.definition(f"echo hello; {RUN}"))
        await runtime.start(request)
        await until(lambda: place.log(request.name).stat().st_size > 0, "output")
        await runtime.stop(request.name, 30)
        await runtime.start(request)
    finally:
        os.umask(before)
    paths = [path for path in place.state.rglob("*") if path.parent != place.state / "work" / request.name]
    assert {path.relative_to(place.state).parts[0] for path in paths} == {"replicas", "logs", "work", "cache"}
    for path in paths:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path
    await runtime.stop(request.name, 30)


async def test_another_instances_replicas_are_not_touched(place: Place) -> None:
    ours, other = place.runtime(), place.runtime("test2")
    request = request_for(place.definition(RUN))
    await ours.start(request)
    assert await other.list() == []
    with pytest.raises(ValueError, match="not a replica of instance test2"):
        await other.stop(request.name, 0)

    # Nor is a record that has our name and another's id.
    record = place.record(request.name)
    place.record_path(request.name).write_text(record.model_copy(update={"instance": "test2"}).model_dump_json())
    assert await ours.list() == []
    await ours.stop(request.name, 0)
    await ours.remove(request.name)
    assert record.pid is not None
    assert running(record.pid)
    assert place.record_path(request.name).exists()


@pytest.mark.parametrize("content", ["", "{", '{"schema_version": 2}'])
async def test_a_record_that_cannot_be_read_makes_the_state_unknown(place: Place, content: str) -> None:
    runtime = place.runtime()
    place.record_path(f"rh-{INSTANCE}-m-0-12345678-1").write_text(content)
    with pytest.raises(RuntimeUnavailableError, match="is no record of schema version 1"):
        await runtime.list()
    place.record_path("rh-another-m-0-12345678-1").write_text(content)
    place.record_path(f"rh-{INSTANCE}-m-0-12345678-1").unlink()
    assert await runtime.list() == []


async def test_there_are_no_images(place: Place) -> None:
    with pytest.raises(StartError, match="no images"):
        await place.runtime().pull("an/image")
