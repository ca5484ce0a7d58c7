"""Generated desired and observed states."""

from __future__ import annotations

from hypothesis import strategies as st

from controller.engines.stub import StubDefinition
from controller.hosts import Gpu
from controller.state import (
    DesiredModel,
    DesiredState,
    Draining,
    Exit,
    Failure,
    Health,
    ObservedReplica,
    OpKind,
    PendingOp,
    Phase,
    PreflightKey,
    PreflightResult,
    ReplicaId,
    ReplicaKey,
    Statement,
)
from tests.support.world import World

NOW = 1_000.0
NAMES = ("a", "b", "c")
HASHES = ("new", "old", "older")
TOTAL_MIB = 1_000


@st.composite
def models(draw: st.DrawFn, name: str) -> DesiredModel:
    gpu_count = draw(st.sampled_from((0, 0, 1, 1, 2)))
    return DesiredModel(
        name=name,
        definition=StubDefinition(backend="stub"),
        backend="stub",
        spec_hash="new",
        replicas=draw(st.integers(0, 3)),
        statement=Statement("file", 0.0, "enabled"),
        gpu_count=gpu_count,
        vram_mib=draw(st.sampled_from((None, 300, 600, 1_000))) if gpu_count else None,
        drain_ends=draw(st.booleans()),
        runs=draw(st.integers(0, 9)) > 0,
    )


@st.composite
def replicas(draw: st.DrawFn, room: dict[str, int]) -> ObservedReplica:
    """One replica of ours, in any condition; its claims fit into what `room` has left."""
    identity = ReplicaId(
        draw(st.sampled_from((*NAMES, "gone"))),
        draw(st.integers(0, 3)),
        draw(st.sampled_from(HASHES)),
        draw(st.integers(1, 3)),
    )
    phase = draw(st.sampled_from((Phase.RUNNING, Phase.RUNNING, Phase.RUNNING, Phase.EXITED, Phase.CREATED)))
    health = draw(st.sampled_from(tuple(Health))) if phase is Phase.RUNNING else Health.STARTING
    was_ready = health is not Health.STARTING
    claims = {}
    if draw(st.booleans()):
        for uuid in draw(st.sets(st.sampled_from(sorted(room)))) if room else ():
            mib = draw(st.integers(0, room[uuid]))
            room[uuid] -= mib
            claims[uuid] = mib
    draining = None
    if was_ready and draw(st.booleans()):
        draining = Draining(NOW - draw(st.sampled_from((10.0, 400.0))), draw(st.sampled_from((None, False, True))))
    return ObservedReplica(
        id=identity,
        name=f"{identity.model}-{identity.index}-{identity.spec_hash}-{identity.attempt}",
        phase=phase,
        created_at=NOW - 100,
        started_at=None if phase is Phase.CREATED else NOW - draw(st.sampled_from((1.0, 90.0, 5_000.0))),
        health=health,
        ready_since=NOW - 50 if was_ready else None,
        base_url="http://127.0.0.1:1",
        claims=claims,
        exit=Exit(1, log_tail="boom") if phase is Phase.EXITED else None,
        draining=draining,
    )


@st.composite
def worlds(draw: st.DrawFn) -> World:
    """Any mixture of desired models and leftovers."""
    gpus = tuple(Gpu(f"GPU-{i}", i, "fake", TOTAL_MIB) for i in range(draw(st.integers(0, 2))))
    room = {gpu.uuid: gpu.total_mib for gpu in gpus}
    names = draw(st.sets(st.sampled_from(NAMES)))
    desired = DesiredState(1, {name: draw(models(name)) for name in sorted(names)})
    found = {replica.name: replica for replica in draw(st.lists(replicas(room), max_size=6))}
    world = World(desired, NOW, found, gpus=gpus, loaded_once=frozenset(draw(st.sets(st.sampled_from(NAMES)))))
    for replica in found.values():
        if draw(st.integers(0, 5)) == 0:
            kind = OpKind.STOP if replica.phase is not Phase.CREATED else draw(st.sampled_from(tuple(OpKind)))
            world.pending[replica.name] = PendingOp(kind, replica.id, replica.claims, NOW - 1)
    for name in sorted(names):
        if draw(st.booleans()):
            world.preflights[PreflightKey(name, "new")] = draw(
                st.sampled_from(
                    (
                        PreflightResult(True, NOW - 1),
                        PreflightResult(True, NOW - 90),
                        PreflightResult(False, NOW - 1, "no file"),
                    )
                )
            )
        if draw(st.integers(0, 3)) == 0:
            key = ReplicaKey(name, draw(st.integers(0, 2)), "new")
            world.failures[key] = Failure(draw(st.integers(1, 4)), NOW - 1, "boom", NOW + 5, attempt=3)
    return world
