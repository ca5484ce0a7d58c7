"""The contract of runtimes: what engines are seen to hold, of main memory and of GPUs."""

from __future__ import annotations

import os
import shlex
import sys

import psutil
import pytest

from controller.gpus import GpuDriver
from controller.runtimes.nvml import NvmlReader
from tests.fakes.fake_nvml import FakeNvml
from tests.support.ballast import HELD_MIB, PROGRAM
from tests.support.docker_engine import DockerEngines
from tests.support.runtime_contract import RUN, ContractEngines, wait_for_log
from tests.support.wait import until

pytestmark = pytest.mark.engines

PYTHON_MIB = 40
"""More than two bare interpreters take."""


async def test_what_processes_share_counts_once_and_what_is_only_cached_does_not_count(
    engines: ContractEngines,
) -> None:
    runtime = engines.runtime()
    # A container's folder is on its volume: what is written to /tmp there is memory.
    python, folder = ("python3", "$HOME") if isinstance(engines, DockerEngines) else (sys.executable, "$PWD")
    body = f'BALLAST="{folder}" exec {python} -S -c {shlex.quote(PROGRAM)}'
    request = engines.request(engines.shell(body))
    assert await runtime.read_host_mib(request.name) is None
    await runtime.start_replica(request)
    await wait_for_log(runtime, request.name, "holds it")
    held = await runtime.read_host_mib(request.name)
    assert held is not None
    assert HELD_MIB <= held <= HELD_MIB + PYTHON_MIB
    assert await engines.runtime().read_host_mib(request.name) is not None, "another controller sees it too"
    if isinstance(engines, DockerEngines):
        usage = engines.client.api.stats(request.name, stream=False, one_shot=True)["memory_stats"]["usage"]
        assert usage / 2**20 > held, "the file that was only read is in the kernel's cache"
    await runtime.stop_replica(request.name, 0)
    assert await runtime.read_host_mib(request.name) is None


def _count_sleeping(pids: list[int]) -> int:
    return sum(each.pid in pids for each in psutil.process_iter(["name"]) if each.info["name"] == "sleep")


async def test_processes_on_gpus_are_told_with_their_replicas(engines: ContractEngines) -> None:
    fake = FakeNvml()
    card = fake.add(uuid="GPU-a", bus=1)
    runtime = engines.runtime(nvml=NvmlReader(fake, host_pids=True))
    first = engines.request(engines.shell(f"setsid sleep 600 & {RUN}"), "m")
    second = engines.request(engines.shell(RUN), "n")
    await runtime.start_replica(first)
    await runtime.start_replica(second)
    # Before `sleep` runs, a replica's processes still come and go.
    await until("the child of one", lambda: _count_sleeping(engines.pids(first.name)) == 2)
    await until("the other's process", lambda: _count_sleeping(engines.pids(second.name)) == 1)
    expected: dict[int, str | None] = {os.getpid(): None}
    for request in (first, second):
        expected |= dict.fromkeys(engines.pids(request.name), request.name)
    card.computing = {pid: 10 + number for number, pid in enumerate(expected)}
    [gpu] = await runtime.read_gpus() or ()
    assert {each.pid: each.replica for each in gpu.processes or ()} == expected
    assert {each.pid: each.mib for each in gpu.processes or ()} == card.computing
    assert all(each.name for each in gpu.processes or ())

    await runtime.stop_replica(first.name, 0)
    [gpu] = await runtime.read_gpus() or ()
    assert {each.pid: each.replica for each in gpu.processes or ()} == expected, "as long as they hold memory"


async def test_the_driver_is_told_once_the_gpus_were_read(engines: ContractEngines) -> None:
    fake = FakeNvml()
    fake.add(uuid="GPU-a", bus=1)
    runtime = engines.runtime(nvml=NvmlReader(fake))
    assert runtime.get_gpu_driver() is None
    assert len(await runtime.read_gpus() or ()) == 1
    assert runtime.get_gpu_driver() == GpuDriver("570.195.03", "12.8", ("geforce",))


async def test_why_there_are_no_gpus_is_said(engines: ContractEngines) -> None:
    fake = FakeNvml()
    fake.fail("LibraryNotFound")
    runtime = engines.runtime(nvml=NvmlReader(fake))
    assert await runtime.read_gpus() == ()
    assert runtime.get_gpu_error() == "no NVIDIA driver: libnvidia-ml.so.1 was not found"
