"""What the controller knows beyond what it can observe: operations under way, failures, drains.

All of it is lost when the controller dies, except what `controller.storage.state_dir.StoredState` keeps; the plan of
a new controller then finds the same replicas and goes on.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from controller.engines.base import Verdict
from controller.planning.backoff import has_recovered, next_failure
from controller.planning.draining import DrainState
from controller.reconcile.preflight import Refusal
from controller.schema.attempts import AttemptNumbers
from controller.state import (
    HOST,
    DesiredModel,
    DesiredState,
    Failure,
    ObservedReplica,
    ObservedState,
    OpKind,
    PendingOp,
    Phase,
    PreflightResult,
    ReplicaId,
    ReplicaKey,
)

CLOCK_SLACK_S = 60.0
"""An end this far in the future was written before the clock was set back."""


@dataclass(slots=True)
class OperationState:
    """One controller's own state. Changed on its event loop only."""

    pending: dict[str, PendingOp] = field(default_factory=dict)
    preflights: dict[tuple[str, str], PreflightResult] = field(default_factory=dict)
    preflighting: dict[tuple[str, str], object] = field(default_factory=dict)
    """Those under way, each with a mark of its own: what is asked anew while it runs takes no answer of the old one."""
    refusals: dict[tuple[str, str], Refusal] = field(default_factory=dict)
    """What the log said of the definitions whose preflights fail."""
    pulls: dict[str, Failure | None] = field(default_factory=dict)
    failures: dict[ReplicaKey, Failure] = field(default_factory=dict)
    attempts: AttemptNumbers = field(default_factory=AttemptNumbers)
    """Of every replica that was ever started, also by earlier controllers."""
    drains: dict[str, DrainState] = field(default_factory=dict)
    loaded_once: set[str] = field(default_factory=set)
    left_at: dict[str, float] = field(default_factory=dict)
    """GPU uuid to when a replica was last seen to be gone from it."""
    counted_failures: set[str] = field(default_factory=set)
    """Replicas whose failure was counted: an end that is refused is issued again, and is no second failure."""

    def with_operations(self, observed: ObservedState) -> ObservedState:
        """An observation, and what is known here."""
        return replace(
            observed,
            pending=dict(self.pending),
            preflights=dict(self.preflights),
            preflighting=frozenset(self.preflighting),
            pulls=dict(self.pulls),
            failures=dict(self.failures),
            attempts=self.attempts,
            loaded_once=frozenset(self.loaded_once),
            left_at=dict(self.left_at),
        )

    def note_released_gpus(
        self, previous_replicas: Iterable[ObservedReplica], replicas: Iterable[ObservedReplica], now: float
    ) -> None:
        """Of two observations, which GPUs something has left in between."""
        remaining_names = {replica.name for replica in replicas if replica.phase is not Phase.EXITED}
        for replica in previous_replicas:
            if replica.phase is not Phase.EXITED and replica.name not in remaining_names:
                self.left_at.update(dict.fromkeys((uuid for uuid in replica.claims if uuid != HOST), now))

    def note_attempts(self, replicas: Iterable[ReplicaId]) -> None:
        """These attempts are made, or were seen: none of their names may come again."""
        for replica in replicas:
            self.attempts = self.attempts.with_attempt(replica.key.text, replica.attempt)

    def begin_operation(self, name: str, operation: PendingOp) -> None:
        """Remember an operation that is being issued. At most one per replica."""
        previous_operation = self.pending.get(name)
        assert previous_operation is None or previous_operation.finished_at is not None, (
            f"{name} has an operation under way"
        )
        self.pending[name] = operation

    def finish_operation(self, name: str, now: float) -> None:
        """The operation ended, well or not; it still counts until an observation that begins later."""
        self.pending[name] = replace(self.pending[name], finished_at=now)

    def forget_finished(self, began_at: float) -> None:
        """Drop the operations that had ended before an observation began: it has seen what they did."""
        finished_names = [
            name
            for name, operation in self.pending.items()
            if operation.finished_at is not None
            and (operation.finished_at < began_at or operation.finished_at > began_at + CLOCK_SLACK_S)
        ]
        for name in finished_names:
            del self.pending[name]

    def record_failure(
        self, replica: ReplicaId, verdict: Verdict, now: float, *, ready_for_s: float | None = None
    ) -> Failure:
        """Count a failure towards the replica key's backoff."""
        failure = next_failure(self.failures.get(replica.key), verdict, replica.attempt, now, ready_for_s=ready_for_s)
        self.failures[replica.key] = failure
        return failure

    def prune_state(self, desired: DesiredState, replicas: Iterable[ObservedReplica], now: float) -> None:
        """Forget what no longer matters: failures of edited or proven definitions, drains of replicas that are gone, or
        that are to serve on while the controller is paused."""
        replicas = list(replicas)
        wanted_models = {name for name, model in desired.models.items() if model.replicas}
        # One that is evicted is the same when a request wants it again.
        current_specs = {
            (name, model.spec_hash) for name, model in desired.models.items() if model.replicas or model.demand_replicas
        }
        proven_keys = {replica.id.key for replica in replicas if has_recovered(replica, now)}
        self.failures = {
            key: failure
            for key, failure in self.failures.items()
            if (key.model, key.spec_hash) in current_specs and key not in proven_keys
        }
        self.preflights = {key: result for key, result in self.preflights.items() if key in current_specs}
        self.refusals = {key: refusal for key, refusal in self.refusals.items() if key in current_specs}
        replica_names = {replica.name for replica in replicas}
        staying_names = {each.name for each in replicas if desired.paused and _is_wanted(each, desired)}
        self.drains = {name: drain for name, drain in self.drains.items() if name in replica_names - staying_names}
        self.counted_failures &= replica_names
        images = {model.image for model in desired.models.values()}
        self.pulls = {
            image: failure_state
            for image, failure_state in self.pulls.items()
            if failure_state is None or image in images
        }
        # One that is revoked while it drains serves on with what is left.
        serving_models = {replica.id.model for replica in replicas if replica.ready_since is not None}
        self.loaded_once &= wanted_models | serving_models

    def reset_failures(self, model: DesiredModel) -> None:
        """Forget what went wrong with a model, for somebody asks for it anew: its replicas come all or not at all."""
        self.forget_failures(model)
        self.loaded_once.discard(model.name)

    def forget_failures(self, model: DesiredModel) -> None:
        """Forget what went wrong with a model that serves: what is tried next need not wait."""
        self.failures = {key: failure for key, failure in self.failures.items() if key.model != model.name}
        self.preflights = {key: result for key, result in self.preflights.items() if key[0] != model.name}
        self.preflighting = {key: mark for key, mark in self.preflighting.items() if key[0] != model.name}
        self.refusals = {key: refusal for key, refusal in self.refusals.items() if key[0] != model.name}
        if model.image is not None and self.pulls.get(model.image) is not None:
            del self.pulls[model.image]

    def is_stopping(self, name: str) -> bool:
        """Whether the replica is being stopped or removed."""
        operation = self.pending.get(name)
        return operation is not None and operation.kind is not OpKind.START


def _is_wanted(replica: ObservedReplica, desired: DesiredState) -> bool:
    model = desired.models.get(replica.id.model)
    return model is not None and replica.id.index < model.replicas
