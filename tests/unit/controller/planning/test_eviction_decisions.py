"""What is wanted once it is decided who has to go: who comes first, who rests, who is woken, when to look again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from controller.gpus import Gpu
from controller.planning.eviction import FRESH_DEMAND_S, EvictionDecision, decide_evictions
from controller.planning.placement import ClaimLedger
from controller.state import (
    HOST,
    DesiredModel,
    DesiredState,
    Failure,
    ModelTraffic,
    ObservedReplica,
    ObservedState,
    OpKind,
    PendingOp,
    PreflightResult,
    ReplicaId,
    ReplicaKey,
    Statement,
)
from tests.support.traffic_simulator import autoload
from tests.unit.controller.planning.test_eviction_rules import (
    IDLE,
    LONG_AGO,
    NOW,
    ROOM,
    WAITS,
    engine,
    on_gpu,
    planned,
    told,
    wanted,
)


def settled(models: list[DesiredModel], *replicas: ObservedReplica, **fields: Any) -> EvictionDecision:
    """The decision where all models are checked, and main memory is bounded."""
    checked = {(model.name, "new"): PreflightResult(True, NOW - 1) for model in models}
    known: dict[str, Any] = {"host_mib": ROOM, "preflights": checked}
    observed = ObservedState(NOW, replicas, **known | fields)
    return decide_evictions(
        DesiredState(1, {model.name: model for model in models}), observed, ClaimLedger.of(observed), NOW
    )


def loaded(model: DesiredModel, since: float = 5.0) -> DesiredModel:
    """As an operator loads it."""
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
        made = settled([full, wanted(b, since=since)], runs)
        assert made.evicted == resting
    assert settled([full, wanted(b, since=NOW + 10)], runs).evicted == told_off, "the clock was set back"
    for use, resting in ((ModelTraffic(0), told_off), (ModelTraffic(None), {}), (ModelTraffic(1, 1.0), {})):
        made = settled([full, wanted(b, since=LONG_AGO)], runs, traffic={"b": use})
        assert made.evicted == resting
    rests = settled([full, wanted(b, 2, since=LONG_AGO)], runs).desired.models["b"]
    words = "no request waits for it any more; the next request loads it"
    assert (rests.replicas, rests.demand_replicas) == (0, 2)
    assert rests.statement == Statement("autoload", LONG_AGO, words)
    assert settled([full, loaded(b)], runs).evicted == {}, "an operator waits"


def test_who_has_no_room_for_another_one_that_takes_it_is_told_so() -> None:
    b, c = replace(loaded(autoload("b", 800)), pinned=True), wanted(autoload("c", 800))
    made = settled([b, c], traffic={"c": WAITS})
    assert made.wait_reasons == {"c": "waiting for room: b comes first"}
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
