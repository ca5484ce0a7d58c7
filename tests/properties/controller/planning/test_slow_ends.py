"""Engines that take long to end, and whose GPU memory is free late or in steps: who waits for it has not failed."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final, Literal

from hypothesis import given, settings
from hypothesis import strategies as st

from controller.executor import OperationState
from controller.hosts import Gpu, GpuProcess
from controller.planning.actions import WAITING_FOR_ROOM, Action, Start, Stop
from controller.planning.placement import FOREIGN_USE, RELEASE_S
from controller.state import DesiredModel, ObservedReplica, ObservedState, OpKind, PendingOp, Phase, Statement
from tests.support.campaign import campaign_count
from tests.support.world import TrafficSimulator, World, autoload

TOTAL_MIB: Final = 1_000
DRIVER_MIB: Final = 6
"""In use with nothing running."""

Told = Literal["processes", "some processes", "nothing"]
"""What the driver tells of the processes that hold memory. `some processes`: of an engine that is being stopped one
alone, with a part of its memory."""


@dataclass
class SlowHost(World):
    """GPUs whose engines end `end_s` after their stop, and are seen as ended for `exited_s` before they are gone. Their
    memory is free in equal parts, the last one `release_s` after their end."""

    end_s: float = 0.0
    exited_s: float = 0.0
    release_s: float = 0.0
    release_steps: int = 1
    told: Told = "processes"
    ends_at: dict[str, float] = field(default_factory=dict)
    held: list[tuple[str, float, int]] = field(default_factory=list)
    """GPU, when it is free, and MiB, of memory of engines that have ended."""
    memory: OperationState = field(default_factory=OperationState)
    seen: tuple[ObservedReplica, ...] = ()

    def observed(self) -> ObservedState:
        """What one complete observation sees."""
        for name, at in list(self.ends_at.items()):
            if self.now >= at and self.replicas[name].phase is Phase.RUNNING:
                self.replicas[name] = replace(self.replicas[name], phase=Phase.EXITED)
                self._hold_memory(self.replicas[name].claims, at)
            if self.now >= at + self.exited_s:
                del self.ends_at[name], self.pending[name], self.replicas[name]
        self.held = [each for each in self.held if each[1] > self.now]
        replicas = tuple(self.replicas.values())
        self.memory.note_released_gpus(self.seen, replicas, self.now)
        self.seen = replicas
        self.gpus = tuple(self._read_gpu(gpu) for gpu in self.gpus)
        return replace(super().observed(), left_at=dict(self.memory.left_at))

    def _hold_memory(self, claims: object, since: float) -> None:
        assert isinstance(claims, dict)
        for uuid, mib in claims.items():
            for step in range(self.release_steps):
                share = mib * (step + 1) // self.release_steps - mib * step // self.release_steps
                self.held.append((uuid, since + self.release_s * (step + 1) / self.release_steps, share))

    def _read_gpu(self, gpu: Gpu) -> Gpu:
        running = [each for each in self.replicas.values() if each.phase is Phase.RUNNING and gpu.uuid in each.claims]
        used = DRIVER_MIB + sum(each.claims[gpu.uuid] for each in running)
        used += sum(mib for uuid, _, mib in self.held if uuid == gpu.uuid)
        assert used <= gpu.total_mib * (1 + FOREIGN_USE), f"{used} MiB are in use"
        processes = []
        for number, each in enumerate(running):
            is_partly = self.told == "some processes" and each.name in self.ends_at
            mib = each.claims[gpu.uuid] // (4 if is_partly else 1)
            processes.append(GpuProcess(number, mib, "engine", each.name))
        return replace(gpu, used_mib=used, processes=None if self.told == "nothing" else tuple(processes))

    def _apply(self, action: Action) -> None:
        if isinstance(action, Start):
            for uuid, mib in action.claims.items():
                gpu = next(gpu for gpu in self.gpus if gpu.uuid == uuid)
                has_room = gpu.used_mib + mib <= gpu.total_mib
                is_alone = mib == gpu.total_mib and gpu.used_mib <= FOREIGN_USE * gpu.total_mib
                assert has_room or is_alone, f"{action} starts beside {gpu.used_mib} MiB in use"
        if isinstance(action, Stop):
            replica = self.replicas[action.name]
            self.pending[action.name] = PendingOp(OpKind.STOP, action.id, replica.claims, self.now)
            self.ends_at[action.name] = self.now + self.end_s
        else:
            super()._apply(action)


def on_gpu(name: str, mib: int | None, **fields: object) -> DesiredModel:
    """A model that a request loads onto a GPU. `mib` None: what it takes is not known, so it gets a GPU to itself."""
    return replace(autoload(name, 0, **fields), memory_mib=None, gpu_count=1, vram_mib=mib)


hosts = st.fixed_dictionaries(
    {
        "end_s": st.sampled_from((0.0, 5.0, 29.0, 31.0, 60.0)),
        "exited_s": st.sampled_from((0.0, 3.0)),
        "release_s": st.sampled_from((0.0, 2.0, 20.0, RELEASE_S - 5)),
        "release_steps": st.integers(1, 4),
        "told": st.sampled_from(("processes", "some processes", "nothing")),
    }
)


def simulate(models: list[DesiredModel], host: dict[str, object], gpus: int = 1) -> TrafficSimulator:
    """Traffic of these models on such a host."""
    table = TrafficSimulator({model.name: model for model in models}, 0)
    world = SlowHost(table.world.desired, **host)  # type: ignore[arg-type]
    # What the driver keeps is not for engines.
    world.gpus = tuple(Gpu(f"G{number}", number, "x", TOTAL_MIB + DRIVER_MIB) for number in range(gpus))
    table.world = world
    return table


def step(table: TrafficSimulator) -> None:
    """One second, or more where only ends are waited for; nobody fails in it."""
    table.step()
    made = table.world.plan()
    assert [each for each in made.blocked if each.failed] == []
    assert isinstance(table.world, SlowHost)
    if (table.world.ends_at or table.world.held) and not made.actions and not any(table.inside.values()):
        table.world.now += 1.0


@settings(max_examples=campaign_count(20, 600), deadline=None)
@given(hosts, st.integers(300, 1_000), st.none() | st.integers(701, 1_000), st.sampled_from(("autoload", "load")))
def test_who_waits_for_a_slow_end_waits_in_words_and_starts_soon_after_it(
    host: dict[str, object], first: int, second: int | None, wanted_by: Literal["autoload", "load"]
) -> None:
    table = simulate([on_gpu("a", first), on_gpu("b", second, min_residency_s=0.0)], host)
    table.ask("a")
    for _ in range(8):
        step(table)
    assert table.loaded() == {"a"}
    table.ask("b")
    if wanted_by == "load":
        statement = Statement("load", table.world.now, "loaded by operator")
        loaded = replace(table.models["b"], replicas=1, demand_replicas=0, statement=statement)
        table.world.desired = replace(table.world.desired, models={**table.world.desired.models, "b": loaded})
    asked_at = table.world.now
    world = table.world
    assert isinstance(world, SlowHost)
    while not table.served["b"]:
        step(table)
        words = [each.reason for each in world.plan().blocked if each.model == "b"]
        assert all(each.startswith((WAITING_FOR_ROOM, "GPU 0 is busy with")) for each in words), words
        assert world.now <= asked_at + world.end_s + world.exited_s + world.release_s + 20, world.plan()
    assert table.evictions == ["a"]
    assert table.loads == {"a": 1, "b": 1}


@settings(max_examples=campaign_count(6, 600), deadline=None)
@given(
    hosts,
    st.integers(1, 2),
    st.lists(st.sampled_from((300, 500, 800)), min_size=3, max_size=3),
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3), st.integers(1, 20)), min_size=3, max_size=8),
)
def test_everybody_is_served_though_ends_are_slow(
    host: dict[str, object], gpus: int, sizes: list[int], traffic: list[tuple[str, int, int]]
) -> None:
    """What may be in use and claimed is asserted by the host, what may be stopped by the simulator."""
    table = simulate([on_gpu(name, mib) for name, mib in zip("abc", sizes, strict=True)], host, gpus)
    asked = 0
    for name, count, pause in traffic:
        table.ask(name, count)
        asked += count
        for _ in range(pause):
            step(table)
    for _ in range(1_500):
        if table.quiet:
            break
        step(table)
    assert table.quiet, f"somebody waits: {table.waiting}; {table.world.plan()}"
    assert sum(table.served.values()) == asked
    # Each request of a model that is not loaded costs an eviction or two at most: nobody goes back and forth.
    assert len(table.evictions) <= 2 * len(traffic)


def test_what_ends_is_waited_for_only_while_it_would_make_room() -> None:
    """Beside a pinned model there is room for the one that ends, and none for the one that asks."""
    for need, fails in ((600, False), (601, True)):
        table = simulate([on_gpu("p", 400, pinned=True), on_gpu("a", 500), on_gpu("b", need)], {"end_s": 60.0})
        for name in "pa":
            table.ask(name)
        for _ in range(12):
            table.step()
        assert table.loaded() == {"p", "a"}
        table.ask("b")
        failures = set()
        for _ in range(90):
            table.step()
            failures |= {each.reason for each in table.world.plan().blocked if each.failed}
        if fails:
            assert failures == {f"needs {need} MiB on each of 1 GPU; free: GPU 0 has 100 of 1006 MiB"}
            assert table.evictions == [], "it would go for nothing"
        else:
            assert (failures, table.served["b"]) == (set(), 1), need


def test_an_unload_that_takes_long_is_waited_for_where_nothing_else_makes_room() -> None:
    """An operator's unload has no deadline: its requests may take as long as they take."""
    table = simulate([on_gpu("u", 800), on_gpu("b", 500)], {"end_s": 5.0})
    table.ask("u")
    for _ in range(8):
        table.step(takes_s=100.0)
    assert table.inside["u"], "a request that takes 100 s"
    models, statement = table.world.desired.models, Statement("unload", table.world.now, "unloaded by operator")
    unloaded = replace(models["u"], replicas=0, autoload=False, drain_ends=False, statement=statement)
    table.world.desired = replace(table.world.desired, models={**models, "u": unloaded})
    table.ask("b")
    words = set()
    while not table.served["b"]:
        table.step()
        made = table.world.plan()
        assert [each for each in made.blocked if each.failed] == []
        words |= {each.reason for each in made.blocked}
        assert table.world.now < 1_300, made
    assert f"{WAITING_FOR_ROOM}: u is ending" in words
