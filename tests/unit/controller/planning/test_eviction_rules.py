"""Who makes room for whom: situation by situation, what could be let go, and what is wanted once that is decided."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from controller.hosts import HOST, Gpu, GpuProcess, UnreadGpu
from controller.planning.actions import Plan, PutToSleep
from controller.planning.eviction import FRESH_DEMAND_S, EvictionDecision, _join_names, decide_evictions
from controller.planning.eviction_candidates import (
    LONGEST_RESIDENCY_S,
    UNUSED,
    EvictionCandidate,
    alive_replicas,
    candidate_of,
    is_evictable,
    pending_models,
)
from controller.planning.placement import ClaimLedger
from controller.planning.plan import plan
from controller.state import (
    DesiredModel,
    DesiredState,
    Draining,
    Failure,
    Health,
    ModelTraffic,
    ObservedReplica,
    ObservedState,
    OpKind,
    PendingOp,
    Phase,
    PreflightKey,
    PreflightResult,
    ReplicaId,
    ReplicaKey,
    Sleep,
    Statement,
)
from tests.support.world import autoload, observe

NOW = 10_000.0
ROOM = 1_000
IDLE = ModelTraffic(0, None, 1_500.0)
LONG_AGO, SINCE = 5_000.0, 9_900.0
WAITS = ModelTraffic(1, SINCE)


def wanted(model: DesiredModel, replicas: int = 1, since: float = SINCE) -> DesiredModel:
    statement = Statement("autoload", since, "autoload: a request asked for it")
    return replace(model, replicas=replicas, demand_replicas=0, statement=statement)


def on_gpu(name: str, mib: int, **fields: Any) -> DesiredModel:
    return replace(autoload(name, 0), memory_mib=None, gpu_count=1, vram_mib=mib, **fields)


def engine(model: str, claims: dict[str, int], **fields: Any) -> ObservedReplica:
    """A replica that has served for long."""
    known: dict[str, Any] = {
        "started_at": 990.0,
        "health": Health.READY,
        "ready_since": 1_000.0,
        "base_url": "http://x",
    }
    replica_id = ReplicaId(model, fields.pop("index", 0), "new", 1)
    return ObservedReplica(
        replica_id, f"{model}-{replica_id.index}", Phase.RUNNING, 990.0, claims=claims, **known | fields
    )


def planned(models: list[DesiredModel], replicas: list[ObservedReplica], **fields: Any) -> Plan:
    """The plan where all models are checked, and main memory is bounded."""
    checked = {PreflightKey(model.name, "new"): PreflightResult(True, NOW - 1) for model in models}
    known: dict[str, Any] = {"inflight": {each.name: 0 for each in replicas}, "host_mib": ROOM, "preflights": checked}
    observed = observe(NOW, replicas, **known | fields)
    return plan(DesiredState(1, {model.name: model for model in models}), observed, NOW)


def told(made: Plan) -> list[str]:
    """What is done and to whom, and what waits; failures are marked."""
    done = [f"{action.kind} {action.model}" for action in made.actions]
    return done + [f"{each.model}: {each.reason}{' FAILED' if each.failed else ''}" for each in made.blocked]


def test_what_an_engine_holds_is_what_its_leaving_frees() -> None:
    a, b = wanted(on_gpu("a", 500), since=LONG_AGO), wanted(on_gpu("b", 900))
    traffic = {"a": IDLE, "b": WAITS}
    for processes in ((GpuProcess(1, 700, "e", "a-0"),), None):
        gpu = Gpu("G", 0, "x", ROOM, used_mib=700, processes=processes)
        made = planned([a, b], [engine("a", {"G": 500})], gpus=(gpu,), traffic=traffic)
        assert told(made) == ["drain a", "b: waiting for room: a is ending"], "it holds more than it claims"
    other = (GpuProcess(1, 600, "e", "a-0"), GpuProcess(2, 200, "foreign"))
    gpu = Gpu("G", 0, "x", ROOM, used_mib=800, processes=other)
    made = planned([a, replace(b, vram_mib=850)], [engine("a", {"G": 900})], gpus=(gpu,), traffic=traffic)
    assert [action.kind for action in made.actions] == [], "it would go for nothing: the other process stays"
    assert made.blocked[0].failed


def test_engines_with_gpus_of_their_own_make_room_in_main_memory_for_each_other() -> None:
    gpus = (Gpu("G", 0, "x", ROOM), Gpu("H", 1, "x", ROOM))
    a, b = (replace(wanted(on_gpu(name, 400), since=LONG_AGO), memory_mib=600) for name in "ab")
    made = planned([a, b], [engine("a", {"G": 400, HOST: 600})], gpus=gpus, traffic={"a": IDLE, "b": WAITS})
    assert told(made) == ["drain a", "b: waiting for room: a is ending"]


def test_whoever_waits_for_one_that_is_being_started_has_not_failed() -> None:
    a, b = wanted(autoload("a", 800)), wanted(autoload("b", 800))
    start = PendingOp(OpKind.START, ReplicaId("a", 0, "new", 1), {HOST: 800}, NOW - 0.5)
    created = engine("a", {HOST: 800}, ready_since=None, health=Health.STARTING, started_at=NOW - 5)
    traffic = {"a": WAITS, "b": ModelTraffic(1, 9_950.0)}
    for replicas in ([], [replace(created, phase=Phase.CREATED)], [created]):
        made = planned([a, b], replicas, pending={"a-0": start}, traffic=traffic)
        assert told(made) == ["b: waiting for room: a is loaded first"]


def test_nobody_goes_for_one_that_cannot_start_or_is_not_checked() -> None:
    a, b = wanted(autoload("a", 400), since=LONG_AGO), wanted(autoload("b", 500), 2)
    parked = {ReplicaKey("b", 1, "new"): Failure(1, NOW - 10, "bad", None, 1)}
    running = [engine("a", {HOST: 400}), engine("b", {HOST: 500})]
    traffic = {"a": IDLE, "b": WAITS}
    made = planned([a, b], running, failures=parked, loaded_once=frozenset("b"), traffic=traffic)
    assert told(made) == ["b: bad FAILED"], "its other replica runs, this one never will"
    b = wanted(autoload("b", 900))
    for leaving in (None, Draining(NOW - 1, True)):
        old = {PreflightKey("b", "new"): PreflightResult(True, NOW - 86_400)}
        made = planned([a, b], [engine("a", {HOST: 400}, draining=leaving)], preflights=old, traffic=traffic)
        assert "stop a" not in told(made)
        assert "drain a" not in told(made)
        assert "preflight b" in told(made)
    just_due = {PreflightKey("b", "new"): PreflightResult(True, NOW - 61)}
    drained = engine("a", {HOST: 400}, draining=Draining(NOW - 1, True))
    assert "stop a" in told(planned([a, b], [drained], preflights=just_due, traffic=traffic))


def test_who_comes_later_does_not_take_the_room_that_another_one_waits_for() -> None:
    a, b = wanted(autoload("a", 500), since=LONG_AGO), wanted(autoload("b", 900))
    c = replace(wanted(autoload("c", 300)), pinned=True)
    traffic = {"a": IDLE, "b": WAITS, "c": ModelTraffic(1, 9_990.0)}
    made = planned([a, b, c], [engine("a", {HOST: 500})], traffic=traffic)
    assert told(made) == ["drain a", "b: waiting for room: a is ending", "c: waiting for room: b is loaded first"]


def test_a_load_on_one_gpu_holds_up_no_swap_on_another() -> None:
    x, a, b = wanted(on_gpu("x", 800)), wanted(on_gpu("a", 800), since=LONG_AGO), wanted(on_gpu("b", 800))
    loading = engine("x", {"G0": 800}, ready_since=None, health=Health.STARTING, started_at=NOW - 100)
    gpus = (Gpu("G0", 0, "x", ROOM, used_mib=300), Gpu("G1", 1, "x", ROOM, used_mib=800))
    traffic = {"a": IDLE, "b": WAITS, "x": WAITS}
    made = planned([a, b, replace(x, autoload=False)], [loading, engine("a", {"G1": 800})], gpus=gpus, traffic=traffic)
    assert told(made) == ["drain a", "b: waiting for room: a is ending"]
    huge = planned([replace(b, vram_mib=2_000), x], [loading], gpus=gpus[:1], traffic={"b": WAITS, "x": WAITS})
    assert huge.blocked[0].failed, "it would not fit, whatever becomes of the other one"


def test_who_waits_for_one_that_is_being_stopped_on_its_gpu_has_not_failed() -> None:
    a, b = replace(on_gpu("a", 800), demand_replicas=1), wanted(on_gpu("b", 800))
    gpu = Gpu("G", 0, "x", ROOM, used_mib=850)
    for began_at in (NOW - 1, NOW - 40, NOW - 300):
        stop = PendingOp(OpKind.STOP, ReplicaId("a", 0, "new", 1), {"G": 800}, began_at)
        leaves = engine("a", {"G": 800}, draining=Draining(began_at, True))
        made = planned([a, b], [leaves], gpus=(gpu,), traffic={"b": WAITS}, pending={"a-0": stop})
        assert told(made) == ["b: waiting for room: a is ending"], began_at
        beside, waits = replace(wanted(on_gpu("p", 300)), pinned=True), {"b": WAITS}
        made = planned(
            [a, b, beside], [leaves, engine("p", {"G": 150})], gpus=(gpu,), traffic=waits, pending={"a-0": stop}
        )
        assert told(made) == ["b: waiting for room: a is ending"], "there is room beside the one that stays"
        made = planned(
            [a, b, beside], [leaves, engine("p", {"G": 300})], gpus=(gpu,), traffic=waits, pending={"a-0": stop}
        )
        assert told(made) == ["b: needs 800 MiB on each of 1 GPU; free: GPU 0 has 0 of 1000 MiB FAILED"]


def test_who_waits_for_released_memory_says_so_and_the_plan_looks_again_soon() -> None:
    b, gpu = wanted(on_gpu("b", 800)), Gpu("G", 0, "x", ROOM, used_mib=850)
    made = planned([b], [], gpus=(gpu,), traffic={"b": WAITS}, left_at={"G": NOW - 59})
    assert told(made) == ["b: waiting for room: memory of an engine that has ended is not free yet"]
    assert made.wake_at == NOW + 1
    c = wanted(on_gpu("c", 100), since=SINCE + 1)
    made = planned([b, c], [], gpus=(gpu,), traffic={"b": WAITS, "c": WAITS}, left_at={"G": NOW - 59})
    assert "start c" in told(made), "there is room for both"
    made = planned(
        [replace(b, vram_mib=950), c], [], gpus=(gpu,), traffic={"b": WAITS, "c": WAITS}, left_at={"G": NOW - 59}
    )
    assert [each for each in told(made) if each.startswith("start")] == [], "its room is not given to a later one"
    made = planned([b], [], gpus=(gpu,), traffic={"b": WAITS}, left_at={"G": NOW - 60})
    assert made.blocked[0].failed
    assert made.wake_at is None


def test_who_waits_for_one_that_leaves_beside_one_that_loads_has_not_failed() -> None:
    a, b = replace(on_gpu("a", 500), demand_replicas=1), wanted(on_gpu("b", 500))
    x = replace(wanted(on_gpu("x", 400)), pinned=True)
    gpu = Gpu("G", 0, "x", ROOM, used_mib=600)
    loads = engine("x", {"G": 400}, ready_since=None, health=Health.STARTING, started_at=NOW - 1)
    leaves = engine("a", {"G": 500}, draining=Draining(NOW - 1, True))
    made = planned([a, b, x], [leaves, loads], gpus=(gpu,), traffic={"b": WAITS})
    assert told(made) == ["a: it is stopped once x-0 is done on its GPU", "b: waiting for room: a is ending"]


def test_a_new_definition_waits_for_the_room_of_another_model_that_leaves() -> None:
    """Its old engine has failed, so it does not serve meanwhile; it shall not be told as failed either."""
    a = replace(on_gpu("a", 500), demand_replicas=1)
    b = replace(loaded_by_file(on_gpu("b", 800)), spec_hash="edited")
    gpu = Gpu("G", 0, "x", ROOM, used_mib=850)
    old = engine("b", {"G": 300}, ready_since=None, health=Health.STARTING, started_at=NOW - 1)
    leaves = engine("a", {"G": 500}, draining=Draining(NOW - 1, False))
    made = planned([a, b], [leaves, old], gpus=(gpu,), inflight={"a-0": 1, "b-0": 0})
    assert told(made) == ["b: waiting for room: a is ending"]


def loaded_by_file(model: DesiredModel) -> DesiredModel:
    return replace(model, replicas=1, autoload=False, demand_replicas=0, statement=Statement("file", LONG_AGO, "on"))


def test_what_does_not_leave_in_time_is_not_counted_on() -> None:
    leaves = replace(autoload("u", 500), autoload=False, demand_replicas=0, drain_ends=False)
    leaves = replace(leaves, statement=Statement("unload", LONG_AGO, "unloaded by operator"))
    a, b = wanted(autoload("a", 500), since=LONG_AGO), wanted(autoload("b", 500))
    traffic = {"a": IDLE, "b": WAITS}
    for since, expected in (
        (NOW - 1, ["b: waiting for room: u is ending"]),
        (LONG_AGO, ["drain a", "b: waiting for room: a is ending"]),
    ):
        drains = engine("u", {HOST: 500}, draining=Draining(since, False))
        made = planned(
            [a, b, leaves], [engine("a", {HOST: 500}), drains], inflight={"a-0": 0, "u-0": 1}, traffic=traffic
        )
        assert told(made) == expected
    drains = engine("u", {HOST: 900}, draining=Draining(LONG_AGO, False))
    made = planned([replace(leaves, memory_mib=900), b], [drains], inflight={"u-0": 1}, traffic=traffic)
    assert told(made) == ["b: waiting for room: u is ending"], "nothing else makes room"


def test_a_clock_that_was_set_back_and_a_gateway_that_is_lost() -> None:
    a, b = wanted(autoload("a", 800), since=LONG_AGO), wanted(autoload("b", 800))
    later = engine("a", {HOST: 800}, ready_since=NOW + 86_400, started_at=NOW + 86_390)
    made = planned([a, b], [later], traffic={"a": ModelTraffic(0, None, NOW + 86_400), "b": WAITS})
    assert told(made) == ["b: waiting for room: a is loaded only just now"]
    assert made.wake_at == NOW + 10, "as long as its load took, not until tomorrow"
    unknown = {"a": ModelTraffic(None, None, 9_999.0), "b": ModelTraffic(None, SINCE)}
    made = planned([a, b], [engine("a", {HOST: 800})], inflight={"a-0": None}, traffic=unknown)
    assert told(made) == ["b: waiting for room: a is in use"], "unknown is not idle, however long somebody waits"


def test_what_goes_while_a_gateway_is_lost_stays_once_its_engine_is_not_known_to_be_idle_any_more() -> None:
    a, b = wanted(autoload("a", 800), since=LONG_AGO), wanted(autoload("b", 900))
    leaving = engine("a", {HOST: 800}, draining=Draining(NOW - 1, idle=False))
    proven = {"a": IDLE, "b": ModelTraffic(None, SINCE)}
    assert told(planned([a, b], [leaving], traffic=proven)) == ["b: waiting for room: a is ending"]
    unknown = {"a": ModelTraffic(None, None, 1_500.0), "b": ModelTraffic(None, SINCE)}
    made = planned([a, b], [leaving], inflight={"a-0": None}, traffic=unknown)
    assert told(made) == ["undrain a", "b: waiting for room: a is in use"]


def test_of_those_that_idle_only_they_go_whose_room_is_needed() -> None:
    small, large = wanted(autoload("small", 200), since=LONG_AGO), wanted(autoload("large", 800), since=LONG_AGO)
    b = wanted(autoload("b", 800))
    idle_first = {"small": IDLE, "large": ModelTraffic(0, None, 2_000.0), "b": WAITS}
    made = planned([small, large, b], [engine("small", {HOST: 200}), engine("large", {HOST: 800})], traffic=idle_first)
    assert told(made) == ["drain large", "b: waiting for room: large is ending"]
    b = replace(b, memory_mib=1_000)
    made = planned([small, large, b], [engine("small", {HOST: 200}), engine("large", {HOST: 800})], traffic=idle_first)
    assert told(made) == ["drain large", "drain small", "b: waiting for room: large and small are ending"]


def test_who_is_in_use_is_named_and_the_plan_wakes_when_somebody_starves() -> None:
    a, c = wanted(autoload("a", 400), since=LONG_AGO), wanted(autoload("c", 400), since=LONG_AGO)
    b = wanted(autoload("b", 1_000), since=NOW - 20)
    running = [engine("a", {HOST: 400}), engine("c", {HOST: 400})]
    inside = {"a-0": 1, "c-0": 1}
    made = planned([a, b, c], running, inflight=inside, traffic={"b": ModelTraffic(1, NOW - 29)})
    assert told(made) == ["b: waiting for room: a and c are in use"]
    assert made.wake_at == NOW + 1
    for use in (ModelTraffic(1, NOW - 30), ModelTraffic(1, NOW - 500)):
        made = planned([a, b, c], running, inflight=inside, traffic={"b": use})
        words = ["drain a", "drain c", "b: waiting for room: a and c are ending"]
        assert told(made) == words, "by its request, not by its load"
    made = planned(
        [a, replace(b, memory_mib=500), c], running, inflight=inside, traffic={"b": ModelTraffic(1, NOW - 1)}
    )
    assert told(made) == ["b: waiting for room: a is in use"]


def test_the_plan_wakes_when_the_first_may_go() -> None:
    a, d = wanted(on_gpu("a", 800), since=LONG_AGO), wanted(on_gpu("d", 800), since=LONG_AGO)
    b, c = wanted(on_gpu("b", 800), since=NOW - 2), wanted(on_gpu("c", 800), since=NOW - 1)
    gpus = (Gpu("G0", 0, "x", ROOM, used_mib=800), Gpu("G1", 1, "x", ROOM, used_mib=800))
    choice = {"G0": ("G0",), "G1": ("G1",)}
    b, c = replace(b, gpu_choice=choice["G0"]), replace(c, gpu_choice=choice["G1"])
    soon = engine("a", {"G0": 800}, started_at=NOW - 20, ready_since=NOW - 10)
    later = engine("d", {"G1": 800}, started_at=NOW - 45, ready_since=NOW - 15)
    traffic = {"b": ModelTraffic(1, NOW - 2), "c": ModelTraffic(1, NOW - 1), "a": IDLE, "d": IDLE}
    made = planned([a, b, c, d], [replace(soon, ready_since=NOW - 9), later], gpus=gpus, traffic=traffic)
    assert told(made) == [
        "b: waiting for room: a is loaded only just now",
        "c: waiting for room: d is loaded only just now",
    ]
    assert made.wake_at == NOW + 2
    made = planned([a, b, c, d], [soon, later], gpus=gpus, traffic=traffic)
    assert told(made)[:2] == ["drain a", "b: waiting for room: a is ending"], "as long as its load took"


def test_who_waits_behind_one_that_starves_does_not_count_on_the_same_room() -> None:
    a = wanted(autoload("a", 800), since=LONG_AGO)
    b, c = wanted(autoload("b", 800)), wanted(autoload("c", 800))
    unknown = {"a": ModelTraffic(None, None, 9_999.0), "b": WAITS, "c": ModelTraffic(1, 9_950.0)}
    for first, words in ((b, "b is loaded first"), (replace(b, pinned=True), "b comes first")):
        made = planned([a, first, c], [engine("a", {HOST: 800})], inflight={"a-0": None}, traffic=unknown)
        assert told(made) == ["b: waiting for room: a is in use", f"c: waiting for room: {words}"]


def test_what_an_operator_loads_gets_the_room_though_no_request_waits_for_it() -> None:
    a, b = wanted(autoload("a", 800), since=LONG_AGO), wanted(autoload("b", 800))
    b = replace(b, statement=Statement("load", SINCE, "loaded by operator"))
    assert told(planned([a, b], [engine("a", {HOST: 800})])) == ["drain a", "b: waiting for room: a is ending"]


def test_a_check_that_is_due_holds_only_while_somebody_leaves_already() -> None:
    a, b = wanted(autoload("a", 400), since=LONG_AGO), wanted(autoload("b", 900))
    due = {PreflightKey("b", "new"): PreflightResult(True, NOW - 61)}
    made = planned([a, b], [engine("a", {HOST: 400})], preflights=due, traffic={"a": IDLE, "b": WAITS})
    assert told(made) == ["preflight b", "b: waiting for room: whether it can be started is being checked"]


# What could be let go, and what that would cost


A = replace(autoload("a", 100), replicas=2, statement=Statement("autoload", 0.0, "asked for"))


def replica(index: int = 0, **fields: object) -> ObservedReplica:
    """One that loaded from 1,000 to 1,010."""
    return engine("a", {}, index=index, **{"started_at": 1_000.0, "ready_since": 1_010.0} | fields)


def resident(*replicas: ObservedReplica, want: DesiredModel = A, **observed: object) -> EvictionCandidate | None:
    """What is known of the model's replicas."""
    state = ObservedState(NOW, replicas, **observed)  # type: ignore[arg-type]
    return candidate_of(want, replicas, state, NOW, pending_models(state))


def known(*replicas: ObservedReplica, want: DesiredModel = A, **observed: object) -> EvictionCandidate:
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
def test_a_model_is_evictable_by_its_statement_and_fields(kind: str, fields: dict[str, bool], expected: bool) -> None:
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


def test_requests_inside_are_added_up_over_replicas() -> None:
    two = (replica(), replica(1))
    assert known(*two, inflight={"a-0": 1, "a-1": 2}).inflight == 3
    assert known(*two, inflight={"a-1": 2}).inflight == 2, "a gateway that says nothing of it has none"
    assert known(*two).inflight == 0
    lost = known(*two, inflight={"a-0": 0, "a-1": None})
    assert (lost.inflight, lost.is_busy, lost.has_known_traffic) == (None, True, False)


def test_use_of_a_model_follows_from_its_traffic() -> None:
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


def test_names_are_joined_in_words() -> None:
    assert [_join_names(names) for names in ([], ["a"], ["a", "b"])] == ["others", "a", "a and b"]


# What is wanted once it is decided who has to go


def settled(models: list[DesiredModel], *replicas: ObservedReplica, **fields: Any) -> EvictionDecision:
    """The decision where all models are checked, and main memory is bounded."""
    checked = {PreflightKey(model.name, "new"): PreflightResult(True, NOW - 1) for model in models}
    known: dict[str, Any] = {"host_mib": ROOM, "preflights": checked}
    observed = observe(NOW, replicas, **known | fields)
    return decide_evictions(
        DesiredState(1, {model.name: model for model in models}), observed, ClaimLedger.of(observed), NOW
    )


def loaded(model: DesiredModel, since: float = 5.0) -> DesiredModel:
    return replace(wanted(model), statement=Statement("load", since, "loaded by operator"))


def test_the_line_for_room() -> None:
    operators, asked = loaded(autoload("z", 1)), wanted(autoload("y", 1), since=7.0)
    fresh, forgotten = wanted(autoload("x", 1), since=NOW - 1), wanted(autoload("w", 1), since=9.0)
    seated = wanted(autoload("s", 1))
    traffic = {"y": ModelTraffic(1, 8.0), "w": ModelTraffic(0), "s": WAITS}
    made = settled([forgotten, fresh, asked, operators, seated], engine("s", {HOST: 1}), traffic=traffic)
    assert made.queue_place(operators) == (0, 5.0, "z")
    assert made.queue_place(asked) == (1, 8.0, "y")
    assert made.queue_place(fresh) == (1, NOW - 1, "x")
    assert made.queue_place(forgotten) == (2, 9.0, "w")
    assert made.queue_place(seated) == made.queue_place(None) == (0, 0.0, "")


def test_room_goes_to_whom_it_is_due_whatever_their_names() -> None:
    late, early = loaded(autoload("a", 800), since=6.0), loaded(autoload("b", 800), since=5.0)
    forgotten = wanted(autoload("0", 800), since=1.0)
    made = settled([late, early, forgotten], traffic={"0": ModelTraffic(0)})
    assert made.wait_reasons == {"a": "waiting for room: b comes first"}
    assert made.evicted == {"0": "no request waits for it any more"}


@pytest.mark.parametrize(("waits_since", "since"), [(None, NOW), (9_000.0, 9_000.0)])
def test_a_model_that_rests_is_woken_by_a_request(waits_since: float | None, since: float) -> None:
    rests = replace(autoload("a", 100), demand_replicas=2)
    made = settled([rests], traffic={"a": ModelTraffic(1, waits_since)})
    statement = Statement("autoload", since, "autoload: requests wait for it")
    assert made.desired.models["a"] == replace(rests, replicas=2, demand_replicas=0, statement=statement)
    assert made.reload_requested == ("a",)
    for use in ({}, {"a": ModelTraffic(0, waits_since)}):
        assert settled([rests], traffic=use).desired.models["a"] == rests
    for never in (replace(rests, autoload=False), replace(rests, demand_replicas=0)):
        assert settled([never], traffic={"a": ModelTraffic(1, waits_since)}).reload_requested == ()


def test_one_that_is_woken_while_it_is_started_is_told_as_woken() -> None:
    start = PendingOp(OpKind.START, ReplicaId("a", 0, "new", 1), {HOST: 100}, NOW - 1)
    made = settled([autoload("a", 100)], traffic={"a": WAITS}, pending={"a-0": start})
    assert (made.reload_requested, made.wait_reasons, made.evicted) == (("a",), {}, {})


def test_what_is_not_used_rests_when_its_time_has_come() -> None:
    a = replace(wanted(autoload("a", 100), since=LONG_AGO), idle_ttl_s=60.0)
    runs = engine("a", {HOST: 100})
    made = settled([a], runs, traffic={"a": ModelTraffic(0, None, NOW - 60)})
    assert made.evicted == {"a": "not used for 60 s"}
    statement = Statement("autoload", NOW, "not used for 60 s; the next request loads it")
    rests = replace(a, replicas=0, demand_replicas=1, statement=statement, drain_ends=False)
    assert made.desired.models["a"] == rests
    assert made.wake_times == ()
    young = settled([a], runs, traffic={"a": ModelTraffic(0, None, NOW - 59)})
    assert (young.evicted, young.wake_times) == ({}, (NOW + 1,))
    stays = settled([replace(a, min_residency_s=9_500.0)], runs, traffic={"a": ModelTraffic(0, None, NOW - 60)})
    assert (stays.evicted, stays.wake_times) == ({}, (10_500.0,))
    busy = settled([a], runs, traffic={"a": ModelTraffic(1, NOW, NOW - 60)})
    assert (busy.evicted, busy.wake_times) == ({}, ())


def test_that_one_stays_keeps_no_other_from_resting() -> None:
    a, b = wanted(autoload("a", 100), since=LONG_AGO), wanted(autoload("b", 100), since=LONG_AGO)
    b = replace(b, idle_ttl_s=60.0)
    made = settled([a, b], engine("a", {HOST: 100}), engine("b", {HOST: 100}), traffic={"a": IDLE, "b": IDLE})
    assert made.evicted == {"b": "not used for 60 s"}


def test_what_makes_room_rests_for_that_though_it_is_unused_anyway() -> None:
    a = replace(wanted(autoload("a", 800), since=LONG_AGO), idle_ttl_s=60.0)
    made = settled([a, wanted(autoload("b", 800))], engine("a", {HOST: 800}), traffic={"a": IDLE, "b": WAITS})
    assert made.evicted == {"a": "makes room for b"}
    statement = Statement("autoload", WAITS.waits_since or 0.0, "makes room for b; the next request loads it")
    assert made.desired.models["a"].statement == statement


def test_what_nobody_waits_for_any_more_rests_instead_of_waiting_for_room() -> None:
    full = loaded(autoload("full", ROOM))
    runs = engine("full", {HOST: ROOM})
    told_off = {"b": "no request waits for it any more"}
    b = autoload("b", 100)
    for since, resting in ((NOW, {}), (NOW - FRESH_DEMAND_S + 1, {}), (NOW - FRESH_DEMAND_S, told_off)):
        assert settled([full, wanted(b, since=since)], runs).evicted == resting
    assert settled([full, wanted(b, since=NOW + 10)], runs).evicted == told_off, "the clock was set back"
    for use, resting in ((ModelTraffic(0), told_off), (ModelTraffic(None), {}), (ModelTraffic(1, 1.0), {})):
        assert settled([full, wanted(b, since=LONG_AGO)], runs, traffic={"b": use}).evicted == resting
    rests = settled([full, wanted(b, 2, since=LONG_AGO)], runs).desired.models["b"]
    words = "no request waits for it any more; the next request loads it"
    assert (rests.replicas, rests.demand_replicas) == (0, 2)
    assert rests.statement == Statement("autoload", LONG_AGO, words)
    assert settled([full, loaded(b)], runs).evicted == {}, "an operator waits"


def test_who_has_no_room_for_another_one_that_takes_it_is_told_so() -> None:
    b, c = replace(loaded(autoload("b", 800)), pinned=True), wanted(autoload("c", 800))
    assert settled([b, c], traffic={"c": WAITS}).wait_reasons == {"c": "waiting for room: b comes first"}
    made = settled([b, replace(c, memory_mib=2_000)], traffic={"c": WAITS})
    assert made.wait_reasons == {}, "it would have none without it either"


def test_replicas_that_come_are_spread_as_the_plan_will_spread_them() -> None:
    gpus = (Gpu("A", 0, "x", ROOM), Gpu("B", 1, "x", ROOM))
    a = replace(loaded(on_gpu("a", 300)), replicas=2, pinned=True)
    made = settled([a, wanted(on_gpu("c", 800))], gpus=gpus, traffic={"c": WAITS})
    assert made.wait_reasons == {"c": "waiting for room: a comes first"}


def test_nobody_goes_for_one_that_backs_off() -> None:
    a, b = wanted(autoload("a", 800), since=LONG_AGO), wanted(autoload("b", 800))
    for retry_at, resting in ((NOW + 5, {}), (NOW, {"a": "makes room for b"})):
        failures = {ReplicaKey("b", 0, "new"): Failure(1, NOW - 1, "boom", retry_at, 1)}
        made = settled([a, b], engine("a", {HOST: 800}), traffic={"a": IDLE, "b": WAITS}, failures=failures)
        assert made.evicted == resting


def test_the_plan_wakes_for_whoever_starves_first_and_not_where_nobody_is_in_use() -> None:
    a, d = wanted(on_gpu("a", 800), since=LONG_AGO), wanted(on_gpu("d", 800), since=LONG_AGO)
    b = replace(wanted(on_gpu("b", 800)), gpu_choice=("A",))
    c = replace(wanted(on_gpu("c", 800)), gpu_choice=("B",))
    gpus = (Gpu("A", 0, "x", ROOM, used_mib=800), Gpu("B", 1, "x", ROOM, used_mib=800))
    young = engine("d", {"B": 800}, started_at=NOW - 45, ready_since=NOW - 15)
    traffic = {"b": ModelTraffic(1, NOW - 20), "c": ModelTraffic(1, NOW - 19)}
    made = planned(
        [a, b, c, d], [engine("a", {"A": 800}), young], gpus=gpus, traffic=traffic, inflight={"a-0": 1, "d-0": 0}
    )
    assert told(made) == ["b: waiting for room: a is in use", "c: waiting for room: d is loaded only just now"]
    assert made.wake_at == NOW + 10, "when b starves; d may go after that"
    made = planned([c, d], [young], gpus=gpus, traffic=traffic)
    assert told(made) == ["c: waiting for room: d is loaded only just now"]
    assert made.wake_at == NOW + 15


# Sleep in place of an end

AWAKE, DOZING = {"G": 900, HOST: 50}, {"G": 20, HOST: 300}
GPU = Gpu("G", 0, "x", 1_000)


def rested(model: DesiredModel) -> DesiredModel:
    return replace(model, replicas=0, demand_replicas=1)


def sleeper(model: str, since: float | None = LONG_AGO, **fields: Any) -> ObservedReplica:
    """A replica that sleeps; `since` None: that could."""
    claims, health = (AWAKE, Health.READY) if since is None else (DOZING, Health.SLEEPING)
    known: dict[str, Any] = {"sleep": Sleep(DOZING, AWAKE, since), "health": health}
    return engine(model, claims, **known | fields)


@pytest.mark.parametrize("finished_at", [None, NOW - 0.1])
def test_who_waits_for_a_sleep_that_no_observation_has_seen_end_has_not_failed(finished_at: float | None) -> None:
    """The one that sleeps already claims little, and its room is still booked for it."""
    a, b = rested(on_gpu("a", 900)), wanted(on_gpu("b", 900))
    asleep = sleeper("a", NOW - 0.1) if finished_at else sleeper("a", None)
    operation = PendingOp(OpKind.SLEEP, asleep.id, {"G": 900, HOST: 300}, NOW - 1, finished_at)
    made = planned([a, b], [asleep], gpus=(GPU,), pending={asleep.name: operation}, traffic={"b": WAITS})
    assert told(made) == ["b: waiting for room: a is ending"]


def test_who_waits_for_a_wake_that_no_observation_has_seen_end_has_not_failed() -> None:
    a, b = wanted(on_gpu("a", 900)), wanted(on_gpu("b", 900))
    for woken in (sleeper("a"), replace(sleeper("a", None), claims=DOZING | {"G": 905})):
        operation = PendingOp(OpKind.WAKE, woken.id, AWAKE, NOW - 1, NOW - 0.1)
        made = planned([a, b], [woken], gpus=(GPU,), pending={woken.name: operation}, traffic={"b": WAITS})
        assert told(made) == ["b: waiting for room: a is loaded first"]


H, GPU_H = {"H": 900, HOST: 50}, Gpu("H", 1, "x", 1_000)


def test_who_is_to_wake_where_another_leaves_waits_for_it_and_is_started_nowhere_else() -> None:
    """On the other GPU there would be room at once, or it is busy for a moment."""
    small = {"G": 400, HOST: 50}
    b, d = wanted(on_gpu("b", 400)), rested(on_gpu("d", 900))
    asleep, falls = sleeper("b", sleep=Sleep(DOZING, small, LONG_AGO)), sleeper("d", None)
    going = PendingOp(OpKind.SLEEP, falls.id, AWAKE, NOW - 1)
    room = {"gpus": (GPU, GPU_H), "traffic": {"b": WAITS}}
    made = planned([b, d], [asleep, falls], pending={falls.name: going}, **room)
    assert told(made) == ["b: waiting for room: d is ending"]
    c = wanted(on_gpu("c", 300), since=LONG_AGO)
    loads = engine("c", {"H": 300}, ready_since=None, health=Health.STARTING, started_at=NOW - 5)
    made = planned([b, c, d], [asleep, loads, falls], pending={falls.name: going}, **room)
    assert told(made) == ["b: waiting for room: needs 400 MiB; free: GPU 0 has 100 of 1000 MiB"]


def test_idle_ones_that_can_sleep_make_room_for_a_wake_though_a_start_would_fit_elsewhere() -> None:
    a, b = wanted(on_gpu("a", 900), since=LONG_AGO), wanted(on_gpu("b", 900))
    room = {"gpus": (GPU, GPU_H), "traffic": {"a": IDLE, "b": WAITS}}
    asleep = sleeper("b")
    assert told(planned([a, b], [sleeper("a", None), asleep], **room)) == [
        "drain a",
        "b: waiting for room: a is ending",
    ]
    for stays in ({"sleep": None}, {"ready_since": NOW - 5, "started_at": NOW - 60}):
        made = planned([a, b], [sleeper("a", None, **stays), asleep], **room)
        assert told(made) == ["stop b", "start b"], "one that would end, or is young, stays"
    busy = room | {"inflight": {"a-0": 1, "b-0": 0}}
    assert told(planned([a, b], [sleeper("a", None), asleep], **busy)) == ["stop b", "start b"]


def _settled(host_mib: int, *replicas: ObservedReplica, **fields: Any) -> EvictionDecision:
    models = {each.id.model: rested(on_gpu(each.id.model, 900)) for each in replicas}
    observed = observe(NOW, replicas, **{"gpus": (GPU,), "host_mib": host_mib} | fields)
    return decide_evictions(DesiredState(1, models), observed, ClaimLedger.of(observed), NOW)


def test_where_main_memory_is_full_the_one_that_sleeps_longest_is_stopped() -> None:
    old, middle, young = (sleeper(name, NOW - age) for name, age in (("a", 90), ("b", 60), ("c", 30)))
    assert _settled(900, young, old, middle).sleeping == {"a-0", "b-0", "c-0"}
    assert _settled(899, young, old, middle).sleeping == {"b-0", "c-0"}
    assert _settled(300, young, old, middle).sleeping == {"c-0"}
    assert _settled(299, young, old, middle).sleeping == frozenset()
    made = planned([rested(on_gpu(name, 900)) for name in "abc"], [young, old, middle], host_mib=899, gpus=(GPU,))
    assert told(made) == ["stop a"]
    assert [action.reason for action in made.actions] == ["its memory is needed while it sleeps"]


def test_who_leaves_comes_before_those_that_sleep_and_an_unread_gpu_ends_nobody_s_sleep() -> None:
    leaves, old = sleeper("a", None, draining=Draining(NOW - 1, True)), sleeper("b")
    assert _settled(300, old, leaves).sleeping == {"a-0"}
    slow = replace(leaves, draining=Draining(LONG_AGO, True))
    assert _settled(350, slow).sleeping == {"a-0"}, "its own claims are not beside it"
    assert _settled(10, old, gpus=None).sleeping == {"b-0"}
    for gone in (replace(old, fault="no"), replace(old, id=replace(old.id, spec_hash="old"))):
        assert _settled(900, gone).sleeping == frozenset()
    stops = {"b-0": PendingOp(OpKind.STOP, old.id, DOZING, NOW - 1)}
    assert _settled(900, old, pending=stops).sleeping == frozenset()


def test_an_empty_one_sleeps_once_main_memory_holds_it_and_nobody_is_busy_on_its_gpu() -> None:
    a = rested(on_gpu("a", 900))
    leaves = sleeper("a", None, draining=Draining(NOW - 1, True))
    made = planned([a], [leaves], gpus=(GPU,))
    assert told(made) == ["sleep a"]
    [action] = made.actions
    assert isinstance(action, PutToSleep)
    assert action.claims == {"G": 900, HOST: 300}
    c = wanted(on_gpu("c", 50), since=LONG_AGO)
    loads = engine("c", {"G": 50}, ready_since=None, health=Health.STARTING, started_at=NOW - 5)
    busy = planned([a, c], [leaves, loads], gpus=(GPU,))
    assert told(busy) == ["a: it is put to sleep once c-0 is done on its GPU"]
    d = rested(on_gpu("d", 20))
    ends = engine("d", {HOST: 800}, draining=Draining(NOW - 1, False))
    full = planned([a, d], [leaves, ends], gpus=(GPU,), inflight={"a-0": 0, "d-0": 1})
    assert told(full) == ["a: its sleep waits for room: needs 250 MiB of main memory; free: 150 of 1000 MiB"]


def test_what_counts_as_a_load_of_one_that_was_woken_is_its_wake() -> None:
    model = wanted(on_gpu("a", 900))
    woken = sleeper("a", None, sleep=Sleep(DOZING, AWAKE, None, woken_at=NOW - 20, wake_s=0.5))
    loaded, awake = (candidate_of(model, [each], ObservedState(NOW), NOW, ()) for each in (sleeper("a", None), woken))
    assert loaded is not None
    assert awake is not None
    assert (loaded.stays_until, awake.stays_until) == (1_010.0, NOW - 19.5)


@pytest.mark.parametrize(
    ("rest_claims", "done"),
    [({"G": 1_024, HOST: 300}, ["b: waiting for room: a is ending"]), (None, ["stop a"])],
)
def test_one_that_fell_asleep_is_not_stopped_while_the_driver_may_still_count_its_memory(
    rest_claims: dict[str, int] | None, done: list[str]
) -> None:
    large, held = Gpu("G", 0, "x", 100_000, 90_000), {"G": 90_000, HOST: 300}
    a, b = rested(on_gpu("a", 90_000)), wanted(on_gpu("b", 90_000))
    asleep = sleeper("a", sleep=Sleep(held, held, NOW - 1, rest_claims))
    made = planned([a, b], [replace(asleep, claims=held)], gpus=(large,), traffic={"b": WAITS})
    assert told(made)[: len(done)] == done


def test_an_idle_one_needs_no_room_asleep_beside_itself_awake() -> None:
    model = replace(wanted(on_gpu("a", 990)), idle_ttl_s=60.0)
    claims = {"G": 990, HOST: 600}
    idle = sleeper("a", None, sleep=Sleep({"G": 20, HOST: 600}, claims), draining=Draining(NOW - 1, True))
    idle = replace(idle, claims=claims)
    made = planned([model], [idle], gpus=(GPU,), host_mib=1_000, traffic={"a": IDLE})
    assert told(made) == ["sleep a"]


def test_a_gpu_of_several_that_cannot_be_read_ends_nobody_s_sleep() -> None:
    other, unread = Gpu("H", 1, "x", 1_000), (UnreadGpu(0, "it is lost", uuid="G"),)
    assert told(planned([rested(on_gpu("a", 900))], [sleeper("a")], gpus=(other,), unread_gpus=unread)) == []


def test_a_request_waits_for_the_end_of_its_replica_s_own_sleep() -> None:
    falls = sleeper("a", None)
    operation = PendingOp(OpKind.SLEEP, falls.id, AWAKE, NOW - 1)
    gpus, room = (GPU, Gpu("H", 1, "x", 1_000)), {"pending": {falls.name: operation}, "traffic": {"a": WAITS}}
    made = planned([wanted(on_gpu("a", 900))], [falls], gpus=gpus, **room)
    assert told(made) == ["a: waiting for room: it falls asleep, and is woken then"]


def test_nobody_makes_room_to_wake_one_for_which_no_request_waits() -> None:
    a, b = wanted(on_gpu("a", 900)), wanted(on_gpu("b", 900), since=LONG_AGO)
    runs, asleep = sleeper("a", None), sleeper("b")
    for waits, made_room in ((ModelTraffic(0), []), (WAITS, ["drain a"])):
        made = planned([a, b], [runs, asleep], gpus=(GPU,), traffic={"a": IDLE, "b": waits})
        assert [each for each in told(made) if each.startswith("drain")] == made_room
