"""Which bucket a replica falls into; which replicas leave and since when, which are missing, and which come."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from controller.engines.stub import StubDefinition
from controller.hosts import HOST
from controller.planning.classify import Buckets, classify_replicas
from controller.planning.replica_changes import coming_replicas, leaving_replicas, missing_replicas
from controller.state import (
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
    Sleep,
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


# Sleep


def asleep(name: str = "m-0", **fields: Any) -> ObservedReplica:
    return replica(name, health=Health.SLEEPING, ready_since=1.0, sleep=Sleep({}, CLAIMS, since=900.0), **fields)


REST = wanted(replicas=0, demand_replicas=1)


@pytest.mark.parametrize(
    ("model", "found"),
    [(wanted(), "asleep"), (REST, "asleep"), (wanted(replicas=0), "surplus"), (wanted("n"), "surplus"),
     (wanted(runs=False), "surplus"), (replace(REST, spec_hash="new"), "surplus")],
)  # fmt: skip
def test_who_sleeps_stays_while_its_model_is_wanted_or_rests_as_declared(model: DesiredModel, found: str) -> None:
    sleeps = asleep()
    buckets = classify_replicas(model if model.name == "m" else None, [sleeps], [], NOW, {})
    expected = Buckets(asleep={0: sleeps}) if found == "asleep" else Buckets(surplus=[sleeps])
    assert buckets == expected


def test_of_two_at_one_index_the_one_that_sleeps_goes() -> None:
    sleeps, other = asleep(), asleep("m-1")
    serves = replica(name="m-0", health=Health.READY, ready_since=1.0, started_at=1.0)
    serves = replace(serves, name="second")
    assert classify_replicas(wanted(), [sleeps, serves], [], NOW, {}) == Buckets(current={0: serves}, surplus=[sleeps])
    old = replace(serves, id=replace(serves.id, spec_hash="old"))
    assert classify_replicas(wanted(), [sleeps, old], [], NOW, {}) == Buckets(outdated={0: old}, surplus=[sleeps])
    begun = PendingOp(OpKind.START, serves.id, CLAIMS, 900.0)
    starts = classify_replicas(wanted(), [sleeps], [("third", begun)], NOW, {})
    assert (starts.current, starts.asleep, starts.surplus) == ({0: None}, {}, [sleeps])
    twin = replace(sleeps, name="second")
    assert classify_replicas(wanted(), [sleeps, twin], [], NOW, {}) == Buckets(asleep={0: sleeps}, surplus=[twin])
    faulty = replace(other, fault="it could not be woken")
    assert classify_replicas(wanted(), [faulty], [], NOW, {}).broken == [(faulty, "it could not be woken")]


def test_who_sleeps_is_missing_and_leaves_for_nobody_until_it_wakes() -> None:
    for model in (wanted(), REST):
        assert leaving_replicas(desire(model), seen(asleep())) == []
    assert missing_replicas(desire(wanted()), seen(asleep())) == {"m": (0,)}
    assert missing_replicas(desire(wanted()), seen(asleep(), m_0=operation(OpKind.WAKE))) == {}
    assert missing_replicas(desire(wanted()), seen(replica(), m_0=operation(OpKind.SLEEP))) == {"m": (0,)}
    assert coming_replicas(desire(wanted()), seen(asleep()), {}) == {}
    woken = PendingOp(OpKind.WAKE, asleep().id, {HOST: 9}, 900.0)
    assert coming_replicas(desire(wanted()), seen(asleep(), m_0=woken), {}) == {"m": [{HOST: 9}]}
    falls = seen(replica(), m_0=operation(OpKind.SLEEP))
    assert leaving_replicas(desire(wanted()), falls) == [(falls.replicas[0], 900.0)]
    assert coming_replicas(desire(wanted()), falls, {}) == {}
