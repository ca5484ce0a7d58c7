"""What the controller knows beyond what it can observe: operations under way, failures, drains.

It is lost when the controller dies, except what `controller.storage.state_dir.StoredState` keeps. The plan of a new
controller then finds the same replicas and goes on.
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
    StartFailure,
)

MOST_START_FAILURES = 4
"""Failed starts that are kept of each replica key."""
CLOCK_SLACK_S = 60.0
"""An operation whose end lies more than this many seconds in the future ended before the clock was set back."""


@dataclass(slots=True)
class OperationState:
    """The operations, results and failures of one controller. Use it on the controller's event loop only."""

    pending: dict[str, PendingOp] = field(default_factory=dict)
    """The operation of each replica, by replica name, until an observation that began after its end."""
    preflights: dict[tuple[str, str], PreflightResult] = field(default_factory=dict)
    """The last result by (model, spec hash)."""
    preflighting: dict[tuple[str, str], object] = field(default_factory=dict)
    """Preflights under way, by (model, spec hash), each with a unique mark. A result whose mark is no longer here is
    dropped, because its preflight was forgotten or issued again meanwhile."""
    refusals: dict[tuple[str, str], Refusal] = field(default_factory=dict)
    """What the log last said about failing preflights, by (model, spec hash)."""
    pulls: dict[str, Failure | None] = field(default_factory=dict)
    """Image to its failed pull; None: its pull is under way."""
    downloads: dict[str, Failure | None] = field(default_factory=dict)
    """Source to its failed download; None: its download is under way."""
    failures: dict[ReplicaKey, Failure] = field(default_factory=dict)
    """Consecutive failures by replica key, which decide when the next start may be tried."""
    start_failures: dict[ReplicaKey, tuple[StartFailure, ...]] = field(default_factory=dict)
    """The last `MOST_START_FAILURES` failed starts by replica key, oldest first."""
    attempts: AttemptNumbers = field(default_factory=AttemptNumbers)
    """The highest attempt number of every replica ever started, also by earlier controllers."""
    drains: dict[str, DrainState] = field(default_factory=dict)
    """Drains under way, by replica name."""
    loaded_once: set[str] = field(default_factory=set)
    """Models that were `loaded` since they were last wanted. Such a model stays `loaded` with one ready replica."""
    left_at: dict[str, float] = field(default_factory=dict)
    """GPU uuid to Unix time at which a replica on that GPU was last found gone."""
    counted_failures: set[str] = field(default_factory=set)
    """Names of replicas whose failure was counted. A stop that is issued again must not count it a second time."""

    def with_operations(self, observed: ObservedState) -> ObservedState:
        """Return a copy of the observation with the operations, preflights, pulls, downloads, failures, attempts,
        `loaded_once` and `left_at` that are known here. `observed` is not changed. Drains are not added: the reconciler
        sets them per replica."""
        return replace(
            observed,
            pending=dict(self.pending),
            preflights=dict(self.preflights),
            preflighting=frozenset(self.preflighting),
            pulls=dict(self.pulls),
            downloads=dict(self.downloads),
            failures=dict(self.failures),
            start_failures=dict(self.start_failures),
            attempts=self.attempts,
            loaded_once=frozenset(self.loaded_once),
            left_at=dict(self.left_at),
        )

    def note_released_gpus(
        self, previous_replicas: Iterable[ObservedReplica], replicas: Iterable[ObservedReplica], now: float
    ) -> None:
        """Note in `left_at` that the GPUs of replicas that ran in the previous observation and no longer run in this
        one, or have ended in this one and were not in the previous one, were left at `now`, Unix time."""
        previous, current = ({each.name: each for each in seen} for seen in (previous_replicas, replicas))
        for name, replica in (current | previous).items():
            had_ended = name in previous and replica.phase is Phase.EXITED
            if not had_ended and (name not in current or current[name].phase is Phase.EXITED):
                self.left_at.update(dict.fromkeys((uuid for uuid in replica.claims if uuid != HOST), now))

    def note_attempts(self, replicas: Iterable[ReplicaId]) -> None:
        """Raise the attempt numbers in `attempts` to those of replicas that are being started or were seen, so that no
        name is used twice. A lower number than the known one changes nothing. The caller must store `attempts`."""
        for replica in replicas:
            self.attempts = self.attempts.with_attempt(replica.key.text, replica.attempt)

    def begin_operation(self, name: str, operation: PendingOp) -> None:
        """Record an operation that is being issued for the replica `name`. Raises AssertionError if another operation
        of the replica is under way: there is at most one at a time."""
        previous_operation = self.pending.get(name)
        assert previous_operation is None or previous_operation.finished_at is not None, (
            f"{name} has an operation under way"
        )
        self.pending[name] = operation

    def finish_operation(self, name: str, now: float) -> None:
        """Record that the operation of the replica `name` ended at `now` (Unix time), successfully or not. It stays
        known until `forget_finished` drops it. Raises KeyError if there is no operation of that replica."""
        self.pending[name] = replace(self.pending[name], finished_at=now)

    def forget_finished(self, began_at: float) -> None:
        """Drop the operations that ended before `began_at`, the Unix time at which an observation began: it shows their
        effects. Also drop those whose end lies more than 60 s (`CLOCK_SLACK_S`) after it: the clock was set back."""
        finished_names = [
            name
            for name, operation in self.pending.items()
            if operation.finished_at is not None
            and (operation.finished_at < began_at or operation.finished_at > began_at + CLOCK_SLACK_S)
        ]
        for name in finished_names:
            del self.pending[name]

    def record_failure(
        self,
        replica: ReplicaId,
        verdict: Verdict,
        now: float,
        *,
        ready_for_s: float | None = None,
        began_at: float | None = None,
    ) -> Failure:
        """Count a failure of a replica towards the backoff of its key, and return the key's failures so far.

        `now` is Unix time. `ready_for_s` says for how many seconds the replica had been ready; None: never, or its
        ready time does not count. `began_at` is the Unix time of the start that failed; None: the engine had been
        ready, so that its start did not fail.
        """
        if began_at is not None:
            failed_starts = self.start_failures.get(replica.key, ())
            words = verdict.message if verdict.plain is None else verdict.plain
            failed_start = StartFailure(words, max(0.0, now - began_at))
            self.start_failures[replica.key] = (*failed_starts, failed_start)[-MOST_START_FAILURES:]
        failure = next_failure(self.failures.get(replica.key), verdict, replica.attempt, now, ready_for_s=ready_for_s)
        self.failures[replica.key] = failure
        return failure

    def prune_state(self, desired: DesiredState, replicas: Iterable[ObservedReplica], now: float) -> None:
        """Forget what no longer matters. `replicas` are all that were observed, `now` is Unix time.

        That is: failures and preflights of definitions that were edited or are no longer wanted (those of an evicted
        model stay), failures of replicas that have recovered, failed pulls of images and failed downloads of sources
        that no model uses, drains of replicas that are gone, drains of wanted replicas while the controller is paused,
        and `loaded_once` of models that are neither wanted nor still serve.
        """
        replicas = list(replicas)
        wanted_models = {name for name, model in desired.models.items() if model.replicas}
        # An evicted model keeps its failures: they count again when a request loads it.
        current_specs = {
            (name, model.spec_hash) for name, model in desired.models.items() if model.replicas or model.demand_replicas
        }
        proven_keys = {replica.id.key for replica in replicas if has_recovered(replica, now)}
        self.failures = {
            key: failure
            for key, failure in self.failures.items()
            if (key.model, key.spec_hash) in current_specs and key not in proven_keys
        }
        self.start_failures = {
            key: failed_starts
            for key, failed_starts in self.start_failures.items()
            if (key.model, key.spec_hash) in current_specs
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
        sources = {model.missing_source for model in desired.models.values()}
        self.downloads = {
            source: failure_state
            for source, failure_state in self.downloads.items()
            if failure_state is None or source in sources
        }
        # A model whose unload is revoked during the drain goes on serving with the replicas that are left.
        serving_models = {replica.id.model for replica in replicas if replica.ready_since is not None}
        self.loaded_once &= wanted_models | serving_models

    def reset_failures(self, model: DesiredModel) -> None:
        """Forget a model's failures as `forget_failures` does, because it is loaded anew. It counts as loaded again
        only once all replicas are ready."""
        self.forget_failures(model)
        self.loaded_once.discard(model.name)

    def forget_failures(self, model: DesiredModel) -> None:
        """Forget a model's failures, preflights, failed pull and failed download, so that the next try need not wait
        for a backoff. The result of a preflight under way will be dropped; a pull or download under way goes on.
        `start_failures` stays. Nothing is started: the next plan does that."""
        self.failures = {key: failure for key, failure in self.failures.items() if key.model != model.name}
        self.preflights = {key: result for key, result in self.preflights.items() if key[0] != model.name}
        self.preflighting = {key: mark for key, mark in self.preflighting.items() if key[0] != model.name}
        self.refusals = {key: refusal for key, refusal in self.refusals.items() if key[0] != model.name}
        if model.image is not None and self.pulls.get(model.image) is not None:
            del self.pulls[model.image]
        if model.missing_source is not None and self.downloads.get(model.missing_source) is not None:
            del self.downloads[model.missing_source]

    def is_stopping(self, name: str) -> bool:
        """Return whether a stop or removal of the replica of this name is under way, or has ended and not yet been
        dropped by `forget_finished`. False for an unknown name."""
        operation = self.pending.get(name)
        return operation is not None and operation.kind is not OpKind.START


def _is_wanted(replica: ObservedReplica, desired: DesiredState) -> bool:
    model = desired.models.get(replica.id.model)
    return model is not None and replica.id.index < model.replicas
