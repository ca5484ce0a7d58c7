"""`plan(desired, observed, now) -> Plan`: the one place where Roundhouse decides what to do. Pure.

First each replica is sorted into one bucket by its state and by the desired state; then each bucket gets its action.
The same input gives the same plan. After any prefix of a plan was applied, the plan of the new state continues it.
Apply, dry run, status and metrics all use this function.

Invariants, held by tests/properties/controller/planning/test_plan.py:
- repeated plan and apply ends in a state whose plan is empty;
- on no GPU do claims exceed memory;
- nothing is drained for a replacement before the replacement's preflight succeeded;
- a roll takes one replica at a time: of n that serve, n - 1 go on serving;
- nothing is started before its backoff is over;
- nothing is done on a host that does not answer, and nothing is started on one that is drained;
- a sleeping replica is woken only where its claims have room, and is stopped once its memory is needed;
- a model is evicted only as controller/planning/eviction.py allows;
- no action names a replica that was not observed as ours.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Final

from controller.planning.actions import WAITING_FOR_ROOM, Blocked, Plan, PutToSleep, Stop
from controller.planning.classify import classify_replicas
from controller.planning.eviction import decide_evictions
from controller.planning.model_turn import ModelTurn
from controller.planning.placement import RELEASE_S, ClaimLedger
from controller.planning.replica_changes import leaving_replicas, moving_replicas
from controller.planning.rolling import fill_replicas
from controller.state import DesiredState, ObservedReplica, ObservedState, PendingOp

RELEASE_CHECK_S: Final = 1.0
"""Seconds after which GPU memory that an ended engine still holds is looked at again: its release is no event."""


def plan(desired: DesiredState, observed: ObservedState, now: float) -> Plan:
    """Return the actions to take now, what is blocked, and when to plan again. `now` is Unix time in seconds.

    The caller starts the actions in order, but none of them if `desired.paused`, which the plan does not look at.
    Nothing is changed and no error is raised: a model that cannot be started is in `Plan.blocked`. Takes O(replicas +
    models) time where no model waits for the room of others.
    """
    replicas: dict[str, list[ObservedReplica]] = defaultdict(list)
    for replica in observed.replicas:
        replicas[replica.id.model].append(replica)
    pending: dict[str, list[tuple[str, PendingOp]]] = defaultdict(list)
    for name, operation in observed.pending.items():
        pending[operation.id.model].append((name, operation))
    ledger = ClaimLedger.of(observed)
    is_one_host = len(observed.hosts) == 1 and not observed.hosts[0].name
    moving = {} if is_one_host else moving_replicas(desired, observed)
    decision = decide_evictions(desired, observed, ledger, now)
    desired = decision.desired
    ledger.leaving = tuple(replica for replica, _ in leaving_replicas(desired, observed))
    turns = []
    # First what frees, then what claims: an engine that leaves makes room within the same plan only once it is gone.
    for name in sorted(desired.models.keys() | replicas.keys() | pending.keys()):
        model, wait_reason = desired.models.get(name), decision.wait_reasons.get(name)
        buckets = classify_replicas(model, replicas[name], pending[name], now, observed.gpu_use, moving)
        turn = ModelTurn(model, observed, ledger, now, desired.preflight_recheck_s, buckets, wait_reason)
        turn.sleeping, turn.waking = decision.sleeping, decision.waking
        turn.moving, turn.checked_hosts = moving, decision.checked_hosts.get(name, ())
        turn.clear_replicas()
        turns.append(turn)
    for turn in sorted(turns, key=lambda each: decision.queue_place(each.model)):
        fill_replicas(turn)
    actions = tuple(action for turn in turns for action in turn.actions)
    blocked = tuple(blocked for turn in turns for blocked in turn.blocked)
    times = [*decision.wake_times, *(wake_at for turn in turns for wake_at in turn.wake_times)]
    if _awaits_release(blocked, observed):
        times.append(now + RELEASE_CHECK_S)
    wake_times = [wake_at for wake_at in times if wake_at > now]
    stopping_models = {action.id.model for action in actions if isinstance(action, Stop | PutToSleep)}
    staying_models = {each.id.model for each in observed.replicas if each.sleep is None or not each.is_asleep}
    staying_models -= stopping_models
    return Plan(
        desired.generation,
        actions,
        blocked,
        min(wake_times, default=None),
        desired,
        {name: reason for name, reason in decision.evicted.items() if name not in staying_models and not pending[name]},
        decision.reload_requested,
    )


def _awaits_release(blocked: Iterable[Blocked], observed: ObservedState) -> bool:
    """Whether a model waits for room while memory of an ended engine may still be in use."""
    was_left = any(observed.at - left_at < RELEASE_S for left_at in observed.left_at.values())
    return was_left and any(each.reason.startswith(WAITING_FOR_ROOM) for each in blocked)
