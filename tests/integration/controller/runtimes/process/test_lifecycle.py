"""What a replica is as a process: its environment, its port, its record. The rest is the contract's.

tests/integration/controller/runtimes/test_contract_*.py hold what processes have in common with containers.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import signal
import socket
import stat
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager

import pytest

from controller.engines import ENGINES
from controller.hosts import Gpu
from controller.runtimes.base import RuntimeUnavailableError, StartError
from controller.runtimes.nvml import NvmlReader
from controller.runtimes.process import launch
from controller.runtimes.process import runtime as process_runtime
from controller.runtimes.process.groups import Process, is_alive
from controller.runtimes.process.logs import ProcessLogs
from tests.fakes.fake_nvml import FakeNvml
from tests.support.process_engines import INSTANCE, ProcessEngines, wait_for
from tests.support.runtime_contract import RUN, exited, only
from tests.support.wait import until

pytestmark = pytest.mark.engines


async def test_an_end_waits_for_a_start_whose_caller_has_gone(processes: ProcessEngines) -> None:
    go = threading.Event()

    class SlowReader(NvmlReader):
        def read_gpus(self) -> tuple[Gpu, ...] | None:
            go.wait(60)
            return (Gpu("GPU-a", 0, "NVIDIA Fake", 1000),)

    runtime = processes.runtime(nvml=SlowReader(FakeNvml()))
    request = processes.request(processes.shell(RUN), claims={"GPU-a": 10})
    start = asyncio.create_task(runtime.start_replica(request))
    await asyncio.sleep(0)
    start.cancel()
    with pytest.raises(asyncio.CancelledError):
        await start
    stop = asyncio.create_task(runtime.stop_replica(request.name, 30))
    done, _ = await asyncio.wait([stop], timeout=0.1)
    assert not done
    go.set()
    await stop
    assert await runtime.list_replicas() == []


async def test_an_end_during_a_look_keeps_its_exit_code(
    processes: ProcessEngines, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ends_now(leader: Process) -> bool:
        os.kill(leader.pid, signal.SIGKILL)
        wait_for(lambda: not is_alive(leader), "the engine's end")
        return False

    runtime = processes.runtime()
    await runtime.start_replica(processes.request(processes.shell(RUN)))
    monkeypatch.setattr(process_runtime, "is_alive", ends_now)
    seen = await only(runtime)
    assert seen.exit is not None
    assert seen.exit.code == -signal.SIGKILL


async def test_an_engine_gets_a_curated_environment(processes: ProcessEngines, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROUNDHOUSE_API_KEYS", "secret-of-the-controller")
    monkeypatch.setenv("HF_TOKEN", "secret-of-the-controller")
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2")
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    runtime = processes.runtime()
    out = processes.root / "env"
    body = f"env > {out}.new; readlink /proc/self/fd/0 >> {out}.new; pwd >> {out}.new; mv {out}.new {out}; {RUN}"
    request = processes.request(processes.shell(body, env={"MINE": "yes", "CUDA_VISIBLE_DEVICES": "7"}))
    with stdin_of_ours():
        await runtime.start_replica(request)
    await until("the engine's environment", out.exists)
    lines = out.read_text().splitlines()
    env = dict(line.split("=", 1) for line in lines[:-2])
    assert lines[-2:] == ["/dev/null", str(processes.state / "work" / request.name)]
    assert "secret-of-the-controller" not in env.values()
    assert "HTTPS_PROXY" not in env
    assert env["PATH"] == os.environ["PATH"]
    assert env["LC_ALL"] == "C.UTF-8"
    assert env["MINE"] == "yes"
    assert env["CUDA_VISIBLE_DEVICES"] == ""
    assert env["LLAMA_API_KEY"] == request.token
    assert env["ROUNDHOUSE_REPLICA"] == request.name
    assert env["ROUNDHOUSE_INSTANCE"] == INSTANCE
    assert request.token not in processes.record_path(request.name).read_text()

    pid = processes.leader(request.name)
    assert os.getsid(pid) == pid
    await runtime.stop_replica(request.name, 30)


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


async def test_claims_make_gpus_visible_by_their_pci_index(processes: ProcessEngines) -> None:
    fake = FakeNvml()
    for bus, uuid in ((0x41, "GPU-c"), (0x01, "GPU-a"), (0x21, "GPU-b")):
        fake.add(uuid=uuid, bus=bus)
    runtime = processes.runtime(nvml=NvmlReader(fake))
    out = processes.root / "env"
    body = f'echo "$CUDA_DEVICE_ORDER $CUDA_VISIBLE_DEVICES" > {out}.new; mv {out}.new {out}; {RUN}'
    request = processes.request(processes.shell(body), claims={"GPU-c": 100, "GPU-b": 100})
    await runtime.start_replica(request)
    await until("the engine's environment", out.exists)
    assert out.read_text() == "PCI_BUS_ID 1,2\n"
    assert (await only(runtime)).claims == {"GPU-c": 100, "GPU-b": 100}
    await runtime.stop_replica(request.name, 30)

    with pytest.raises(StartError, match="GPU GPU-x is not there"):
        await runtime.start_replica(processes.request(processes.shell(RUN), claims={"GPU-x": 1}))
    fake.fail("Unknown")
    with pytest.raises(StartError, match="cannot be read now: Unknown Error"):
        await runtime.start_replica(request)
    assert await runtime.list_replicas() == []


async def test_a_mig_instance_is_shown_to_its_engine_by_uuid(processes: ProcessEngines) -> None:
    fake = FakeNvml()
    fake.add(uuid="GPU-a", bus=1).add(2, "MIG-x", total_mib=4864)
    runtime = processes.runtime(nvml=NvmlReader(fake))
    out = processes.root / "env"
    body = f'echo "$CUDA_DEVICE_ORDER $CUDA_VISIBLE_DEVICES" > {out}.new; mv {out}.new {out}; {RUN}'
    await runtime.start_replica(processes.request(processes.shell(body), claims={"MIG-x": 4000}))
    await until("the engine's environment", out.exists)
    assert out.read_text() == "PCI_BUS_ID MIG-x\n"
    assert (await only(runtime)).claims == {"MIG-x": 4000}
    await runtime.close()


async def test_vllm_is_not_started_on_a_mig_instance(processes: ProcessEngines) -> None:
    fake = FakeNvml()
    fake.add(uuid="GPU-a", bus=1).add(2, "MIG-x", total_mib=4864)
    runtime = processes.runtime(nvml=NvmlReader(fake))
    definition = ENGINES["vllm"].definition.model_validate({"backend": "vllm", "model_path": "m", "gpus": 1})
    with pytest.raises(StartError, match="vllm as a process cannot use the MIG instance 0:2") as caught:
        await runtime.start_replica(processes.request(definition, claims={"MIG-x": 4000}))
    assert caught.value.permanent
    assert await runtime.list_replicas() == []
    await runtime.close()


async def test_a_program_that_cannot_be_run_leaves_nothing(processes: ProcessEngines) -> None:
    runtime = processes.runtime()
    request, words = processes.unstartable()
    with pytest.raises(StartError, match=words) as caught:
        await runtime.start_replica(request)
    assert caught.value.permanent
    program = processes.root / "odd"
    program.write_text("neither a script nor a program")
    program.chmod(0o755)
    with pytest.raises(StartError, match="Exec format error"):
        await runtime.start_replica(processes.request(processes.shell(RUN, llama_server_binary=str(program))))
    assert await runtime.list_replicas() == []
    assert not [path for path in processes.state.rglob("*") if path.is_file()]


async def test_a_start_whose_log_another_process_has_leaves_it_that_log(processes: ProcessEngines) -> None:
    runtime = processes.runtime()
    request = processes.request(processes.shell(RUN))
    with processes.log(request.name).open("w") as log:
        fcntl.flock(log, fcntl.LOCK_EX)
        log.write("of another process")
        log.flush()
        with pytest.raises(StartError, match="temporarily unavailable"):
            await runtime.start_replica(request)
    assert processes.log(request.name).read_text() == "of another process"
    assert await runtime.list_replicas() == []


async def test_a_start_without_a_free_descriptor_leaves_no_record(
    processes: ProcessEngines, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = processes.runtime()

    def refuse(*_: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        for name in ("open_log", "is_written_to"):
            patch.setattr(ProcessLogs, name, refuse)
        with pytest.raises(StartError, match="Too many open files"):
            await runtime.start_replica(processes.request(processes.shell(RUN)))
    assert await runtime.list_replicas() == []


async def test_a_taken_port_shows_as_an_early_end(processes: ProcessEngines) -> None:
    runtime = processes.runtime()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        args = ["--port", str(taken.getsockname()[1])]
        request = processes.request(processes.stub(extra_args=args))
        await runtime.start_replica(request)
        seen = await exited(runtime)
    assert seen.exit is not None
    assert seen.exit.code == 3
    assert "is taken" in seen.exit.log_tail


async def test_engines_have_different_ports(processes: ProcessEngines, monkeypatch: pytest.MonkeyPatch) -> None:
    def first_free(host: str, taken: Collection[int]) -> int:
        time.sleep(0.02)  # others have time to be told the same
        return min(set(range(40_000, 40_100)) - set(taken))

    monkeypatch.setattr(launch, "find_free_port", first_free)
    runtime = processes.runtime()
    definition = processes.shell(RUN)
    requests = [processes.request(definition, attempt=attempt) for attempt in range(1, 9)]
    await asyncio.gather(*(runtime.start_replica(request) for request in requests))
    urls = {seen.base_url for seen in await runtime.list_replicas()}
    assert urls == {f"http://127.0.0.1:{port}" for port in range(40_000, 40_008)}
    for request in requests:
        await runtime.stop_replica(request.name, 30)


async def test_files_and_folders_are_for_their_owner_alone(processes: ProcessEngines) -> None:
    before = os.umask(0)
    try:
        runtime = processes.runtime(log_mib=1)
        request = processes.request(processes.shell(f"echo hello; {RUN}"))
        await runtime.start_replica(request)
        await until("output", lambda: processes.log(request.name).stat().st_size > 0)
        await runtime.stop_replica(request.name, 30)
        await runtime.start_replica(request)
    finally:
        os.umask(before)
    paths = [path for path in processes.state.rglob("*") if path.parent != processes.state / "work" / request.name]
    assert {path.relative_to(processes.state).parts[0] for path in paths} == {"replicas", "logs", "work", "cache"}
    for path in paths:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path
    await runtime.stop_replica(request.name, 30)


async def test_names_of_other_instances_are_refused(processes: ProcessEngines) -> None:
    other = processes.other_instance().runtime()
    name = processes.request(processes.shell(RUN)).name
    for end in (other.stop_replica(name, 0), other.remove_replica(name)):
        with pytest.raises(ValueError, match="not a replica of instance test2"):
            await end


@pytest.mark.parametrize("content", ["", "{", '{"schema_version": 2}'])
async def test_a_record_that_cannot_be_read_makes_the_state_unknown(processes: ProcessEngines, content: str) -> None:
    runtime = processes.runtime()
    processes.record_path(f"rh-{INSTANCE}-m-0-12345678-1").write_text(content)
    with pytest.raises(RuntimeUnavailableError, match="is no record of schema version 1"):
        await runtime.list_replicas()
    processes.record_path("rh-another-m-0-12345678-1").write_text(content)
    processes.record_path(f"rh-{INSTANCE}-m-0-12345678-1").unlink()
    assert await runtime.list_replicas() == []


async def test_there_are_no_images(processes: ProcessEngines) -> None:
    with pytest.raises(StartError, match="no images"):
        await processes.runtime().pull_image("an/image")
