"""The rules of hosts: which one is silent or lost, where a replica goes, and what moves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from controller.engines.stub import StubDefinition
from controller.hosts import HOST, Gpu, Host, HostState, is_memory_key, memory_key
from controller.planning.actions import Action, Drain, FetchFiles, Plan, Preflight, PullImage, Start, Stop
from controller.planning.hosts import HEAD, is_silent, judge_hosts
from controller.planning.placement import ClaimLedger, NoRoom, Placement, explain_never_fits, place_replica
from controller.planning.plan import plan
from controller.state import (
    DesiredModel,
    DesiredState,
    Draining,
    Exit,
    Failure,
    FetchKey,
    Health,
    ModelTraffic,
    ObservedReplica,
    ObservedState,
    OpKind,
    PendingOp,
    Phase,
    PreflightKey,
    PreflightResult,
    PullKey,
    ReplicaId,
    ReplicaKey,
    Statement,
)

NOW, LOST_S = 10_000.0, 15.0
ONE = DesiredModel("m", StubDefinition(backend="stub"), "stub", "h", 1, Statement("file", 0.0, "enabled"))
ON_GPU = replace(ONE, gpu_count=1, vram_mib=400)
A, B = Host("a", memory_mib=1_000), Host("b", memory_mib=1_000)


def gpus(host: str, *used: int) -> tuple[Gpu, ...]:
    return tuple(Gpu(f"GPU-{host}{n}", n, "x", 1_000, mib, host=host) for n, mib in enumerate(used))


def replica(index: int, host: str, **fields: Any) -> ObservedReplica:
    known: dict[str, Any] = {"health": Health.READY, "ready_since": 5.0, "started_at": 4.0, "base_url": "x"}
    known |= {"id": ReplicaId("m", index, "h"), "phase": Phase.RUNNING} | fields
    return ObservedReplica(name=f"m-{index}-{host}", created_at=1.0, host=host, **known)


def place(model: DesiredModel, *hosts: Host, **fields: Any) -> Placement | NoRoom:
    observed = ObservedState(NOW, hosts=hosts, **fields)
    return place_replica(model, observed, ClaimLedger.of(observed))


def planned(
    model: DesiredModel | None, *replicas: ObservedReplica, hosts: tuple[Host, ...] = (A, B), **fields: Any
) -> tuple[Action, ...]:
    checked = {PreflightKey("m", "h", host.name): PreflightResult(True, NOW) for host in hosts}
    known: dict[str, Any] = {"preflights": checked, "loaded_once": frozenset("m")}
    observed = ObservedState(NOW, replicas, hosts=hosts, **known | fields)
    return plan(DesiredState(1, {"m": model} if model is not None else {}), observed, NOW).actions


def starts(actions: tuple[Action, ...]) -> list[tuple[int, str]]:
    return [(each.id.index, each.host) for each in actions if isinstance(each, Start)]


def test_the_key_of_main_memory_names_the_host_if_it_has_a_name() -> None:
    assert (memory_key(""), memory_key("b"), Host().memory_key, B.memory_key) == (HOST, "host:b", HOST, "host:b")
    assert [is_memory_key(key) for key in (HOST, "host:b", "GPU-1", "hosts")] == [True, True, False, False]
    assert [each.label for each in (Gpu("u", 0, "x", 1), *gpus("b", 0), Gpu("u", 0, "x", 1, mig=2, host="b"))] == [
        "0", "b/0", "b/0:2",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("last_heard", "failed", "silent"),
    [(97.7, True, False), (97.5, True, True), (97.5, False, False), (101.0, True, False)],
)
def test_a_host_is_silent_after_three_heartbeats_and_a_failed_call(
    last_heard: float, failed: bool, silent: bool
) -> None:
    assert is_silent(last_heard, failed, 100.0, 0.8) is silent


def judged(
    hosts: list[Host], known: dict[str, Host] | None = None, drained: tuple[str, ...] = ()
) -> tuple[dict[str, str], bool]:
    found, is_cut_off = judge_hosts(hosts, known or {}, drained, NOW, lost_after_s=LOST_S)
    return {host.name: host.state.value for host in found}, is_cut_off


def away(name: str, seconds: float) -> Host:
    return Host(name, HostState.SILENT, last_heard=NOW - seconds)


def test_a_silent_host_is_lost_in_time_and_one_at_once() -> None:
    here = [Host(name, last_heard=NOW) for name in "xyz"]
    assert judged([away("a", LOST_S - 1), *here])[0]["a"] == "silent"
    assert judged([away("a", LOST_S), *here])[0]["a"] == "lost"
    assert judged([away("a", -1), *here])[0]["a"] == "lost", "the clock was set back, and nobody knows since when"
    assert judged([away("a", 20), away("b", 30), *here])[0] | {} == {
        "a": "silent",
        "b": "lost",
        "x": "ready",
        "y": "ready",
        "z": "ready",
    }
    lost_before = {"b": Host("b", HostState.LOST, taken_over_at=NOW - LOST_S + 1)}
    assert judged([away("a", 20), away("b", 30), *here], lost_before)[0]["a"] == "silent", "the last loss is young"
    lost_before = {"b": Host("b", HostState.LOST, taken_over_at=NOW - LOST_S)}
    assert judged([away("a", 20), away("b", 30), *here], lost_before)[0]["a"] == "lost"


def test_where_most_are_silent_the_controller_is_cut_off() -> None:
    one, two = [away("a", 99), Host("b")], [away("a", 99), away("b", 99)]
    assert judged(one) == ({"a": "lost", "b": "ready"}, False)
    assert judged(two) == ({"a": "silent", "b": "silent"}, True)
    assert judged([away("a", 99)]) == ({"a": "lost"}, False), "an only host is no majority"
    assert judged([*two, Host("c"), Host("d")])[1] is False, "half is not more than half"
    assert judged([*two, Host("c")]) == ({"a": "silent", "b": "silent", "c": "ready"}, True)
    known = {"a": Host("a", HostState.LOST, taken_over_at=5.0, since=5.0)}
    assert judged([*two, Host("c")], known)[0] == {"a": "lost", "b": "silent", "c": "ready"}, "who is lost stays so"


def test_others_take_over_from_refused_hosts_in_time_and_one_at_once() -> None:
    def refused(*names: str, since: float = NOW - LOST_S, others: int = 3) -> list[str]:
        hosts = [Host(name, HostState.REFUSED) for name in names]
        known = {name: Host(name, HostState.REFUSED, since=since) for name in names}
        ready = [Host(name) for name in "xyz"[:others]]
        found, is_cut_off = judge_hosts([*hosts, *ready], known, (), NOW, lost_after_s=LOST_S)
        assert not is_cut_off
        assert [host.state for host in found if host.state is not HostState.READY] == [HostState.REFUSED] * len(names)
        return [host.name for host in found if host.taken_over_at == NOW]

    assert (refused("a"), refused("a", since=NOW - LOST_S + 1)) == (["a"], [])
    assert refused("a", "b") == ["a"]
    assert refused("a", "b", others=1) == [], "so many are refused after an upgrade of the controller alone"
    over = Host("a", HostState.REFUSED, taken_over_at=5.0)
    (same, _), _ = judge_hosts([Host("a", HostState.REFUSED), Host("b")], {"a": over}, (), NOW, lost_after_s=LOST_S)
    (back, _), _ = judge_hosts([Host("a"), Host("b")], {"a": over}, (), NOW, lost_after_s=LOST_S)
    assert (same.taken_over_at, back.taken_over_at) == (5.0, None)
    assert judged([away("a", 1), Host("b")], {"a": over})[0]["a"] == "lost"


def test_states_have_times_and_a_drain_holds_while_the_host_answers() -> None:
    known = {
        "a": Host("a", HostState.LOST, taken_over_at=5.0, since=5.0, reached_since=1.0),
        "b": Host("b", since=6.0, reached_since=2.0),
    }
    (a, b), _ = judge_hosts([Host("a"), Host("b")], known, (), NOW, lost_after_s=LOST_S)
    assert (a.state, a.since, a.reached_since) == (HostState.READY, NOW, NOW), "it is back"
    assert (b.state, b.since, b.reached_since) == (HostState.READY, 6.0, 2.0)
    (first,), _ = judge_hosts([Host("a")], {}, (), NOW, lost_after_s=LOST_S)
    assert (first.since, first.reached_since) == (NOW, 0.0)
    assert judged([Host("a"), away("b", 1)], drained=("a", "b"))[0] == {"a": "draining", "b": "silent"}
    (drains,), _ = judge_hosts([Host("a")], {"a": Host("a", reached_since=3.0)}, ("a",), NOW, lost_after_s=LOST_S)
    assert (drains.since, drains.reached_since) == (NOW, 3.0)
    assert judged([Host("a", HostState.REFUSED)], drained=("a",))[0] == {"a": "refused"}


def test_the_host_with_the_fewest_replicas_comes_first_then_the_one_with_the_files_then_the_best_fit() -> None:
    model = replace(ONE, memory_mib=100, replicas=3)
    assert place(model, A, B) == Placement({"host:a": 100}, host="a")
    assert place(model, A, B, replicas=(replica(0, "a"),)) == Placement({"host:b": 100}, host="b")
    less = replace(B, memory_mib=500)
    assert place(model, A, less) == Placement({"host:b": 100}, host="b"), "the least room that is enough"
    assert place(model, A, replace(less, missing_models=frozenset("m"))) == Placement({"host:a": 100}, host="a")
    one_there = (replica(0, "a"),)
    assert place(model, A, replace(B, missing_models=frozenset("m")), replicas=one_there).host == "b"  # type: ignore[union-attr]
    others = tuple(replace(replica(0, "a"), id=ReplicaId("n", 0, "h"), name=f"n{n}") for n in range(2))
    assert place(ONE, A, B, replicas=others) == Placement({}, host="b"), "nobody knows what it takes"
    assert starts(planned(model)) == [(0, "a"), (1, "b"), (2, "a")]


def test_the_gpus_of_a_replica_lie_on_one_host() -> None:
    a, b = replace(A, gpus=gpus("a", 0)), replace(B, gpus=gpus("b", 0))
    two = replace(ON_GPU, gpu_count=2)
    found = place(two, a, b)
    assert found == NoRoom("host a: needs 2 GPUs, host a has 1; host b: needs 2 GPUs, host b has 1")
    wide = replace(B, gpus=gpus("b", 0, 0))
    assert place(two, a, wide) == Placement({"GPU-b0": 400, "GPU-b1": 400}, host="b")
    assert place(ON_GPU, a, replace(B, gpus=gpus("b", 500))) == Placement({"GPU-b0": 400}, host="b"), "best fit"
    busy = replica(0, "b", claims={"GPU-b0": 10}, health=Health.STARTING, ready_since=None)
    other = replace(busy, id=ReplicaId("n", 0, "h"))
    assert place(ON_GPU, a, b, replicas=(other,)) == Placement({"GPU-a0": 400}, host="a"), "nothing loads there"
    assert isinstance(place(ON_GPU, a, b, replicas=(replica(0, "a"), other)), NoRoom), "it spreads, and waits for that"
    assert place(ON_GPU, replace(A, gpus=None), b) == Placement({"GPU-b0": 400}, host="b")


def test_a_gpu_is_named_with_its_host_where_its_index_is_not_clear() -> None:
    a, b = replace(A, gpus=gpus("a", 0)), replace(B, gpus=gpus("b", 0, 0))
    chosen = [replace(ON_GPU, gpu_choice=(name,)) for name in ("0", "b/0", "GPU-a0", "1")]
    refusal = NoRoom("`gpus` names GPU 0, which several hosts have: write a/0 or b/0")
    assert [place(each, a, b) for each in chosen] == [
        refusal, Placement({"GPU-b0": 400}, host="b"), Placement({"GPU-a0": 400}, host="a"),
        Placement({"GPU-b1": 400}, host="b"),
    ]  # fmt: skip
    assert place(replace(chosen[0], hosts=("b",)), a, b) == Placement({"GPU-b0": 400}, host="b")
    for state in (HostState.SILENT, HostState.LOST, HostState.DRAINING):
        assert place(chosen[0], replace(a, state=state), b) == refusal, "it comes back"
    assert place(chosen[0], replace(a, state=HostState.REFUSED), b) == Placement({"GPU-b0": 400}, host="b")


def test_hosts_are_chosen_by_name_or_label() -> None:
    labelled = replace(B, labels={"disk": "fast"})
    assert place(replace(ONE, hosts=("disk=fast",)), A, labelled) == Placement({}, host="b")
    assert place(replace(ONE, hosts=("b",)), A, B) == Placement({}, host="b")
    words = "`hosts` names c, and no host has that name or label: write one of a, b"
    assert place(replace(ONE, hosts=("c",)), A, B) == NoRoom(words)
    words = "`hosts` names b, and this is the only host, which has no name: take `hosts` out"
    assert place(replace(ONE, hosts=("b",)), Host()) == NoRoom(words)


@pytest.mark.parametrize("state", [HostState.SILENT, HostState.LOST, HostState.DRAINING, HostState.REFUSED])
def test_nothing_is_started_on_a_host_that_is_not_ready(state: HostState) -> None:
    gone = replace(B, state=state, reason="as it says")
    assert place(replace(ONE, hosts=("b",)), A, gone) == NoRoom(
        f"host b is {state}: as it says", waiting=state == "silent"
    )
    assert place(ONE, A, gone) == Placement({}, host="a")
    assert explain_never_fits(replace(ONE, hosts=("b",)), ObservedState(NOW, hosts=(A, gone))) is None
    unread, small = replace(B, gpus=None), replace(A, gpus=gpus("a", 0))
    assert explain_never_fits(replace(ON_GPU, vram_mib=9_000), ObservedState(NOW, hosts=(small, unread))) is None


def test_a_failure_on_one_host_does_not_keep_a_model_from_another() -> None:
    waits = Failure(1, NOW - 1, "boom", NOW + 5, 1)
    keys = {host: ReplicaKey("m", 0, "h", host) for host in "ab"}
    assert starts(planned(ONE, failures={keys["a"]: waits})) == [(0, "b")]
    assert planned(ONE, failures=dict.fromkeys(keys.values(), waits)) == ()
    bad = {
        PreflightKey("m", "h", "a"): PreflightResult(False, NOW, "no such file"),
        PreflightKey("m", "h", "b"): PreflightResult(True, NOW),
    }
    assert starts(planned(ONE, preflights=bad)) == [(0, "b")]
    missing = bad | {PreflightKey("m", "h", "a"): PreflightResult(False, NOW, "x", missing_image="img")}
    assert planned(ONE, preflights=missing) == (PullImage("m", "img", "the image is not on host a", "a"),)
    assert starts(planned(ONE, preflights=missing, pulls={PullKey("img", "a"): waits})) == [(0, "b")]
    assert planned(ONE, preflights={}) == (Preflight("m", "h", "before a start", "a"),)


def test_a_host_gets_the_files_before_it_is_checked() -> None:
    lacking = frozenset("m")
    a, b = (replace(each, files_url="http://x", missing_models=lacking) for each in (A, B))
    key = FetchKey("m", "h", "a")

    def made(
        model: DesiredModel = ONE, *replicas: ObservedReplica, hosts: tuple[Host, ...] = (a, b), **fields: Any
    ) -> Plan:
        known: dict[str, Any] = {"head_models": lacking, "loaded_once": lacking} | fields
        return plan(DesiredState(1, {"m": model}), ObservedState(NOW, replicas, hosts=hosts, **known), NOW)

    fetch = FetchFiles("m", "h", "a", (HEAD, "b"), "host a does not have its files as the head has them")
    assert made().actions == (fetch,)
    under_way = made(fetches={key: None}, hosts=(replace(a, fetch_fractions={"m": 0.427}), b))
    assert (under_way.actions, under_way.blocked[0].reason) == ((), "its files are being copied to host a (43%)")
    failed = Failure(1, NOW - 1, "no room", NOW + 5)
    assert [each.host for each in made(fetches={key: failed}).actions if isinstance(each, FetchFiles)] == ["b"]
    only_a = made(replace(ONE, hosts=("a",)), fetches={key: failed})
    assert (only_a.actions, only_a.blocked[0].reason, only_a.wake_at) == ((), "no room", NOW + 5)
    there = replace(b, missing_models=frozenset())
    assert made(head_models=frozenset(), hosts=(a, there)).actions == (Preflight("m", "h", "before a start", "b"),)
    assert made(replace(ONE, hosts=("a",)), head_models=frozenset(), hosts=(a, there)).actions == (
        FetchFiles("m", "h", "a", ("b",), "host a does not have its files"),
    )
    nobody = made(head_models=frozenset())
    assert nobody.actions == (Preflight("m", "h", "before a start", "a"),), "the check says what is missing"
    edited, big = replace(ONE, spec_hash="new", memory_mib=900), {"claims": {"host:a": 900}}
    fresh = {PreflightKey("m", "new", "a"): PreflightResult(True, NOW)}
    swapped = made(edited, replica(0, "a", **big), hosts=(a,), preflights=fresh)
    assert [each.kind for each in swapped.actions] == ["fetch"], "nothing is drained for what is not there"
    old = replace(replica(0, "a", **big), id=ReplicaId("old", 0, "h"))
    models = {"m": replace(ONE, memory_mib=900), "old": replace(ONE, name="old", autoload=True, memory_mib=900)}
    known: dict[str, Any] = {"preflights": {PreflightKey("m", "h", "a"): PreflightResult(True, NOW)}}
    known |= {"head_models": lacking, "inflight": {old.name: 0}, "traffic": {"old": ModelTraffic(last_used=1.0)}}
    for host, kept, kinds in ((a, 1, ["fetch"]), (A, 0, ["drain"])):
        observed = ObservedState(NOW, (old,), hosts=(host, replace(b, state=HostState.DRAINING)), **known)
        evicting = plan(DesiredState(1, models), observed, NOW)
        assert evicting.desired is not None
        assert (evicting.desired.models["old"].replicas, [each.kind for each in evicting.actions]) == (kept, kinds)


def test_what_is_silent_keeps_its_place_until_its_host_is_lost() -> None:
    gone = replace(B, state=HostState.SILENT)
    assert planned(ONE, replica(0, "b", silent="silent"), hosts=(A, gone)) == ()
    lost = replace(B, state=HostState.LOST)
    assert starts(planned(ONE, replica(0, "b", silent="lost"), hosts=(A, lost))) == [(0, "a")]
    assert planned(None, replica(0, "b", silent="lost"), hosts=(A, lost)) == (), "it is stopped once it answers"
    edited = replace(ONE, spec_hash="new")
    assert planned(edited, replica(0, "b", silent="silent"), hosts=(A, gone)) == ()


def test_who_falls_asleep_on_a_lost_host_is_not_waited_for() -> None:
    gone = replica(0, "b", silent="lost")
    pending = {gone.name: PendingOp(OpKind.SLEEP, gone.id, began_at=NOW - 5, host="b")}
    assert starts(planned(ONE, gone, hosts=(A, replace(B, state=HostState.LOST)), pending=pending)) == [(0, "a")]
    assert planned(ONE, replica(0, "b"), pending=pending) == ()


def test_memory_that_nobody_releases_is_not_waited_for_beside_one_that_is_released() -> None:
    """Else another host would make no room for as long as a release may take."""
    a, b = replace(A, gpus=gpus("a", 900, 900)), replace(B, gpus=gpus("b", 900, 900))
    two = replace(ON_GPU, gpu_count=2)
    for left, waits in ((["GPU-a1"], False), (["GPU-a0", "GPU-a1"], True)):
        found = place(two, a, b, left_at=dict.fromkeys(left, NOW - 1))
        assert isinstance(found, NoRoom)
        assert (found.waiting, found.is_releasing) == (waits, waits)


def test_of_two_at_one_place_the_one_that_served_meanwhile_stays() -> None:
    returned, serves = replica(0, "b", returned_at=NOW - 1), replica(0, "a")
    (drain,) = planned(ONE, returned, serves)
    assert isinstance(drain, Drain)
    assert drain.name == returned.name
    loading = replica(0, "a", health=Health.STARTING, ready_since=None)
    (stop,) = planned(ONE, returned, loading)
    assert isinstance(stop, Stop), "who does not serve yet goes"
    assert stop.name == loading.name


def test_what_runs_on_a_drained_host_is_replaced_elsewhere_before_it_leaves() -> None:
    drained = replace(B, state=HostState.DRAINING)
    model = replace(ONE, replicas=2)
    actions = planned(model, replica(0, "a"), replica(1, "b"), hosts=(A, drained))
    assert starts(actions) == [(1, "a")]
    assert [each.reason for each in actions] == ["host b is drained; the old replica serves until then"]
    moved = replace(replica(1, "a"), name="m-1-new", id=ReplicaId("m", 1, "h", 2))
    (drain,) = planned(model, replica(0, "a"), replica(1, "b"), moved, hosts=(A, drained))
    assert (drain.kind, drain.reason) == ("drain", "host b is drained, and it has moved")
    full = replace(A, memory_mib=50)
    needs = replace(model, memory_mib=100)
    assert planned(needs, replica(0, "a"), replica(1, "b"), hosts=(full, drained)) == (), "what has no room serves on"
    back = replica(1, "b", draining=Draining(NOW - 1, None))
    assert [each.kind for each in planned(model, replica(0, "a"), back)] == ["undrain"]
    elsewhere = replace(model, hosts=("a",))
    (start,) = planned(elsewhere, replica(0, "a"), replica(1, "b"))
    assert start.reason == "`hosts` does not name host b; the old replica serves until then"


def test_who_has_just_failed_is_not_tried_there_again_but_elsewhere() -> None:
    ended = replica(0, "a", phase=Phase.EXITED, exit=Exit(1))
    actions = planned(ONE, ended)
    assert [each.kind for each in actions] == ["remove", "start"]
    assert starts(actions) == [(0, "b")]
    waits = Failure(1, NOW - 1, "boom", NOW + 5, 1)
    assert starts(planned(ONE, ended, failures={ReplicaKey("m", 0, "h", "b"): waits})) == []
    refused = {PreflightKey("m", "h", "b"): PreflightResult(False, NOW, "no such file")}
    actions = planned(ONE, failures={ReplicaKey("m", 0, "h", "a"): waits}, preflights=refused)
    assert actions == (), "the backoff holds although the other host refuses"


def test_a_host_whose_gpus_cannot_be_read_keeps_nobody_from_making_room_on_another() -> None:
    a, b = replace(A, gpus=gpus("a", 900)), replace(B, gpus=None)
    found = place(replace(ON_GPU, vram_mib=2_000), a, b)
    assert isinstance(found, NoRoom)
    assert not found.waiting
    blind = place(ON_GPU, replace(A, gpus=None), b)
    assert isinstance(blind, NoRoom)
    assert blind.waiting


def test_after_a_restart_the_later_of_two_at_one_place_stays() -> None:
    first, later = replica(0, "b"), replica(0, "a", id=ReplicaId("m", 0, "h", 2))
    (drain,) = planned(ONE, first, later)
    assert isinstance(drain, Drain)
    assert drain.name == first.name


def test_the_time_to_start_counts_from_the_return_of_the_host() -> None:
    late = replica(0, "a", health=Health.STARTING, ready_since=None, started_at=NOW - 601)
    assert [each.kind for each in planned(ONE, late)] == ["stop", "start"]
    assert planned(ONE, replace(late, returned_at=NOW - 10)) == ()


def test_hosts_that_are_full_release_nothing() -> None:
    found = place(replace(ONE, memory_mib=2_000), A, B)
    assert isinstance(found, NoRoom)
    assert (found.waiting, found.is_releasing) == (False, False)
    releasing = [replace(host, gpus=gpus(host.name, 700)) for host in (A, B)]
    found = place(ON_GPU, *releasing, left_at={"GPU-a0": NOW, "GPU-b0": NOW})
    assert isinstance(found, NoRoom)
    assert (found.waiting, found.is_releasing) == (True, True)
