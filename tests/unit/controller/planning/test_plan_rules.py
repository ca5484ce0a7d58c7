"""What the plan does in each situation of one model: the actions with their reasons, what is blocked, when to wake."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from controller.engines.base import Verdict
from controller.engines.stub import StubDefinition
from controller.hosts import HOST, Gpu, Host, UnreadGpu
from controller.planning.actions import (
    Blocked,
    DownloadSource,
    Drain,
    Plan,
    Preflight,
    PullImage,
    Remove,
    Start,
    Stop,
    Undrain,
)
from controller.planning.backoff import verdict_of_exit
from controller.planning.model_turn import VANISHED_DRAIN_S
from controller.planning.plan import plan
from controller.state import (
    AttemptNumbers,
    DesiredModel,
    DesiredState,
    Draining,
    Exit,
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
    PullKey,
    ReplicaId,
    ReplicaKey,
    Statement,
)
from tests.support.world import observe

NOW = 10_000.0
RECHECK_S = DesiredState(0, {}).preflight_recheck_s
ONE = DesiredModel("m", StubDefinition(backend="stub"), "stub", "new", 1, Statement("file", 0.0, "enabled"))
TWO = replace(ONE, replicas=2)
CHECKED = {PreflightKey("m", "new"): PreflightResult(True, NOW)}
KEY = ReplicaKey("m", 0, "new")
WAITS = Failure(2, NOW - 1, "boom", NOW + 5, 2)
BOOM = Blocked("m", 0, "boom", failed=True, retry_at=NOW + 5)
GPUS = (Gpu("G", 0, "x", 100),)
BESIDE = "the definition was edited; the old replica serves until then"
FIRST = ReplicaId("m", 0, "new", 1)


def seen(index: int = 0, spec: str = "new", attempt: int = 1, **fields: Any) -> ObservedReplica:
    known: dict[str, Any] = {"started_at": NOW - 20, "health": Health.READY, "ready_since": NOW - 10}
    replica_id = ReplicaId("m", index, spec, attempt)
    return ObservedReplica(replica_id, f"{spec}-{index}", Phase.RUNNING, NOW - 20, **(known | fields))


def starting(index: int = 0, spec: str = "new", **fields: Any) -> ObservedReplica:
    return seen(index, spec, **{"health": Health.STARTING, "ready_since": None} | fields)


def planned(want: DesiredModel | None, *replicas: ObservedReplica, **observed: Any) -> Plan:
    """The plan of one model, whose definition is checked."""
    models = {want.name: want} if want is not None else {}
    attempts = AttemptNumbers()
    for replica in replicas:
        attempts = attempts.with_attempt(replica.id.key.text, replica.id.attempt)
    known: dict[str, Any] = {"preflights": CHECKED, "loaded_once": frozenset("m"), "attempts": attempts}
    state = observe(NOW, replicas, **(known | observed))
    return plan(DesiredState(3, models), state, NOW)


def comes_to(made: Plan, *actions: object, blocked: tuple[Blocked, ...] = (), wake_at: float | None = None) -> bool:
    assert (made.generation, made.actions, made.blocked, made.wake_at) == (3, actions, blocked, wake_at)
    return True


def start(
    index: int = 0, attempt: int = 1, reason: str = "no replica at this index", claims: dict[str, int] | None = None
) -> Start:
    return Start(ReplicaId("m", index, "new", attempt), reason, claims or {})


def test_nothing_is_to_be_done_where_all_is_as_wanted() -> None:
    assert comes_to(planned(ONE, seen()))
    assert comes_to(planned(replace(ONE, runs=False)))
    assert comes_to(planned(ONE, pending={"new-0": PendingOp(OpKind.START, FIRST)}))


@pytest.mark.parametrize("ready_since", [None, NOW - 10])
def test_an_end_is_a_failure_and_is_not_followed_by_a_start_at_once(ready_since: float | None) -> None:
    end = Exit(1, log_tail="boom")
    gone = replace(seen(), phase=Phase.EXITED, exit=end, ready_since=ready_since)
    verdict = verdict_of_exit("stub", end, was_ready=ready_since is not None)
    assert comes_to(planned(ONE, gone), Remove(gone.id, gone.name, "ended", verdict))


@pytest.mark.parametrize(("ready_since", "permanent"), [(None, True), (NOW - 10, False)])
def test_an_end_is_explained_by_its_engine(ready_since: float | None, permanent: bool) -> None:
    gone = replace(seen(), phase=Phase.EXITED, exit=Exit(1, log_tail="unknown argument"), ready_since=ready_since)
    [removal] = planned(replace(ONE, backend="llama_server"), gone).actions
    assert isinstance(removal, Remove)
    assert removal.failure is not None
    assert removal.failure.message.startswith("bad argument; the engine ended with exit code 1")
    assert removal.failure.permanent is permanent


def test_an_end_that_was_asked_for_or_is_not_known_is_no_failure() -> None:
    gone = replace(seen(attempt=4), phase=Phase.EXITED, exit=Exit(0))
    for each in (replace(gone, draining=Draining(NOW - 1, False)), replace(gone, exit=None)):
        assert comes_to(planned(ONE, each), Remove(each.id, each.name, "ended", None), start(attempt=5))
    for want in (None, replace(ONE, replicas=0)):
        assert comes_to(planned(want, gone), Remove(gone.id, gone.name, "ended", None))


def test_what_was_half_created_is_removed_and_started_anew() -> None:
    half = replace(seen(attempt=2), phase=Phase.CREATED)
    removal = Remove(half.id, half.name, "half-created, and nothing is creating it")
    assert comes_to(planned(ONE, half), removal, start(attempt=3))
    other = replace(half, id=replace(half.id, spec_hash="old"))
    assert comes_to(planned(ONE, other), replace(removal, id=other.id), start(attempt=1))


def test_a_start_is_an_attempt_that_never_was() -> None:
    attempts = AttemptNumbers(highest={KEY.text: 7}, dropped=4)
    assert comes_to(planned(ONE, attempts=attempts), start(attempt=8))
    assert comes_to(planned(TWO, attempts=attempts), start(attempt=8), start(1, attempt=5))


def test_what_is_broken_is_stopped_as_a_failure() -> None:
    dead = seen(health=Health.DEAD)
    reason = "the engine says that it is dead"
    assert comes_to(planned(ONE, dead), Stop(dead.id, dead.name, reason, Verdict(reason)))


UNLOADED = replace(ONE, replicas=0, statement=Statement("unload", NOW - 50, "by operator"))


@pytest.mark.parametrize(
    ("want", "index", "reason", "wait_s"),
    [
        (None, 0, "the model is no longer declared", VANISHED_DRAIN_S),
        (replace(ONE, runs=False), 0, "the model is served elsewhere now", 300.0),
        (UNLOADED, 0, "unloaded: by operator", 300.0),
        (replace(UNLOADED, drain_timeout_s=7.0), 0, "unloaded: by operator", 7.0),
        (replace(UNLOADED, drain_ends=False), 0, "unloaded: by operator", None),
        (replace(ONE, drain_ends=False), 1, "more replicas than declared", 300.0),
    ],
)
def test_what_is_not_wanted_is_drained_and_then_stopped(
    want: DesiredModel | None, index: int, reason: str, wait_s: float | None
) -> None:
    others = () if index == 0 else (seen(),)
    old = seen(index)
    deadline = None if wait_s is None else NOW + wait_s
    assert comes_to(planned(want, old, *others), Drain(old.id, old.name, reason, deadline))
    new = starting(index)
    assert comes_to(planned(want, new, *others), Stop(new.id, new.name, reason)), "nothing was ever routed to it"
    drained = replace(old, draining=Draining(NOW - 1, True))
    assert comes_to(planned(want, drained, *others), Stop(old.id, old.name, f"{reason}; drained"))
    for idle in (False, None):
        drains = replace(old, draining=Draining(NOW - (wait_s or 0.0) + 1, idle))
        assert comes_to(planned(want, drains, *others), wake_at=None if wait_s is None else NOW + 1)
        late = replace(old, draining=Draining(NOW - (wait_s or 1e6), idle))
        stop = Stop(old.id, old.name, f"{reason}; its drain deadline has passed")
        assert comes_to(planned(want, late, *others), *(() if wait_s is None else (stop,)))


def test_one_stops_at_a_time_on_a_gpu_and_all_at_once_in_main_memory() -> None:
    gone = "the model is no longer declared"
    a, b = (starting(index, claims={"G": 10, HOST: 5}) for index in (0, 1))
    waits = Blocked("m", 0, "it is stopped once new-1 is done on its GPU")
    assert comes_to(planned(None, a, b, gpus=GPUS), Stop(b.id, b.name, gone), blocked=(waits,)), "both load: the last"
    a, b = (seen(index, claims={"G": 10}, draining=Draining(NOW, True)) for index in (0, 1))
    waits = Blocked("m", 1, "it is stopped once new-0 is done on its GPU")
    assert comes_to(planned(None, a, b, gpus=GPUS), Stop(a.id, a.name, f"{gone}; drained"), blocked=(waits,))
    a, b = (starting(index, claims={HOST: 10}) for index in (0, 1))
    assert comes_to(planned(None, a, b), Stop(a.id, a.name, gone), Stop(b.id, b.name, gone))


def test_before_a_start_it_is_checked_once() -> None:
    check = Preflight("m", "new", "before a start")
    assert comes_to(planned(TWO, preflights={}), check)
    assert comes_to(planned(TWO, preflights={}, preflighting=frozenset({PreflightKey("m", "new")})))
    stale = {PreflightKey("m", "new"): PreflightResult(True, NOW - 86_400)}
    assert comes_to(planned(ONE, preflights=stale), check)
    assert comes_to(planned(TWO), start(0), start(1))


def test_a_check_that_failed_is_told_and_repeated() -> None:
    at = NOW - 1
    for error, words in (("no such file", "no such file"), (None, "preflight failed")):
        failed = {PreflightKey("m", "new"): PreflightResult(False, at, error)}
        blocked = Blocked("m", 0, words, failed=True, retry_at=at + RECHECK_S)
        assert comes_to(planned(ONE, preflights=failed), blocked=(blocked,), wake_at=at + RECHECK_S)
    due = {PreflightKey("m", "new"): PreflightResult(False, NOW - RECHECK_S, "no such file")}
    blocked = Blocked("m", 0, "no such file", failed=True, retry_at=NOW)
    assert comes_to(planned(ONE, preflights=due), Preflight("m", "new", "before a start"), blocked=(blocked,))


def test_an_image_that_is_missing_is_pulled_once() -> None:
    missing = {PreflightKey("m", "new"): PreflightResult(False, NOW, "no image", "img")}
    pull = PullImage("m", "img", "the image is not on this host")
    assert comes_to(planned(TWO, preflights=missing), pull)
    waits = tuple(Blocked("m", index, "image img is being pulled") for index in (0, 1))
    assert comes_to(planned(TWO, preflights=missing, pulls={PullKey("img"): None}), blocked=waits)
    assert comes_to(planned(ONE, preflights=missing, pulls={PullKey("img"): WAITS}), blocked=(BOOM,), wake_at=NOW + 5)
    over = replace(WAITS, retry_at=NOW)
    assert comes_to(planned(ONE, preflights=missing, pulls={PullKey("img"): over}), pull)


def test_a_source_is_downloaded_once_before_anything_is_checked_and_without_room() -> None:
    awaited = replace(TWO, missing_source="hf:a/b:Q4", gpu_count=1)
    download = DownloadSource("m", "hf:a/b:Q4", "its files are not in the models folder")
    assert comes_to(planned(awaited, preflights={}), download), "there is no GPU, and that is not asked yet"
    assert comes_to(planned(replace(awaited, replicas=1), preflights={}), download)
    waits = tuple(Blocked("m", index, "hf:a/b:Q4 is being downloaded (40%)") for index in (0, 1))
    under_way = planned(awaited, downloads={"hf:a/b:Q4": None}, download_fractions={"hf:a/b:Q4": 0.4})
    assert comes_to(under_way, blocked=waits)
    one = replace(ONE, missing_source="hf:a/b:Q4")
    assert comes_to(planned(one, downloads={"hf:a/b:Q4": WAITS}), blocked=(BOOM,), wake_at=NOW + 5)
    over = replace(WAITS, retry_at=NOW)
    assert comes_to(planned(one, downloads={"hf:a/b:Q4": over}), download)
    assert comes_to(planned(replace(one, replicas=0)))


def test_what_serves_goes_on_until_the_edited_source_is_here() -> None:
    edited = replace(ONE, missing_source="hf:a/b:Q8")
    download = DownloadSource("m", "hf:a/b:Q8", "its files are not in the models folder")
    assert comes_to(planned(edited, seen(spec="old")), download)
    waits = Blocked("m", 0, "hf:a/b:Q8 is being downloaded")
    assert comes_to(planned(edited, seen(spec="old"), downloads={"hf:a/b:Q8": None}), blocked=(waits,))


def test_no_model_is_evicted_for_one_whose_files_are_not_here() -> None:
    idle = replace(ONE, name="idle", autoload=True, gpu_count=1, statement=Statement("autoload", 0.0, "asked for"))
    wanted = replace(ONE, missing_source="hf:a/b:Q4", gpu_count=1)
    gpu = Gpu("G", 0, "a GPU", 1000)
    serving = ObservedReplica(
        ReplicaId("idle", 0, "new", 1), "idle-0", Phase.RUNNING, 0.0, 1.0, Health.READY, 2.0, "http://x", {"G": 1000}
    )
    observed = ObservedState(NOW, (serving,), hosts=(Host(gpus=(gpu,)),))
    made = plan(DesiredState(1, {"idle": idle, "m": wanted}), observed, NOW)
    assert [action.kind for action in made.actions] == ["download"]
    assert not made.evicted


def test_a_failure_is_waited_for_and_counted_on() -> None:
    assert comes_to(planned(ONE, failures={KEY: WAITS}), blocked=(BOOM,), wake_at=NOW + 5)
    over, attempts = {KEY: replace(WAITS, retry_at=NOW)}, AttemptNumbers(highest={KEY.text: 2})
    assert comes_to(planned(ONE, failures=over, attempts=attempts), start(attempt=3))
    parked = replace(BOOM, retry_at=None)
    assert comes_to(planned(ONE, failures={KEY: replace(WAITS, retry_at=None)}), blocked=(parked,))


def test_a_current_one_is_kept_and_its_start_deadline_watched() -> None:
    drains = seen(draining=Draining(NOW - 1, True))
    assert comes_to(planned(ONE, drains), Undrain(drains.id, drains.name, "wanted again"))
    other = replace(drains, id=replace(drains.id, index=1), name="new-1")
    pending = {"new-0": PendingOp(OpKind.START, FIRST)}
    assert comes_to(planned(TWO, other, pending=pending), Undrain(other.id, other.name, "wanted again"))
    assert comes_to(planned(replace(ONE, start_timeout_s=50.0), starting()), wake_at=NOW + 30)
    both = (starting(0), starting(1, started_at=NOW - 45))
    assert comes_to(planned(replace(TWO, start_timeout_s=50.0), *both), wake_at=NOW + 5)


def test_an_edited_definition_starts_beside_the_old_one() -> None:
    old = seen(spec="old")
    assert comes_to(planned(ONE, old), start(reason=BESIDE))
    assert comes_to(planned(ONE, replace(old, health=Health.FAILING)), start(reason=BESIDE)), "it may serve again"
    pending = {"new-0": PendingOp(OpKind.START, FIRST)}
    assert comes_to(planned(ONE, old, pending=pending))
    assert comes_to(planned(ONE, old, starting()), wake_at=NOW - 20 + 600)
    replaced = Drain(old.id, old.name, "replaced by a replica of the edited definition", NOW + 300)
    assert comes_to(planned(ONE, old, seen()), replaced)
    assert comes_to(planned(ONE, old, seen(health=Health.FAILING)))


def test_where_there_is_no_room_for_both_the_old_one_leaves_first() -> None:
    want, old = replace(ONE, memory_mib=60), seen(spec="old", claims={HOST: 60})
    both = "the definition was edited; no room for both"
    assert comes_to(planned(want, old, host_mib=100), Drain(old.id, old.name, both, NOW + 300))
    never = starting(spec="old", claims={HOST: 60})
    assert comes_to(planned(want, never, host_mib=100), Stop(never.id, never.name, "the definition was edited"))
    drained = replace(old, draining=Draining(NOW - 1, True))
    stop = Stop(old.id, old.name, "the definition was edited; drained")
    assert comes_to(planned(want, drained, host_mib=100), stop)
    assert comes_to(planned(want, drained), stop), "it has been drained for the other one's sake"


def test_an_old_one_serves_on_where_its_replacement_cannot_start() -> None:
    drains = seen(spec="old", claims={HOST: 60}, draining=Draining(NOW - 1, True))
    back = Undrain(drains.id, drains.name, "what was to replace it cannot start")
    bad = {PreflightKey("m", "new"): PreflightResult(False, NOW, "no file")}
    unchecked = Blocked("m", 0, "no file", failed=True, retry_at=NOW + RECHECK_S)
    reason = "needs 200 MiB of main memory; free: 100 of the 100 MiB that engines may take"
    reason += ": lower `memory_mib`, or take a smaller model"
    large, full = replace(ONE, memory_mib=200), Blocked("m", 0, reason, failed=True)
    for old, actions in ((drains, (back,)), (replace(drains, draining=None), ())):
        assert comes_to(planned(ONE, old, failures={KEY: WAITS}), *actions, blocked=(BOOM,), wake_at=NOW + 5)
        assert comes_to(planned(large, old, host_mib=100), *actions, blocked=(full,))
        again = NOW + RECHECK_S
        assert comes_to(planned(ONE, old, preflights=bad), *actions, blocked=(unchecked,), wake_at=again)
    assert comes_to(planned(ONE, drains, preflights={}), Preflight("m", "new", "before a start"))


def test_a_replacement_waits_for_a_gpu_where_another_loads() -> None:
    want = replace(ONE, gpu_count=1, vram_mib=10)
    old = seen(spec="old", claims={"G": 10})
    other = replace(starting(claims={"G": 10}), id=ReplicaId("n", 0, "h", 1), name="n-0")
    waits = Blocked("m", 0, "GPU 0 is busy with n-0")
    made = planned(want, old, other, gpus=(Gpu("G", 0, "x", 100, 20),))
    assert [each for each in made.blocked if each.model == "m"] == [waits]
    assert not [each for each in made.actions if each.model == "m"]


def test_one_is_replaced_at_a_time() -> None:
    old = (seen(0, "old"), seen(1, "old"))
    beside = start(reason=BESIDE)
    assert comes_to(planned(TWO, *old), beside)
    assert comes_to(planned(TWO, *old, starting(0)), wake_at=NOW + 580)
    assert comes_to(planned(TWO, *old, seen(0, health=Health.FAILING)))
    replaced = Drain(old[0].id, old[0].name, "replaced by a replica of the edited definition", NOW + 300)
    assert comes_to(planned(TWO, *old, seen(0)), replaced)
    assert comes_to(planned(TWO, seen(0), old[1]), replace(beside, id=replace(FIRST, index=1)))
    assert comes_to(planned(TWO, old[1]), start(0)), "the missing one first"
    assert comes_to(planned(TWO, old[1], failures={KEY: WAITS}), blocked=(BOOM,), wake_at=NOW + 5)
    last = {replace(KEY, index=1): WAITS}
    assert comes_to(planned(TWO, old[0], failures=last), blocked=(replace(BOOM, index=1),), wake_at=NOW + 5)
    last = {replace(KEY, index=1): replace(WAITS, retry_at=NOW)}
    assert comes_to(planned(TWO, old[0], failures=last), beside, start(1))
    over = {KEY: replace(WAITS, retry_at=NOW)}
    assert comes_to(planned(TWO, old[1], failures=over, preflights={}), Preflight("m", "new", "before a start"))


def test_a_first_load_is_all_or_nothing() -> None:
    first: dict[str, Any] = {"loaded_once": frozenset()}
    ready = seen(0)
    failures = {ReplicaKey("m", 1, "new"): WAITS}
    blocked = replace(BOOM, index=1)
    drain = Drain(ready.id, ready.name, "all or nothing: replica 1 failed", NOW + 300)
    assert comes_to(planned(TWO, ready, failures=failures, **first), drain, blocked=(blocked,), wake_at=NOW + 5)
    over = {ReplicaKey("m", 1, "new"): replace(WAITS, retry_at=NOW)}
    assert comes_to(planned(TWO, ready, failures=over, **first), start(1))
    loaded_once = planned(TWO, ready, failures=failures)
    assert comes_to(loaded_once, blocked=(blocked,), wake_at=NOW + 5), "it stays"
    assert comes_to(planned(ONE, failures={KEY: WAITS}, **first), blocked=(BOOM,), wake_at=NOW + 5)


def test_a_first_load_that_has_not_room_for_all_starts_none() -> None:
    want = replace(TWO, memory_mib=60)
    reason = "needs 60 MiB of main memory; free: 40 of the 100 MiB that engines may take"
    first: dict[str, Any] = {"host_mib": 100, "loaded_once": frozenset()}
    for index, blocked_at in ((0, 1), (1, 0)):
        ready = seen(index, claims={HOST: 60})
        drain = Drain(ready.id, ready.name, f"all or nothing: no room for replica {blocked_at}", NOW + 300)
        full = Blocked("m", blocked_at, reason, failed=True)
        assert comes_to(planned(want, ready, **first), drain, blocked=(full,))
    full, starts = Blocked("m", 1, reason, failed=True), [start(index, claims={HOST: 60}) for index in (0, 1)]
    pending = {"new-0": PendingOp(OpKind.START, FIRST, {HOST: 60})}
    assert comes_to(planned(want, pending=pending, **first), blocked=(full,))
    assert comes_to(planned(want, **first), blocked=(full,))
    assert comes_to(planned(want, **first | {"host_mib": 120}), *starts)
    assert comes_to(planned(want, host_mib=100), starts[0], blocked=(full,))


def test_on_one_gpu_one_starts_at_a_time() -> None:
    want = replace(TWO, gpu_count=1, vram_mib=10)
    for once in (frozenset("m"), frozenset()):
        made = planned(want, gpus=GPUS, loaded_once=once)
        assert comes_to(made, start(0, claims={"G": 10}), blocked=(Blocked("m", 1, "GPU 0 is busy with m/0"),))


@pytest.mark.parametrize("loads", [None, "G"])
def test_nothing_starts_on_a_gpu_that_a_broken_one_leaves(loads: str | None) -> None:
    want = replace(TWO, gpu_count=1, vram_mib=10)
    dead = seen(health=Health.DEAD, claims={"G": 10})
    reason = "the engine says that it is dead"
    stop = Stop(dead.id, dead.name, reason, Verdict(reason))
    made = planned(want, dead, gpus=GPUS)
    assert comes_to(made, stop, blocked=(Blocked("m", 1, "GPU 0 is busy with new-0"),))
    if loads is not None:  # the broken one serves nobody: it does not wait for its neighbour
        other = starting(1, claims={loads: 10})
        made = planned(want, dead, other, gpus=GPUS)
        assert comes_to(made, stop, wake_at=NOW - 20 + want.start_timeout_s)


def test_who_was_wanted_first_gets_the_room() -> None:
    late = replace(ONE, name="a", memory_mib=60, statement=Statement("load", NOW - 1, "later"))
    early = replace(ONE, memory_mib=60, statement=Statement("load", NOW - 2, "earlier"))
    checked = CHECKED | {PreflightKey("a", "new"): PreflightResult(True, NOW)}
    for models in ((late, early), (replace(late, statement=early.statement), replace(early, statement=late.statement))):
        first = min(models, key=lambda each: each.statement.since)
        state = ObservedState(NOW, hosts=(Host(memory_mib=100),), preflights=checked)
        made = plan(DesiredState(1, {each.name: each for each in models}), state, NOW)
        assert [action.model for action in made.actions] == [first.name]
        assert [each.model for each in made.blocked] == [each.name for each in models if each is not first]


def test_of_two_that_have_room_on_one_gpu_the_first_that_was_wanted_starts_first() -> None:
    a, m = (
        replace(ONE, name=name, gpu_count=1, vram_mib=10, statement=Statement("load", since, "loaded"))
        for name, since in (("a", NOW - 1), ("m", NOW - 2))
    )
    checked = CHECKED | {PreflightKey("a", "new"): PreflightResult(True, NOW)}
    state = ObservedState(NOW, hosts=(Host(gpus=GPUS),), preflights=checked)
    made = plan(DesiredState(3, {"a": a, "m": m}), state, NOW)
    assert comes_to(made, start(claims={"G": 10}), blocked=(Blocked("a", 0, "GPU 0 is busy with m/0"),))


RESTS = replace(ONE, autoload=True, idle_ttl_s=60.0, statement=Statement("autoload", 0.0, "a request asked for it"))
LONG: dict[str, Any] = {"started_at": NOW - 600, "ready_since": NOW - 590}


def test_what_rests_is_told_once_its_engine_goes() -> None:
    idles = seen(**LONG)
    made = planned(RESTS, idles)
    reason = "unloaded: not used for 60 s; the next request loads it"
    assert comes_to(made, Drain(idles.id, idles.name, reason, None))
    assert made.desired is not None
    assert (made.desired.models["m"].replicas, made.evicted, made.reload_requested) == (0, {}, ())
    drained = replace(idles, draining=Draining(NOW - 1, True))
    made = planned(RESTS, drained)
    assert comes_to(made, Stop(idles.id, idles.name, f"{reason}; drained"))
    assert made.evicted == {"m": "not used for 60 s"}


def test_what_nobody_waits_for_rests_unless_something_of_it_is_under_way() -> None:
    want = replace(RESTS, memory_mib=200)
    made = planned(want, host_mib=100)
    assert (made.actions, made.evicted) == ((), {"m": "no request waits for it any more"})
    pending = {"m-9": PendingOp(OpKind.STOP, ReplicaId("m", 9, "old", 1))}
    assert planned(want, host_mib=100, pending=pending).evicted == {}


def test_who_is_woken_is_told() -> None:
    want = replace(RESTS, replicas=0, demand_replicas=1)
    made = planned(want, traffic={"m": ModelTraffic(1, NOW - 5)})
    assert comes_to(made, start())
    assert made.reload_requested == ("m",)


@pytest.mark.parametrize("want", [ONE, TWO])
def test_it_waits_until_another_model_has_left(want: DesiredModel) -> None:
    want = replace(want, memory_mib=50, statement=Statement("load", NOW - 5, "loaded"))
    other = replace(RESTS, name="x", memory_mib=90, idle_ttl_s=None)
    idles = replace(seen(claims={HOST: 90}, **LONG), id=ReplicaId("x", 0, "new", 1), name="x-0")

    def made(preflight: PreflightResult | None) -> Plan:
        preflights = {PreflightKey("x", "new"): PreflightResult(True, NOW)} | (
            {PreflightKey("m", "new"): preflight} if preflight else {}
        )
        state = ObservedState(NOW, (idles,), hosts=(Host(memory_mib=100),), preflights=preflights)
        return plan(DesiredState(3, {"m": want, "x": other}), state, NOW)

    leaves = Drain(idles.id, "x-0", "unloaded: makes room for m; the next request loads it", None)
    waits = Blocked("m", 0, "waiting for room: x is ending")
    assert comes_to(made(PreflightResult(True, NOW)), leaves, blocked=(waits,))
    first = Blocked("m", 0, "waiting for room: whether it can be started is being checked")
    assert comes_to(made(None), Preflight("m", "new", "before a start"), blocked=(first,))
    failed = Blocked("m", 0, "no file", failed=True, retry_at=NOW + RECHECK_S)
    assert comes_to(made(PreflightResult(False, NOW, "no file")), blocked=(failed,), wake_at=NOW + RECHECK_S)


@pytest.mark.parametrize("loaded_once", [frozenset(), frozenset({"m"})])
def test_nothing_is_stopped_because_its_gpu_cannot_be_read(loaded_once: frozenset[str]) -> None:
    want = replace(TWO, gpu_count=1, gpu_choice=("0", "1"))
    on_lost = seen(1, claims={"B": 1_000})
    lost = (UnreadGpu(1, "it has fallen off the bus", "B"),)
    there = (Gpu("A", 0, "x", 1_000),)
    both = (seen(0, claims={"A": 1_000}), on_lost)
    assert planned(want, *both, gpus=there, unread_gpus=lost, loaded_once=loaded_once).actions == ()
    assert planned(want, *both, gpus=None, loaded_once=loaded_once).actions == ()
    edited = replace(want, spec_hash="newer", replicas=1, gpu_choice=("1",))
    reason = "not every GPU that `gpus` names can be used; GPU 1 (B) is left out: it has fallen off the bus"
    of_edit = planned(edited, replace(on_lost, id=seen().id), gpus=there, unread_gpus=lost, loaded_once=loaded_once)
    assert comes_to(of_edit, blocked=(Blocked("m", 0, reason, failed=True),))
