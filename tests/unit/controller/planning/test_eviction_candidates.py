"""Which models could be let go, and what that would cost."""

from __future__ import annotations

from dataclasses import replace

import pytest

from controller.planning.eviction import _join_names
from controller.planning.eviction_candidates import (
    LONGEST_RESIDENCY_S,
    UNUSED,
    EvictionCandidate,
    alive_replicas,
    candidate_of,
    is_evictable,
    pending_models,
)
from controller.state import (
    DesiredModel,
    Draining,
    ModelTraffic,
    ObservedReplica,
    ObservedState,
    OpKind,
    PendingOp,
    Phase,
    ReplicaId,
    Statement,
)
from tests.support.traffic_simulator import autoload
from tests.unit.controller.planning.test_eviction_rules import NOW, engine

A = replace(autoload("a", 100), replicas=2, statement=Statement("autoload", 0.0, "asked for"))


def replica(index: int = 0, **fields: object) -> ObservedReplica:
    """One that loaded from 1,000 to 1,010."""
    return engine("a", {}, index=index, **{"started_at": 1_000.0, "ready_since": 1_010.0} | fields)


def resident(*replicas: ObservedReplica, want: DesiredModel = A, **observed: object) -> EvictionCandidate | None:
    """What is known of the model's replicas."""
    state = ObservedState(NOW, replicas, **observed)  # type: ignore[arg-type]
    return candidate_of(want, replicas, state, NOW, pending_models(state))


def known(*replicas: ObservedReplica, want: DesiredModel = A, **observed: object) -> EvictionCandidate:
    """One that could be let go."""
    found = resident(*replicas, want=want, **observed)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("kind", "fields", "expected"),
    [
        ("autoload", {}, True),
        ("file", {}, True),
        ("load", {}, False),
        ("unload", {}, False),
        ("autoload", {"pinned": True}, False),
        ("autoload", {"autoload": False}, False),
    ],
)
def test_who_may_go(kind: str, fields: dict[str, bool], expected: bool) -> None:
    want = replace(A, statement=replace(A.statement, kind=kind), **fields)  # type: ignore[arg-type]
    assert is_evictable(want) is expected
    assert (resident(replica(), want=want) is not None) is expected
    assert not is_evictable(None)


def test_what_does_not_run_or_is_not_wanted_cannot_go() -> None:
    assert resident() is None
    assert resident(replica(), want=replace(A, replicas=0)) is None
    assert resident(replica(), replica(1, ready_since=None)) is None, "it loads"
    assert alive_replicas(ObservedState(NOW, (replica(), replica(1, ready_since=None)))).keys() == {"a"}
    assert alive_replicas(ObservedState(NOW, (replace(replica(), phase=Phase.CREATED),))) == {}


def test_what_is_under_way_for_it_decides_and_not_what_is_for_others() -> None:
    stop = PendingOp(OpKind.STOP, ReplicaId("a", 0, "new", 1), {}, NOW)
    assert resident(replica(), pending={"a-0": stop}) is None
    assert resident(replica(), pending={"b-0": replace(stop, id=ReplicaId("b", 0, "new", 1))}) is not None
    assert resident(replica(), pending={"b-0": replace(stop, id=ReplicaId("b", 0, "new", 1)), "a-0": stop}) is None


def test_who_is_inside() -> None:
    two = (replica(), replica(1))
    assert known(*two, inflight={"a-0": 1, "a-1": 2}).inflight == 3
    assert known(*two, inflight={"a-1": 2}).inflight == 2, "a gateway that says nothing of it has none"
    assert known(*two).inflight == 0
    lost = known(*two, inflight={"a-0": 0, "a-1": None})
    assert (lost.inflight, lost.is_busy, lost.has_known_traffic) == (None, True, False)


def test_use() -> None:
    assert (known(replica()).traffic, known(replica()).is_busy, known(replica()).has_known_traffic) == (
        UNUSED,
        False,
        True,
    )
    asked = known(replica(), traffic={"a": ModelTraffic(1, 2_000.0)})
    assert (asked.is_busy, asked.has_known_traffic) == (True, True)
    lost = known(replica(), traffic={"a": ModelTraffic(None)})
    assert (lost.is_busy, lost.has_known_traffic) == (True, False)


def test_since_when_it_idles() -> None:
    assert known(replica()).idle_since == 1_010.0
    assert known(replica(), replica(1, ready_since=3_000.0)).idle_since == 3_000.0
    assert known(replica(), traffic={"a": ModelTraffic(0, None, 2_000.0)}).idle_since == 2_000.0
    assert known(replica(), traffic={"a": ModelTraffic(0, None, NOW + 500)}).idle_since == NOW, "the clock was set back"


def test_what_a_reload_takes_and_how_long_it_stays_for_that() -> None:
    both = known(replica(), replica(1, started_at=900.0))
    assert (both.reload_s, both.stays_until) == (110.0, 1_010.0 + LONGEST_RESIDENCY_S)
    assert (known(replica()).reload_s, known(replica()).stays_until) == (10.0, 1_020.0)
    adopted = known(replica(started_at=None))
    assert (adopted.reload_s, adopted.stays_until) == (0.0, 1_010.0)
    assert known(replica(started_at=2_000.0)).stays_until == 1_010.0, "the clock was set back while it loaded"
    assert known(replica(), want=replace(A, min_residency_s=500.0)).stays_until == 1_510.0
    assert known(replica(), want=replace(A, min_residency_s=0.0)).stays_until == 1_010.0


def test_it_leaves_when_all_of_it_drains() -> None:
    drains = Draining(NOW - 1, True)
    assert known(replica(draining=drains), replica(1, draining=drains)).is_leaving
    assert not known(replica(draining=drains), replica(1)).is_leaving


def test_the_first_to_go_is_the_one_that_idles_longest_for_what_its_reload_costs() -> None:
    base = known(replica())
    large = replace(base, name="large", idle_since=NOW - 200, reload_s=50.0)
    small = replace(base, name="small", idle_since=NOW - 100, reload_s=1.0)
    tiny = replace(base, name="tiny", idle_since=NOW - 40, reload_s=0.0)
    recent = replace(base, name="recent", idle_since=NOW - 1, reload_s=1.0)
    leaving = replace(recent, name="leaving", is_leaving=True)
    busy = replace(tiny, name="busy", inflight=1)
    busy_leaving = replace(busy, name="busy leaving", is_leaving=True)
    alike = replace(small, name="alike")
    ordered = sorted(
        [busy, recent, large, small, busy_leaving, alike, tiny, leaving], key=lambda each: each.eviction_order(NOW)
    )
    names = ["leaving", "tiny", "alike", "small", "large", "recent", "busy leaving", "busy"]
    assert [each.name for each in ordered] == names


def test_names_in_words() -> None:
    assert [_join_names(names) for names in ([], ["a"], ["a", "b"])] == ["others", "a", "a and b"]
