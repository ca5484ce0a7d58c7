"""Which bucket a replica falls into; which replicas leave and since when, which are missing, and which come."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from controller.engines.stub import StubDefinition
from controller.planning.classify import Buckets, classify_replicas
from controller.planning.replica_changes import coming_replicas, leaving_replicas, missing_replicas
from controller.state import (
    HOST,
    DesiredModel,
    DesiredState,
    Draining,
    Health,
    ObservedReplica,
    ObservedState,
    OpKind,
    PendingOp,
    Phase,
    ReplicaId,
    Statement,
)

NOW = 1_000.0
CLAIMS = {HOST: 5}


def wanted(name: str = "m", replicas: int = 1, **fields: Any) -> DesiredModel:
    """A model of so many replicas, which a request loads."""
    statement = Statement("autoload", 0.0, "")
    known: dict[str, Any] = {"autoload": True} | fields
    return DesiredModel(name, StubDefinition(backend="stub"), "stub", "h", replicas, statement, **known)


def replica(name: str = "m-0", phase: Phase = Phase.RUNNING, **fields: Any) -> ObservedReplica:
    """One whose name says its model and its index."""
    model, _, index = name.rpartition("-")
    return ObservedReplica(ReplicaId(model, int(index), "h", 1), name, phase, 0.0, claims=CLAIMS, **fields)


def operation(kind: OpKind, began_at: float = 900.0, name: str = "m-0") -> PendingOp:
    return PendingOp(kind, replica(name).id, CLAIMS, began_at)


def seen(*replicas: ObservedReplica, **pending: PendingOp) -> ObservedState:
    """`pending`: by the replica's name, with `_` for `-`."""
    return ObservedState(NOW, replicas, {name.replace("_", "-"): each for name, each in pending.items()})


def desire(*models: DesiredModel) -> DesiredState:
    return DesiredState(1, {model.name: model for model in models})


DRAINING = Draining(since=800.0, idle=False)


@pytest.mark.parametrize(
    ("model", "observed", "since"),
    [
        (wanted(), seen(replica()), None),
        (wanted(replicas=2), seen(replica("m-1")), None),
        (wanted(), seen(replica(), m_0=operation(OpKind.START)), None),
        (wanted(), seen(replica(draining=DRAINING)), None),  # it may come back
        (wanted(), seen(replica(), m_0=operation(OpKind.STOP)), 900.0),
        (wanted(), seen(replica(), m_0=operation(OpKind.REMOVE)), 900.0),
        (wanted(), seen(replica(draining=DRAINING), m_0=operation(OpKind.STOP)), 800.0),
        (wanted(replicas=0), seen(replica()), NOW),
        (wanted(replicas=0), seen(replica(), m_0=operation(OpKind.START)), NOW),  # it is to begin to leave
        (wanted(replicas=0), seen(replica(draining=DRAINING)), 800.0),
        (wanted(), seen(replica("m-1")), NOW),
        (wanted(runs=False), seen(replica()), NOW),
        (wanted("other"), seen(replica()), NOW),
        (wanted(replicas=0), seen(replica(phase=Phase.EXITED)), None),
        (wanted(), seen(replica(phase=Phase.CREATED), m_0=operation(OpKind.REMOVE)), None),
    ],
)
def test_who_leaves_and_since_when(model: DesiredModel, observed: ObservedState, since: float | None) -> None:
    found = leaving_replicas(desire(model), observed)
    assert found == ([] if since is None else [(observed.replicas[0], since)])


@pytest.mark.parametrize(
    ("observed", "missing"),
    [
        (seen(), (0, 1)),
        (seen(replica("m-1")), (0,)),
        (seen(replica("m-0"), replica("m-1")), None),
        (seen(replica("m-0"), replica("m-5")), (1,)),
        (seen(replica("m-0", Phase.EXITED), replica("m-1")), (0,)),
        (seen(replica("m-0"), replica("m-1"), m_0=operation(OpKind.STOP)), (0,)),
        (seen(replica("m-0"), replica("m-1"), m_0=operation(OpKind.START)), None),
        (seen(replica("m-1"), m_0=operation(OpKind.START)), None),
        (seen(replica("m-1"), m_0=operation(OpKind.STOP)), (0,)),
        (seen(replica("n-0"), replica("m-1")), (0,)),
    ],
)
def test_which_indices_are_missing(observed: ObservedState, missing: tuple[int, ...] | None) -> None:
    found = missing_replicas(desire(wanted(replicas=2), wanted("remote", runs=False)), observed)
    assert found == ({} if missing is None else {"m": missing})


@pytest.mark.parametrize(
    ("observed", "claims"),
    [
        (seen(), []),
        (seen(replica()), [CLAIMS]),
        (seen(replica(), m_0=operation(OpKind.STOP)), []),
        (seen(replica(), m_0=operation(OpKind.START)), [CLAIMS]),  # once
        (seen(replica(phase=Phase.EXITED)), []),
        (seen(replica(phase=Phase.CREATED), m_0=operation(OpKind.START)), [CLAIMS]),
        (seen(m_0=operation(OpKind.START)), [CLAIMS]),
        (seen(m_0=operation(OpKind.REMOVE)), []),
        (seen(replica(), m_1=operation(OpKind.START, name="m-1")), [CLAIMS, CLAIMS]),
    ],
)
def test_who_comes_and_may_be_evicted_then(observed: ObservedState, claims: list[dict[str, int]]) -> None:
    assert coming_replicas(desire(wanted(replicas=2)), observed, {}) == ({"m": claims} if claims else {})
    assert coming_replicas(desire(wanted(replicas=2, pinned=True)), observed, {}) == {}


WANT = DesiredModel("m", StubDefinition(backend="stub"), "stub", "new", 1, Statement("file", 0.0, "enabled"))


@pytest.mark.parametrize("spec", ["new", "old"])
def test_of_two_replicas_at_one_index_the_one_that_serves_is_kept(spec: str) -> None:
    starting = ObservedReplica(ReplicaId("m", 0, spec, 1), "first", Phase.RUNNING, NOW - 20, NOW - 20)
    ready = replace(starting, id=ReplicaId("m", 0, spec, 2), name="second", health=Health.READY, ready_since=NOW - 10)
    buckets = classify_replicas(WANT, [starting, ready], [], NOW)
    kept = Buckets(current={0: ready}) if spec == "new" else Buckets(outdated={0: ready})
    assert buckets == replace(kept, surplus=[starting])
