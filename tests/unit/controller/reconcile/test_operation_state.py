"""What a controller remembers of its own doings, and for how long."""

from __future__ import annotations

from dataclasses import replace

import pytest

from controller.engines.base import Verdict
from controller.executor import OperationState
from controller.hosts import HOST
from controller.planning.draining import DrainState
from controller.state import (
    DesiredModel,
    DesiredState,
    ObservedReplica,
    Phase,
    PreflightKey,
    PreflightResult,
    ReplicaId,
)
from controller.state_dir import SleepRecord
from tests.support.world import autoload

RESTS = autoload("m", 100)
WANTED = replace(RESTS, replicas=1, demand_replicas=0)
UNLOADED = replace(RESTS, demand_replicas=0)
FIRST = ReplicaId("m", 0, RESTS.spec_hash)


def test_a_failure_is_known_while_the_model_rests_until_somebody_asks_for_it_anew() -> None:
    memory = OperationState(loaded_once={"m"})
    memory.record_failure(FIRST, Verdict("no such device", permanent=True), 10.0)
    memory.preflights[PreflightKey("m", RESTS.spec_hash)] = PreflightResult(True, 10.0)
    for want in (WANTED, RESTS):
        memory.prune_state(DesiredState(1, {"m": want}), [], 20.0)
        assert memory.failures.keys() == {FIRST.key}
        assert memory.preflights.keys() == {PreflightKey("m", RESTS.spec_hash)}
    assert not memory.loaded_once, "all its replicas are waited for when it is loaded again"
    memory.reset_failures(RESTS)
    assert not memory.failures
    assert not memory.preflights


@pytest.mark.parametrize("want", [UNLOADED, replace(RESTS, spec_hash="edited")])
def test_a_failure_ends_with_an_unload_and_an_edit(want: DesiredModel) -> None:
    memory = OperationState()
    memory.record_failure(FIRST, Verdict("no such device", permanent=True), 10.0)
    memory.prune_state(DesiredState(1, {"m": want}), [], 20.0)
    assert not memory.failures


def test_a_replica_that_ended_proves_nothing_though_it_had_served_for_long() -> None:
    memory = OperationState()
    served = ObservedReplica(FIRST, "m-0", Phase.RUNNING, 1.0, ready_since=2.0)
    desired, long_after = DesiredState(1, {"m": WANTED}), 10_000.0
    memory.record_failure(FIRST, Verdict("killed"), 10.0)
    memory.prune_state(desired, [served], long_after)
    assert not memory.failures, "it has served for long since"
    memory.record_failure(FIRST, Verdict("killed"), long_after)
    memory.prune_state(desired, [replace(served, phase=Phase.EXITED)], long_after + 1)
    assert memory.failures.keys() == {FIRST.key}


def test_the_last_failed_starts_are_known_until_the_definition_changes() -> None:
    memory, desired = OperationState(), DesiredState(1, {"m": WANTED})
    for number in range(6):
        memory.record_failure(FIRST, Verdict(f"no {number}"), 10.0 * number + 2.5, began_at=10.0 * number)
    memory.record_failure(FIRST, Verdict("ended later"), 90.0, ready_for_s=20.0)
    served = ObservedReplica(FIRST, "m-0", Phase.RUNNING, 1.0, ready_since=2.0)
    memory.prune_state(desired, [served], 10_000.0)
    starts = memory.start_failures[FIRST.key]
    assert [(each.error, each.duration_s) for each in starts] == [(f"no {number}", 2.5) for number in range(2, 6)]
    memory.prune_state(DesiredState(1, {"m": replace(WANTED, spec_hash="edited")}), [served], 10_000.0)
    assert not memory.start_failures


def test_paused_what_is_wanted_is_not_kept_from_serving_by_a_drain() -> None:
    memory = OperationState()
    replicas = [ObservedReplica(ReplicaId("m", index, "h"), f"m-{index}", Phase.RUNNING, 1.0) for index in range(2)]
    memory.drains = {replica.name: DrainState(5.0) for replica in replicas}
    desired = DesiredState(1, {"m": WANTED})
    memory.prune_state(desired, replicas, 20.0)
    assert memory.drains.keys() == {"m-0", "m-1"}
    memory.prune_state(replace(desired, paused=True), replicas, 20.0)
    assert memory.drains.keys() == {"m-1"}, "nobody wants the second one"


def test_a_gpu_is_left_when_its_engine_is_first_seen_to_have_ended() -> None:
    runs = ObservedReplica(FIRST, "m-0", Phase.RUNNING, 1.0, claims={"G": 10, HOST: 5})
    ended = replace(runs, phase=Phase.EXITED)
    for before, after, left_at in (
        ([runs], [], {"G": 10.0}),
        ([runs], [ended], {"G": 10.0}),
        ([runs], [runs], {}),
        ([], [ended], {"G": 10.0}),
        ([ended], [ended], {}),
        ([ended], [], {}),
        ([], [runs], {}),
    ):
        memory = OperationState()
        memory.note_released_gpus(before, after, 10.0)
        assert memory.left_at == left_at, (before, after)


def test_who_falls_asleep_or_wakes_no_longer_drains_and_keeps_its_canary() -> None:
    memory = OperationState(sleepers={"m-0": SleepRecord(canary="2, 3", woken_at=5.0, wake_s=2.0)})
    memory.drains = {name: DrainState(5.0) for name in ("m-0", "m-1")}
    memory.note_asleep("m-0", {"G": 10, HOST: 5}, 10.0)
    assert memory.sleepers == {"m-0": SleepRecord(canary="2, 3", since=10.0, woken_at=5.0, wake_s=2.0)}
    assert (memory.left_at, set(memory.drains)) == ({"G": 10.0}, {"m-1"})
    memory.drains["m-0"] = DrainState(5.0)
    memory.note_awake("m-0", 20.0, 20.5)
    assert memory.sleepers == {"m-0": SleepRecord(canary="2, 3", woken_at=20.5, wake_s=0.5)}
    assert (memory.left_at, set(memory.drains)) == ({"G": 10.0}, {"m-1"})
    memory.note_awake("m-0", 30.0, 29.0)
    assert memory.sleepers["m-0"].wake_s == 0.0, "the clock was set back"


def test_what_is_known_of_a_sleeper_ends_with_its_replica_and_its_size_with_its_definition() -> None:
    memory = OperationState(
        sleepers={name: SleepRecord(canary=name) for name in ("m-0", "m-1")},
        asleep_mib={("m", RESTS.spec_hash): 846, ("m", "older"): 900, ("gone", RESTS.spec_hash): 1},
        faults={"m-0": "no", "m-1": "neither"},
    )
    memory.prune_state(DesiredState(1, {"m": RESTS}), [ObservedReplica(FIRST, "m-0", Phase.RUNNING, 1.0)], 20.0)
    assert memory.sleepers == {"m-0": SleepRecord(canary="m-0")}
    assert (memory.faults, memory.asleep_mib) == ({"m-0": "no"}, {("m", RESTS.spec_hash): 846})
