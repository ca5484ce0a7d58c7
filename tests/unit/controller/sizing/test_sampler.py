"""When replicas are looked at, and what is made of it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from controller.engines.stub import StubDefinition
from controller.hosts import Gpu, GpuProcess, Host
from controller.memory_history import AGAIN_S, FILE_NAME, GROWN_MIB, MemoryHistory, MemorySampler, ObservedSample
from controller.model_status import Round
from controller.planning.gpu_use import SETTLED_S
from controller.state import (
    DesiredModel,
    DesiredState,
    Health,
    HeldMemory,
    ObservedReplica,
    ObservedState,
    OpKind,
    PendingOp,
    Phase,
    ReplicaId,
    Statement,
)
from tests.fakes.fake_runtime import FakeRuntime

KIND = "NVIDIA H200"


def wanted(name: str, *, gpus: int = 0) -> DesiredModel:
    definition = StubDefinition(backend="stub", gpus=gpus)
    return DesiredModel(name, definition, "stub", "h", 1, Statement("file", 0.0, ""), gpu_count=gpus)


class Bench:
    """A host of which each round tells what the test has set."""

    def __init__(self, folder: Path, *models: DesiredModel) -> None:
        self.folder = folder
        self.now = 1000.0
        self.desired = {model.name: model for model in models}
        self.used = {"GPU-a": 500, "GPU-b": 500}
        self.processes: dict[str, tuple[GpuProcess, ...] | None] = {"GPU-a": None, "GPU-b": None}
        self.unreadable = False
        self.is_unified = False
        self.replicas: dict[str, ObservedReplica] = {}
        self.pending: dict[str, PendingOp] = {}
        self.runtime = FakeRuntime(lambda: self.now)
        self.begin()

    def begin(self) -> None:
        self.known = MemoryHistory.load_history(self.folder)
        self.watch = MemorySampler(self.known, self.folder, self.runtime, lambda: self.now)

    async def round(self, issued: Mapping[str, OpKind] | None = None) -> None:
        """One more round, which issues operations in the end."""
        self.now += 1.0
        gpus = [
            Gpu(uuid, index, KIND, 80_000, mib, processes=self.processes[uuid], is_unified=self.is_unified)
            for index, (uuid, mib) in enumerate(self.used.items())
        ]
        for name, kind in (issued or {}).items():
            replica = self.replicas[name]
            self.pending[name] = PendingOp(kind, replica.id, replica.claims, self.now + 0.01)
        seen = None if self.unreadable else tuple(gpus)
        observed = ObservedState(self.now, tuple(self.replicas.values()), dict(self.pending), hosts=(Host(gpus=seen),))
        desired = DesiredState(1, self.desired)
        self.watch.follow_round(Round(desired, observed, cast("Any", None), ()))
        await asyncio.sleep(0)
        await asyncio.gather(*self.watch._tasks.values())
        self.pending.clear()

    def put(self, model: str, *uuids: str, spec_hash: str = "h") -> str:
        """A replica that is starting; its name."""
        name = f"rh-i-{model}-0-{spec_hash}-1"
        claims = dict.fromkeys(uuids, 10)
        replica = ReplicaId(model, 0, spec_hash)
        self.replicas[name] = ObservedReplica(replica, name, Phase.RUNNING, self.now, self.now, claims=claims)
        return name

    def ready(self, name: str) -> None:
        """It answers, just after the GPUs were read."""
        self.replicas[name] = replace(self.replicas[name], health=Health.READY, ready_since=self.now + 0.9)

    def serve(self, model: str, *uuids: str, held: int | None = None, **fields: str) -> str:
        """A replica that is ready, and holds so much main memory; its name."""
        name = self.put(model, *uuids, **fields)
        if held is not None:
            self.runtime.held[name] = held
        self.ready(name)
        return name

    async def begin_start(self, model: str, *uuids: str) -> str:
        """A replica that is started after the first round; its name."""
        name = self.put(model, *uuids)
        await self.round({name: OpKind.START})
        return name

    def tell(self, uuid: str, *processes: GpuProcess) -> None:
        """The driver tells of these processes."""
        self.processes[uuid] = processes

    async def later(self) -> None:
        """A round, when it is time to look again."""
        self.now += AGAIN_S
        await self.round()

    def of(self, model: str) -> ObservedSample | None:
        """What is known, on the GPUs if it has any."""
        want = self.desired[model]
        return self.known.observed_requirement(want, KIND if want.gpu_count else None)


async def test_without_a_gpu_main_memory_is_looked_at_once_it_is_ready_and_later_again(tmp_path: Path) -> None:
    bench = Bench(tmp_path, wanted("m"))
    name = bench.put("m")
    bench.runtime.held[name] = 300
    await bench.round()
    assert bench.of("m") is None, "it still loads"
    bench.ready(name)
    await bench.round()
    seen = ObservedSample(None, 300, 1, bench.now)
    assert bench.of("m") == seen
    assert MemoryHistory.load_history(tmp_path).observed_requirement(bench.desired["m"], None) == seen, "it is stored"
    bench.runtime.held[name] = 350
    await bench.round()
    assert bench.of("m") == seen
    await bench.later()
    assert bench.of("m") == ObservedSample(None, 350, 1, bench.now)
    bench.runtime.held[name] = 320
    bench.begin()
    await bench.round()
    known = ObservedSample(None, 350, 1, bench.now - 1)
    assert bench.of("m") == known, "a restarted controller does not look at once again"


async def test_where_no_process_is_told_it_is_what_the_gpu_has_in_use_more(tmp_path: Path) -> None:
    bench = Bench(tmp_path, wanted("m", gpus=2))
    name = await bench.begin_start("m", "GPU-a", "GPU-b")
    bench.used = {"GPU-a": 4500, "GPU-b": 4200}
    await bench.round()
    bench.ready(name)
    await bench.round()
    assert bench.of("m") is None, "this reading may be from just before it was ready"
    bench.used = {"GPU-a": 4700, "GPU-b": 4200}
    await bench.round()
    assert bench.of("m") == ObservedSample(4200, None, 1, bench.now)


async def test_nothing_is_made_of_a_replica_while_one_of_its_gpus_cannot_be_read(tmp_path: Path) -> None:
    bench = Bench(tmp_path, wanted("m", gpus=2))
    name = bench.serve("m", "GPU-a", "GPU-b", held=300)
    bench.processes = dict.fromkeys(bench.processes, (GpuProcess(7, 900, "python", name),))
    lost = bench.used.pop("GPU-b")
    await bench.round()
    assert bench.of("m") is None
    del bench.used["GPU-a"]
    await bench.round()
    assert bench.known.observed_requirement(bench.desired["m"], None) is None, "it is no engine without a GPU"
    bench.used = {"GPU-a": 1_400, "GPU-b": lost}
    await bench.round()
    assert bench.of("m") == ObservedSample(900, 300, 1, bench.now)


async def test_of_unified_memory_nothing_is_told_by_growth(tmp_path: Path) -> None:
    bench = Bench(tmp_path, wanted("m", gpus=1))
    bench.is_unified = True
    name = await bench.begin_start("m", "GPU-a")
    bench.used["GPU-a"] = 4_500
    bench.ready(name)
    await bench.round()
    await bench.round()
    assert bench.of("m") is None, "any process of the host may have taken it"
    bench.tell("GPU-a", GpuProcess(7, 3_000, "python", name))
    await bench.later()
    assert bench.of("m") == ObservedSample(3_000, None, 1, bench.now)


async def test_what_another_takes_after_it_is_not_counted(tmp_path: Path) -> None:
    bench = Bench(tmp_path, wanted("m", gpus=1), wanted("n", gpus=1))
    first = await bench.begin_start("m", "GPU-a")
    bench.used["GPU-a"] = 4500
    bench.ready(first)
    second = await bench.begin_start("n", "GPU-a")
    assert bench.of("m") == ObservedSample(4000, None, 1, bench.now), "the next reading would not be its own"
    bench.used["GPU-a"] = 9500
    await bench.round()
    bench.ready(second)
    await bench.round()
    await bench.round()
    assert bench.of("n") == ObservedSample(5000, None, 1, bench.now)
    await bench.later()
    assert bench.of("m") == ObservedSample(4000, None, 1, bench.now)


async def test_processes_tell_better_than_what_is_in_use(tmp_path: Path) -> None:
    bench = Bench(tmp_path, wanted("m", gpus=1))
    name = await bench.begin_start("m", "GPU-a")
    large, small = GpuProcess(1, 3000, None, name), GpuProcess(2, 700, None, name)
    bench.used["GPU-a"] = 9000
    bench.tell("GPU-a", large, small, GpuProcess(3, 5000, "Xorg"))
    bench.ready(name)
    await bench.round()
    await bench.round()
    assert bench.of("m") == ObservedSample(3700, None, 1, bench.now)
    bench.tell("GPU-a", replace(large, mib=3600), small)
    await bench.later()
    assert bench.of("m") == ObservedSample(4300, None, 1, bench.now)
    bench.tell("GPU-a", large, replace(small, mib=None))
    await bench.later()
    assert bench.of("m") == ObservedSample(8500, None, 1, bench.now), (
        "of one process it is unknown: what is in use more"
    )


async def test_of_one_that_is_taken_over_only_what_can_be_told_is_known(tmp_path: Path) -> None:
    bench = Bench(tmp_path, wanted("m", gpus=1), wanted("n", gpus=1))
    bench.tell("GPU-a", GpuProcess(1, 3000, None, bench.serve("m", "GPU-a")))
    bench.serve("n", "GPU-b", held=900)
    bench.unreadable = True
    await bench.round()
    assert (bench.of("m"), bench.of("n")) == (None, None)
    bench.unreadable = False
    await bench.round()
    assert bench.of("m") == ObservedSample(3000, None, 1, bench.now)
    assert bench.of("n") == ObservedSample(None, 900, 1, bench.now)


async def test_what_runs_with_other_parameters_is_not_looked_at(tmp_path: Path) -> None:
    bench = Bench(tmp_path, wanted("m"))
    bench.serve("m", held=300, spec_hash="older")
    await bench.round()
    assert bench.of("m") is None


async def test_a_runtime_that_does_not_answer_is_asked_again(tmp_path: Path) -> None:
    bench = Bench(tmp_path, wanted("m"))
    bench.serve("m", held=300)
    bench.runtime.unavailable = "it hangs"
    await bench.round()
    assert bench.of("m") is None
    bench.runtime.unavailable = None
    await bench.round()
    assert bench.of("m") is not None


async def test_a_fault_stays_here_and_is_not_repeated_in_every_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(tmp_path, wanted("m"))
    bench.serve("m")

    async def broken(_name: str) -> int | None:
        raise ZeroDivisionError

    monkeypatch.setattr(bench.runtime, "read_host_mib", broken)
    for _ in range(3):
        await bench.round()
    assert len(caplog.records) == 1


async def test_a_model_that_is_gone_is_forgotten_on_disk_too(tmp_path: Path) -> None:
    bench = Bench(tmp_path, wanted("m"))
    name = bench.serve("m", held=300)
    await bench.round()
    want = bench.desired.pop("m")
    del bench.replicas[name]
    await bench.round()
    assert MemoryHistory.load_history(tmp_path).observed_requirement(want, None) is None
    await bench.watch.close()


async def test_a_full_disk_is_said_and_harms_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(tmp_path, wanted("m"))
    (tmp_path / FILE_NAME).mkdir()
    bench.serve("m", held=300)
    await bench.round()
    assert bench.of("m") == ObservedSample(None, 300, 1, bench.now)
    assert "is not stored" in caplog.text


async def test_what_a_stranger_takes_later_is_not_counted_where_no_process_is_told(tmp_path: Path) -> None:
    bench = Bench(tmp_path, wanted("m", gpus=1))
    name = await bench.begin_start("m", "GPU-a")
    bench.used["GPU-a"] = 4500
    bench.ready(name)
    bench.unreadable = True
    await bench.round()
    await bench.round()
    assert bench.of("m") is None
    bench.unreadable = False
    await bench.round()
    bench.used["GPU-a"] = 70_000
    await bench.round()
    await bench.later()
    assert bench.of("m") == ObservedSample(4000, None, 1, bench.now)


async def test_what_grows_on_its_gpu_is_looked_at_at_once_and_the_most_is_what_it_holds(tmp_path: Path) -> None:
    bench = Bench(tmp_path, wanted("m", gpus=1))
    name = bench.put("m", "GPU-a")
    bench.runtime.held[name] = 300

    async def hold(mib: int) -> HeldMemory | None:
        bench.tell("GPU-a", GpuProcess(7, mib, "python", name))
        await bench.round()
        return bench.watch.get_held_memory(name)

    assert await hold(3_000) is None, "it still loads"
    bench.ready(name)
    assert await hold(3_000) == HeldMemory(3_000, 300)
    assert await hold(3_000 + GROWN_MIB - 1) == HeldMemory(3_000, 300), "that little can wait"
    assert await hold(3_000 + GROWN_MIB) == HeldMemory(3_000 + GROWN_MIB, 300)
    assert await hold(1_000) == HeldMemory(3_000 + GROWN_MIB, 300)
    bench.begin()
    assert bench.watch.get_held_memory(name) == HeldMemory(3_000 + GROWN_MIB, 300), "another controller knows it"
    assert bench.watch.get_held_memory("another") is None


async def settled(bench: Bench, name: str) -> Mapping[str, int] | None:
    """What is known of its GPUs once it has been ready for long enough; nothing is, before."""
    bench.ready(name)
    await bench.round()
    assert bench.watch.get_gpu_use().get(name) is None, "it may have been read before it was ready"
    bench.now += SETTLED_S
    await bench.round()
    return bench.watch.get_gpu_use().get(name)


async def test_what_a_ready_replica_holds_of_its_gpus_is_told_by_growth(tmp_path: Path) -> None:
    bench = Bench(tmp_path, wanted("m", gpus=2))
    name = await bench.begin_start("m", "GPU-a", "GPU-b")
    bench.used["GPU-a"] = 4500
    await bench.round()
    assert await settled(bench, name) == {"GPU-a": 4000, "GPU-b": 0}
    bench.used["GPU-a"] = 500
    await bench.round()
    assert bench.watch.get_gpu_use()[name] == {"GPU-a": 4000, "GPU-b": 0}, "what others do later is not counted"


async def test_it_is_told_by_processes_where_the_driver_names_them(tmp_path: Path) -> None:
    bench = Bench(tmp_path, wanted("m", gpus=1))
    name = bench.put("m", "GPU-a")
    bench.tell("GPU-a", GpuProcess(1, 3, None, name))
    assert await settled(bench, name) == {"GPU-a": 3}, "also of one that an earlier controller started"
    bench.tell("GPU-a", GpuProcess(1, 900, None, name))
    await bench.round()
    assert bench.watch.get_gpu_use()[name] == {"GPU-a": 900}
    bench.unreadable = True
    await bench.round()
    assert bench.watch.get_gpu_use() == {}


async def test_nothing_is_known_where_another_one_came_or_went_before_it_was_read(tmp_path: Path) -> None:
    bench = Bench(tmp_path, wanted("m", gpus=1), wanted("n", gpus=1))
    name, other = bench.put("m", "GPU-a"), bench.put("n", "GPU-a")
    bench.used["GPU-a"] = 9_000
    await bench.round({name: OpKind.START})
    bench.used["GPU-a"] = 9_900
    await bench.round()
    bench.used["GPU-a"] = 900
    await bench.round({other: OpKind.STOP})
    assert await settled(bench, name) is None


async def test_what_is_given_back_late_does_not_hide_what_it_holds(tmp_path: Path) -> None:
    bench = Bench(tmp_path, wanted("m", gpus=1))
    name = bench.put("m", "GPU-a")
    bench.used["GPU-a"] = 9_000
    await bench.round({name: OpKind.START})
    bench.used["GPU-a"] = 500
    await bench.round()
    bench.used["GPU-a"] = 4_500
    assert await settled(bench, name) == {"GPU-a": 4_000}
    again = Bench(tmp_path, wanted("m", gpus=1))
    assert await settled(again, again.put("m", "GPU-a")) is None, "it was taken over"
