"""What a container is seen to hold, and whose processes on GPUs are, on a real Docker Engine."""

from __future__ import annotations

import json
import shlex
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest

from controller.runtimes.docker_memory import in_use
from controller.runtimes.nvml import NvmlReader
from tests.fakes.fake_nvml import FakeNvml
from tests.support.ballast import HELD_MIB, PROGRAM
from tests.support.docker_engine import RUN, Yard, open_yard, said, shell

pytestmark = pytest.mark.docker

PYTHON_MIB = 40
"""More than two bare interpreters take."""


@pytest.fixture
async def yard(tmp_path: Path) -> AsyncIterator[Yard]:
    yard = open_yard(tmp_path)
    yield yard
    await yard.close()


async def test_what_processes_share_counts_once_and_what_is_only_cached_does_not_count(yard: Yard) -> None:
    runtime = yard.runtime()
    # On the volume: what is written to /tmp is memory.
    request = yard.request(shell(f'BALLAST="$HOME" exec python3 -S -c {shlex.quote(PROGRAM)}'))
    assert await runtime.host_mib(request.name) is None
    await runtime.start(request)
    await said(runtime, request.name, "holds it")
    held = await runtime.host_mib(request.name)
    assert held is not None
    assert HELD_MIB <= held <= HELD_MIB + PYTHON_MIB
    usage = yard.client.api.stats(request.name, stream=False, one_shot=True)["memory_stats"]["usage"]
    assert usage / 2**20 > held, "the file that was only read is in the kernel's cache"
    await runtime.stop(request.name, 1)
    assert await runtime.host_mib(request.name) is None
    foreign = yard.foreign(request.name)
    assert await runtime.host_mib(request.name) is None, "it is not ours"
    yard.client.containers.get(foreign).remove(force=True)


async def test_processes_on_gpus_are_those_of_the_containers(yard: Yard) -> None:
    fake = FakeNvml()
    card = fake.add(uuid="GPU-a", bus=1)
    runtime = yard.runtime(nvml=NvmlReader(fake, host_pids=True))
    first, second = yard.request(shell(f"sleep 600 & echo begun; {RUN}"), "m"), yard.request(shell(RUN), "n")
    for request in (first, second):
        await runtime.start(request)
    await said(runtime, first.name, "begun")
    mine = psutil.Process().pid
    expected: dict[int, str | None] = {mine: None}
    for request in (first, second):
        leader = psutil.Process(yard.inspect(request.name)["State"]["Pid"])
        tree = [leader, *leader.children(recursive=True)]
        expected |= {process.pid: request.name for process in tree}
    assert len(expected) >= 1 + 3 + 2, "init, the program, and the child of one"
    card.computing = dict.fromkeys(expected, 10)
    [gpu] = await runtime.gpus() or ()
    assert {each.pid: each.replica for each in gpu.processes or ()} == expected

    await runtime.stop(first.name, 1)
    [gpu] = await runtime.gpus() or ()
    assert {each.pid: each.replica for each in gpu.processes or ()} == expected, "as long as they hold memory"


def test_both_kinds_of_control_groups_are_read() -> None:
    first = json.loads('{"rss": 1, "total_rss": 300, "total_mapped_file": 70, "total_cache": 5000}')
    second = json.loads('{"anon": 300, "file": 5000, "file_mapped": 70, "inactive_file": 4000}')
    assert (in_use(first), in_use(second), in_use({})) == (370, 370, 0)
