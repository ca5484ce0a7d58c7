"""`plan(desired, observed, now) -> Plan`: the one place where Roundhouse decides what to do. Pure.

Every replica is first put into one bucket, by what it is and by what is wanted; then each bucket gets its action.
The same input gives the same plan; a plan applied in part, in any prefix, leads to a state whose own plan goes on.
Apply, dry run, status and metrics all use this function.

Invariants, held by tests/properties/controller/planning/test_plan.py:
- repeated plan and apply ends in a state whose plan is empty;
- on no GPU do claims exceed memory;
- nothing is drained for a replacement before the replacement's preflight succeeded;
- a roll takes one replica at a time: of n that serve, n - 1 go on serving;
- nothing is started before its backoff is over;
- a model is let go only as controller/planning/eviction.py allows;
- no action names a replica that was not observed as ours.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from controller.engines.base import Verdict
from controller.planning.actions import Action, Blocked, Drain, Plan, Preflight, PullImage, Remove, Start, Stop, Undrain
from controller.planning.backoff import verdict_of_exit
from controller.planning.classify import Buckets, classify_replicas
from controller.planning.eviction import decide_evictions
from controller.planning.placement import ClaimLedger, NoRoom, Placement, place_replica
from controller.state import (
    HOST,
    DesiredModel,
    DesiredState,
    Health,
    ObservedReplica,
    ObservedState,
    PendingOp,
    ReplicaId,
    ReplicaKey,
)

VANISHED_DRAIN_S = 300.0
"""Drain deadline of a model that is no longer declared, so that its own is not known any more."""


def plan(desired: DesiredState, observed: ObservedState, now: float) -> Plan:
    """What to do now. O(replicas + models); `now` is Unix time in seconds."""
    replicas: dict[str, list[ObservedReplica]] = defaultdict(list)
    for replica in observed.replicas:
        replicas[replica.id.model].append(replica)
    pending: dict[str, list[tuple[str, PendingOp]]] = defaultdict(list)
    for name, operation in observed.pending.items():
        pending[operation.id.model].append((name, operation))
    ledger = ClaimLedger.of(observed)
    decision = decide_evictions(desired, observed, ledger, now)
    desired = decision.desired
    turns = []
    # First what frees, then what claims: an engine that leaves makes room within the same plan only once it is gone.
    for name in sorted(desired.models.keys() | replicas.keys() | pending.keys()):
        model, wait_reason = desired.models.get(name), decision.wait_reasons.get(name)
        turn = ModelTurn(model, observed, ledger, now, desired.preflight_recheck_s, wait_reason)
        turn.buckets = classify_replicas(turn.model, replicas[name], pending[name], now, observed.gpu_use)
        turn.clear_replicas()
        turns.append(turn)
    for turn in sorted(turns, key=lambda each: decision.queue_place(each.model)):
        turn.fill_replicas()
    actions = tuple(action for turn in turns for action in turn.actions)
    wake_times = [
        wake_at
        for wake_at in (*decision.wake_times, *(wake_at for turn in turns for wake_at in turn.wake_times))
        if wake_at > now
    ]
    stopping_models = {action.id.model for action in actions if isinstance(action, Stop)}
    staying_models = {replica.id.model for replica in observed.replicas} - stopping_models
    return Plan(
        desired.generation,
        actions,
        tuple(blocked for turn in turns for blocked in turn.blocked),
        min(wake_times, default=None),
        desired,
        {name: reason for name, reason in decision.evicted.items() if name not in staying_models and not pending[name]},
        decision.reload_requested,
    )


@dataclass(slots=True)
class ModelTurn:
    """One model's turn in one plan."""

    model: DesiredModel | None
    observed: ObservedState
    ledger: ClaimLedger
    now: float
    preflight_recheck_s: float
    wait_reason: str | None = None
    """The room that it waits for, in words."""
    buckets: Buckets = field(default_factory=Buckets)
    actions: list[Action] = field(default_factory=list)
    blocked: list[Blocked] = field(default_factory=list)
    wake_times: list[float] = field(default_factory=list)
    failed_keys: set[ReplicaKey] = field(default_factory=set)
    """Keys whose failure this plan itself reports: when to try again is known to the next one."""

    # What leaves.

    def clear_replicas(self) -> None:
        """Everything that has ended, is broken or is not wanted."""
        for replica in self.buckets.ended:
            end = self._verdict_of_end(replica)
            self.actions.append(Remove(replica.id, replica.name, "ended", end))
            if end is not None:
                self.failed_keys.add(replica.id.key)
        for replica in self.buckets.half_created:
            self.actions.append(Remove(replica.id, replica.name, "half-created, and nothing is creating it"))
        for replica, reason in self.buckets.broken:
            self.actions.append(Stop(replica.id, replica.name, reason, Verdict(reason)))
            self.failed_keys.add(replica.id.key)
        for replica, reason in self.buckets.off_gpu:
            self.actions.append(Stop(replica.id, replica.name, reason, Verdict(reason), served=False))
            self.failed_keys.add(replica.id.key)
        for replica in self.buckets.surplus:
            self._drain_or_stop(replica, self._surplus_reason())

    def _verdict_of_end(self, replica: ObservedReplica) -> Verdict | None:
        if self.model is None or replica.exit is None or self.model.replicas == 0 or replica.draining is not None:
            return None
        return verdict_of_exit(self.model.backend, replica.exit, was_ready=replica.ready_since is not None)

    def _surplus_reason(self) -> str:
        if self.model is None:
            return "the model is no longer declared"
        if not self.model.runs:
            return "the model is served elsewhere now"
        return f"unloaded: {self.model.statement.reason}" if self.model.replicas == 0 else "more replicas than declared"

    def _drain_or_stop(self, replica: ObservedReplica, reason: str) -> None:
        """Drain, then stop; at once where nothing was ever routed."""
        draining = replica.draining
        deadline = self._drain_deadline(self.now if draining is None else draining.since)
        if replica.ready_since is None:
            self._stop(replica, reason)
        elif draining is None:
            self.actions.append(Drain(replica.id, replica.name, reason, deadline))
        elif draining.idle:
            self._stop(replica, f"{reason}; drained")
        elif deadline is not None and self.now >= deadline:
            self._stop(replica, f"{reason}; its drain deadline has passed")
        elif deadline is not None:
            self.wake_times.append(deadline)

    def _stop(self, replica: ObservedReplica, reason: str) -> None:
        """End it, unless another one loads or stops on its GPUs: engines measure the memory that is free meanwhile."""
        busy_replica = self.ledger.find_busy_neighbour(replica)
        if busy_replica is None:
            self.actions.append(Stop(replica.id, replica.name, reason))
            self.ledger.busy_replicas.update(
                dict.fromkeys((uuid for uuid in replica.claims if uuid != HOST), replica.name)
            )
        else:
            wait_reason = f"it is stopped once {busy_replica} is done on its GPU"
            self.blocked.append(Blocked(replica.id.model, replica.id.index, wait_reason))

    def _drain_deadline(self, since: float) -> float | None:
        """None: an operator's unload, which waits as long as it takes."""
        if self.model is None:
            return since + VANISHED_DRAIN_S
        if self.model.replicas == 0 and not self.model.drain_ends:
            return None
        return since + self.model.drain_timeout_s

    # What comes.

    def fill_replicas(self) -> None:
        """Every wanted index gets its replica; outdated ones are replaced one at a time."""
        model = self.model
        if model is None or not model.runs:
            return
        if self._holds_together(model):
            return
        self._undrain_current(model)
        is_rolling = self._is_rolling(model)
        for index in range(model.replicas):
            old_replica = self.buckets.outdated.get(index)
            if index in self.buckets.current:
                if old_replica is not None:
                    self._retire_replaced(self.buckets.current[index], old_replica)
                    is_rolling = True
            elif old_replica is None:
                self._start(model, index, "no replica at this index")
                is_rolling = True
            elif not is_rolling:
                self._replace(model, index, old_replica)
                is_rolling = True

    def _is_rolling(self, model: DesiredModel) -> bool:
        """Whether a replica is on its way, or failed on it: until it serves, no other one is replaced."""
        current = self.buckets.current.values()
        if any(replica is None or replica.health is not Health.READY for replica in current):
            return True
        missing_indices = set(range(model.replicas)) - self.buckets.outdated.keys() - self.buckets.current.keys()
        keys = (ReplicaKey(model.name, index, model.spec_hash) for index in missing_indices)
        failures = (self.observed.failures.get(key) for key in keys)
        return any(failure is not None and failure.must_wait(self.now) for failure in failures)

    def _undrain_current(self, model: DesiredModel) -> None:
        for current in filter(None, self.buckets.current.values()):
            if current.draining is not None:
                self.actions.append(Undrain(current.id, current.name, "wanted again"))
            elif current.ready_since is None and current.started_at is not None:
                self.wake_times.append(current.started_at + model.start_timeout_s)

    def _holds_together(self, model: DesiredModel) -> bool:
        """Until a model is first loaded, its replicas come all or not at all."""
        if model.replicas < 2 or model.name in self.observed.loaded_once or self.buckets.outdated:
            return False
        for index in range(model.replicas):
            key = ReplicaKey(model.name, index, model.spec_hash)
            failure = self.observed.failures.get(key)
            if failure is None or not failure.must_wait(self.now):
                continue
            self._retire_current(f"all or nothing: replica {index} failed")
            self._add_blocked(index, failure.error, failure.retry_at, failed=True)
            return True
        return self._exceeds_room(model)

    def _exceeds_room(self, model: DesiredModel) -> bool:
        missing_indices = [index for index in range(model.replicas) if index not in self.buckets.current]
        if not missing_indices:
            return False
        scratch = self.ledger.copy_without(())
        for index in missing_indices:
            placement = place_replica(model, self.observed, scratch)
            if self.wait_reason is not None:
                self._wait_for_room(model, index, self.wait_reason)
                return True
            if isinstance(placement, Placement):
                scratch.add_claims(placement.claims, model=model.name)
            elif not placement.waiting:
                self._retire_current(f"all or nothing: no room for replica {index}")
                self._add_blocked(index, placement.reason, None, failed=True)
                return True
        return False

    def _retire_current(self, reason: str) -> None:
        for current in self.buckets.current.values():
            if current is not None:
                self._drain_or_stop(current, reason)

    def _retire_replaced(self, current: ObservedReplica | None, old_replica: ObservedReplica) -> None:
        if current is not None and current.health is Health.READY:
            self._drain_or_stop(old_replica, "replaced by a replica of the edited definition")

    def _replace(self, model: DesiredModel, index: int, old_replica: ObservedReplica) -> None:
        """New one ready first where memory allows, else old one drained first."""
        if self._backs_off(model, index):
            self._undrain_replaced(old_replica)
            return
        # One failed probe does not make an engine useless: what has served may serve again.
        is_serving = old_replica.ready_since is not None and old_replica.draining is None
        placement_alongside = place_replica(model, self.observed, self.ledger)
        placement_instead = place_replica(model, self.observed, self.ledger.copy_without([old_replica.claims]))
        if is_serving and isinstance(placement_alongside, NoRoom) and placement_alongside.waiting:
            self._add_blocked(index, placement_alongside.reason, None)
        elif isinstance(placement_alongside, NoRoom) and isinstance(placement_instead, NoRoom):
            self._add_blocked(index, placement_instead.reason, None, failed=not placement_instead.waiting)
            self._undrain_replaced(old_replica)
        elif not self._is_start_checked(model, index):
            result = self.observed.preflights.get((model.name, model.spec_hash))
            if result is not None and not result.ok:
                self._undrain_replaced(old_replica)
        elif is_serving and isinstance(placement_alongside, Placement):
            self._issue_start(
                model, index, placement_alongside, "the definition was edited; the old replica serves until then"
            )
        else:
            self._drain_or_stop(old_replica, "the definition was edited" + ("; no room for both" if is_serving else ""))

    def _undrain_replaced(self, old_replica: ObservedReplica) -> None:
        """Let an old replica serve on: what was to replace it cannot start."""
        if old_replica.draining is not None:
            self.actions.append(Undrain(old_replica.id, old_replica.name, "what was to replace it cannot start"))

    def _start(self, model: DesiredModel, index: int, reason: str) -> None:
        if self._backs_off(model, index):
            return
        placement = place_replica(model, self.observed, self.ledger)
        if self.wait_reason is not None:
            self._wait_for_room(model, index, self.wait_reason)
        elif isinstance(placement, NoRoom):
            self._add_blocked(index, placement.reason, None, failed=not placement.waiting)
        elif self._is_start_checked(model, index):
            self._issue_start(model, index, placement, reason)

    def _wait_for_room(self, model: DesiredModel, index: int, room: str) -> None:
        """Nobody leaves for it before it is known that it can be started."""
        self._is_start_checked(model, index)
        result = self.observed.preflights.get((model.name, model.spec_hash))
        if result is None or result.ok:
            self._add_blocked(index, room, None)

    def _issue_start(self, model: DesiredModel, index: int, placement: Placement, reason: str) -> None:
        key = ReplicaKey(model.name, index, model.spec_hash)
        attempt = 1 + self.observed.attempts.highest_of(key.text)
        self.ledger.add_claims(placement.claims, model=model.name, busy_with=f"{model.name}/{index}")
        self.actions.append(Start(ReplicaId(model.name, index, model.spec_hash, attempt), reason, placement.claims))

    def _backs_off(self, model: DesiredModel, index: int) -> bool:
        key = ReplicaKey(model.name, index, model.spec_hash)
        if key in self.failed_keys:
            return True
        failure = self.observed.failures.get(key)
        if failure is None or not failure.must_wait(self.now):
            return False
        self._add_blocked(index, failure.error, failure.retry_at, failed=True)
        return True

    def _is_start_checked(self, model: DesiredModel, index: int) -> bool:
        """Whether a fresh preflight says that the start can succeed; else what to do about it."""
        key = (model.name, model.spec_hash)
        result = self.observed.preflights.get(key)
        is_fresh = result is not None and result.is_fresh(self.now, self.preflight_recheck_s)
        if not is_fresh and key not in self.observed.preflighting:
            self._add_once(Preflight(model.name, model.spec_hash, "before a start"))
        if result is None:
            return False
        if result.missing_image is not None:
            self._pull(model, index, result.missing_image)
        elif not result.ok:
            recheck_at = result.at + self.preflight_recheck_s
            self._add_blocked(index, result.error or "preflight failed", recheck_at, failed=True)
        return is_fresh and result.ok

    def _pull(self, model: DesiredModel, index: int, image: str) -> None:
        failure = self.observed.pulls.get(image)
        if failure is not None and failure.must_wait(self.now):
            self._add_blocked(index, failure.error, failure.retry_at, failed=True)
        elif image in self.observed.pulls and failure is None:
            self._add_blocked(index, f"image {image} is being pulled", None)
        else:
            self._add_once(PullImage(model.name, image, "the image is not on this host"))

    def _add_once(self, action: Action) -> None:
        if action not in self.actions:
            self.actions.append(action)

    def _add_blocked(self, index: int, reason: str, retry_at: float | None, *, failed: bool = False) -> None:
        name = self.model.name if self.model is not None else ""
        self.blocked.append(Blocked(name, index, reason, failed, retry_at))
        if retry_at is not None:
            self.wake_times.append(retry_at)
