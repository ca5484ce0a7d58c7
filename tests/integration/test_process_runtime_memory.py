"""What an engine's processes are seen to hold, and whose processes on GPUs are."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from controller.runtimes.nvml import NvmlReader
from tests.fakes.fake_nvml import FakeNvml
from tests.support.ballast import HELD_MIB, PROGRAM
from tests.support.process_engines import RUN, Place, end_all, numbers, only, request_for, until

PYTHON_MIB = 40
"""More than two bare interpreters take."""


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path)
    yield place
    end_all(place)


async def test_what_processes_share_counts_once_and_what_is_only_cached_does_not_count(place: Place) -> None:
    program = place.root / "ballast.py"
    program.write_text(PROGRAM)
    runtime = place.runtime()
    request = request_for(place.definition(f"exec {sys.executable} -S {program}", env={"BALLAST": str(place.root)}))
    assert await runtime.host_mib(request.name) is None
    await runtime.start(request)
    await until(lambda: "holds it" in place.log(request.name).read_text(), "the ballast")
    held = await runtime.host_mib(request.name)
    assert held is not None
    assert HELD_MIB <= held <= HELD_MIB + PYTHON_MIB
    assert await place.runtime().host_mib(request.name) is not None, "another controller sees it too"
    await runtime.stop(request.name, 5)
    assert await runtime.host_mib(request.name) is None


async def test_processes_on_gpus_are_those_of_the_engine_and_its_children(place: Place) -> None:
    fake = FakeNvml()
    card = fake.add(uuid="GPU-a", bus=1)
    runtime = place.runtime(nvml=NvmlReader(fake, host_pids=True))
    pids = place.root / "pids"
    request = request_for(place.definition(f"setsid sleep 600 & echo $$ > {pids}; echo $! >> {pids}; {RUN}"))
    await runtime.start(request)
    await until(lambda: len(numbers(pids)) == 2, "its pids")
    leader, child = numbers(pids)
    card.computing = {1: 5, leader: 300, child: 400}
    [gpu] = await runtime.gpus() or ()
    seen = {each.pid: (each.mib, each.replica) for each in gpu.processes or ()}
    assert seen == {1: (5, None), leader: (300, request.name), child: (400, request.name)}
    assert all(each.name for each in gpu.processes or ())

    await runtime.stop(request.name, 5)
    card.computing = {child: 400}
    [gpu] = await runtime.gpus() or ()
    left = [(each.pid, each.replica) for each in gpu.processes or ()]
    assert left == [(child, request.name)], "it is gone, and its memory is not yet"
    await runtime.close()


async def test_a_mig_instance_is_shown_to_its_engine_by_uuid(place: Place) -> None:
    fake = FakeNvml()
    fake.add(uuid="GPU-a", bus=1).add(2, "MIG-x", total_mib=4864)
    runtime = place.runtime(nvml=NvmlReader(fake))
    out = place.root / "visible"
    body = f'echo "$CUDA_DEVICE_ORDER $CUDA_VISIBLE_DEVICES" > {out}.new; mv {out}.new {out}; {RUN}'
    await runtime.start(request_for(place.definition(body), claims={"MIG-x": 4000}))
    await until(out.exists, "its environment")
    assert out.read_text() == "PCI_BUS_ID MIG-x\n"
    assert (await only(runtime)).claims == {"MIG-x": 4000}
    await runtime.close()
