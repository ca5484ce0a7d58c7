"""The status of each model, derived from desired state, observed state and plan. Pure.

The true state may jump between two observations: an engine fails, or a drain is revoked. The published state never
jumps; each round publishes at most one legal step towards the true state.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from contract.status import ModelState, ModelStatus, ReplicaStatus, StatementView
from controller.engines import REPLICA_ENGINES
from controller.engines.base import FigureGap
from controller.planning.actions import Blocked, Plan
from controller.state import (
    DesiredModel,
    DesiredState,
    Failure,
    Health,
    ObservedReplica,
    ObservedState,
    OpKind,
    Phase,
    ReplicaKey,
    Statement,
)


def list_gaps(model: DesiredModel | None, replica: ObservedReplica) -> tuple[FigureGap, ...]:
    """Return what the replica's engine applied otherwise than the model's definition declares, in a fixed order. Empty:
    nothing, as far as the engine reports. Empty also for a model that is no longer declared (None), for an engine that
    has ended, and for one of an older definition, which differs as a whole."""
    if model is None or replica.phase is Phase.EXITED or replica.id.spec_hash != model.spec_hash:
        return ()
    return REPLICA_ENGINES[model.backend].compare_figures(model.definition, replica.figures)


def describe_gap(replica: str, gap: FigureGap) -> str:
    """Return a gap in one sentence. `replica` is the replica's name."""
    return f"{gap.field} is declared as {gap.declared}, and {replica} reports {gap.applied}"


@dataclass(slots=True)
class Round:
    """What one complete round saw and decided: the desired and the observed state, the plan, and the models' statuses.
    The reconciler makes one per complete round and keeps the last, which must not be changed. Previews and dry runs
    make further ones, of which nothing is carried out."""

    desired: DesiredState
    """What was wanted, with the plan's evictions applied."""
    observed: ObservedState
    """What was observed, with the operations and drains that the round issued."""
    plan: Plan
    """The plan of the round. Its actions were started, unless the controller is paused."""
    statuses: tuple[ModelStatus, ...]
    """Status of each model, in name order, with the state that may be published (`publishable_statuses`)."""


PAUSED: Final = "the controller is paused and does not act; `roundhouse resume` lets it"
VRAM_TOLERANCE: Final = 0.1
"""Share of the declared figure by which the observed one may differ without a word."""


def assess_models(desired: DesiredState, observed: ObservedState, plan: Plan) -> tuple[ModelStatus, ...]:
    """Return the status of every declared model, and of every other model that still has replicas, in name order.
    `plan` must be the plan for the same desired and observed state: what it could not do becomes a model's error. The
    states are the true ones; to publish them, pass the result through `publishable_statuses`."""
    replicas: dict[str, list[ObservedReplica]] = defaultdict(list)
    for replica in observed.replicas:
        replicas[replica.id.model].append(replica)
    pending: dict[str, set[OpKind]] = defaultdict(set)
    for operation in observed.pending.values():
        if operation.finished_at is None or operation.kind.is_coming:
            pending[operation.id.model].add(operation.kind)
    blocked: dict[str, list[Blocked]] = defaultdict(list)
    for item in plan.blocked:
        blocked[item.model].append(item)
    names = sorted(desired.models.keys() | replicas.keys())
    statuses = (
        _model_status(desired.models.get(name), name, replicas[name], pending[name], blocked[name], observed)
        for name in names
    )
    return tuple(_with_pause_note(status) if desired.paused else status for status in statuses)


def _with_pause_note(status: ModelStatus) -> ModelStatus:
    if status.state not in (ModelState.LOADING, ModelState.UNLOADING):
        return status
    return status.model_copy(update={"blocked": [*status.blocked, PAUSED]})


def _model_status(
    model: DesiredModel | None,
    name: str,
    replicas: list[ObservedReplica],
    pending: set[OpKind],
    blocked: list[Blocked],
    observed: ObservedState,
) -> ModelStatus:
    ready_count = sum(1 for replica in replicas if is_routable(replica))
    error, plain_error, retry_at = _last_error(model, blocked, observed)
    if model is not None and model.runs and _all_run_again(model, replicas):
        error, plain_error, retry_at = None, None, None
    failure = None if error is None or model is None else _find_failure(model, observed)
    if model is None:
        state = ModelState.UNLOADING
        statement = Statement("file", observed.at, "no longer declared")
    else:
        statement = model.statement
        state = (
            _remote_state(model, observed)
            if not model.runs
            else _model_state(model, replicas, ready_count, pending, blocked, observed)
        )
    return ModelStatus(
        name=name,
        backend=model.backend if model else "",
        state=state,
        aliases=list(model.definition.aliases) if model else [],
        wanted_replicas=model.replicas if model else 0,
        loaded_replicas=ready_count if model is None or model.runs else int(state is ModelState.LOADED),
        statement=StatementView(kind=statement.kind, since=statement.since, reason=statement.reason),
        replicas=[
            _replica_status(model, replica, observed.inflight) for replica in sorted(replicas, key=lambda r: r.id)
        ],
        last_error=error,
        plain_error=plain_error,
        retry_at=retry_at,
        exit_code=None if failure is None else failure.exit_code,
        blocked=[item.reason for item in blocked],
        progress=model_progress(model, replicas, observed.progress) if model and state is ModelState.LOADING else None,
        drift=[
            describe_gap(replica.name, gap)
            for replica in sorted(replicas, key=lambda r: r.id)
            for gap in list_gaps(model, replica)
        ],
        wake_s=max(
            (each.sleep.wake_s for each in replicas if each.sleep and each.sleep.wake_s is not None), default=None
        ),
        vram_warning=_vram_warning(model, observed) if model else None,
    )


def _vram_warning(model: DesiredModel, observed: ObservedState) -> str | None:
    requirement = observed.requirements.get(model.name)
    return explain_vram_gap(model, requirement.observed_per_gpu_mib) if requirement is not None else None


def _all_run_again(model: DesiredModel, replicas: list[ObservedReplica]) -> bool:
    """Return whether every wanted replica serves with the declared definition, so that earlier failures are over."""
    serving_replicas = [
        replica for replica in replicas if is_routable(replica) and replica.id.spec_hash == model.spec_hash
    ]
    return 0 < model.replicas <= len(serving_replicas)


def is_routable(replica: ObservedReplica) -> bool:
    """Return whether gateways may send new requests to the replica: its host answers, and its engine runs, is ready,
    does not drain, and has an address. It may run an older definition than the declared one."""
    return (
        replica.phase is Phase.RUNNING
        and replica.health is Health.READY
        and replica.draining is None
        and replica.silent is None
        and replica.base_url is not None
    )


def _model_state(
    model: DesiredModel,
    replicas: list[ObservedReplica],
    ready_count: int,
    pending: set[OpKind],
    blocked: list[Blocked],
    observed: ObservedState,
) -> ModelState:
    if model.replicas == 0:
        is_running = any(
            each.phase is Phase.RUNNING and not each.is_asleep and each.silent != "lost" for each in replicas
        )
        if is_running or pending & {OpKind.START, OpKind.STOP, OpKind.SLEEP, OpKind.WAKE}:
            return ModelState.UNLOADING
        is_asleep = any(replica.is_asleep and replica.fault is None for replica in replicas)
        return ModelState.SLEEPING if is_asleep else ModelState.UNLOADED
    if ready_count >= model.replicas or (ready_count > 0 and model.name in observed.loaded_once):
        return ModelState.LOADED
    # With a failure, the state is `loading` only during an attempt: a start under way, or an engine coming up.
    is_attempted = any(kind.is_coming for kind in pending) or any(
        replica.phase is Phase.RUNNING and replica.id.spec_hash == model.spec_hash and replica.ready_since is None
        for replica in replicas
        if replica.silent is None
    )
    has_failed = any(item.failed for item in blocked)
    return ModelState.FAILED if has_failed and not is_attempted else ModelState.LOADING


def _remote_state(model: DesiredModel, observed: ObservedState) -> ModelState:
    if model.replicas == 0:
        return ModelState.UNLOADING if model.name in observed.draining_remotes else ModelState.UNLOADED
    if model.name not in observed.remotes:
        return ModelState.LOADING
    return ModelState.LOADED if observed.remotes[model.name] is None else ModelState.FAILED


def _last_error(
    model: DesiredModel | None, blocked: list[Blocked], observed: ObservedState
) -> tuple[str | None, str | None, float | None]:
    """Return the error, the same in plain words, and the time of the next attempt; each None if there is none."""
    if model is None or model.replicas == 0:
        return None, None, None
    if not model.runs:
        error = observed.remotes.get(model.name)
        return error, error, observed.remote_retry_at.get(model.name)
    for item in blocked:
        if item.failed:
            return item.reason, _plain_words(item.reason, item.plain), item.retry_at
    failure = _find_failure(model, observed)
    if failure is None:
        return None, None, None
    return failure.error, _plain_words(failure.error, failure.plain), failure.retry_at


def _plain_words(error: str, plain: str | None) -> str:
    return (error if plain is None else plain) or "it failed"


def _find_failure(model: DesiredModel, observed: ObservedState) -> Failure | None:
    """Return the failures of the first replica that has any."""
    failures = (
        observed.failures.get(ReplicaKey(model.name, index, model.spec_hash, host.name))
        for index in range(model.replicas if observed.failures else 0)
        for host in observed.hosts
    )
    return next((each for each in failures if each is not None), None)


def _replica_status(
    model: DesiredModel | None, replica: ObservedReplica, inflight: Mapping[str, int | None]
) -> ReplicaStatus:
    return ReplicaStatus(
        name=replica.name,
        index=replica.id.index,
        attempt=replica.id.attempt,
        phase=_phase_text(replica),
        spec_hash=replica.id.spec_hash,
        outdated=model is not None and replica.id.spec_hash != model.spec_hash,
        endpoint=replica.base_url,
        inflight=inflight.get(replica.name),
        started_at=replica.started_at,
        claims=dict(replica.claims),
        start_claims=dict(replica.claims if replica.start_claims is None else replica.start_claims),
        host=replica.host,
    )


def _phase_text(replica: ObservedReplica) -> str:
    if replica.phase is Phase.EXITED:
        return "ended"
    if replica.silent is not None:
        return replica.silent
    if replica.draining is not None:
        return "draining"
    return "starting" if replica.phase is Phase.CREATED else replica.health.value


def is_starting(model: DesiredModel, replica: ObservedReplica) -> bool:
    """Return whether the replica runs an engine of the model as it is wanted (definition and index) that was never
    ready. False for a remote model, and for a replica that is created but does not run."""
    return (
        model.runs
        and replica.id.index < model.replicas
        and replica.phase is Phase.RUNNING
        and replica.id.spec_hash == model.spec_hash
        and replica.ready_since is None
        and replica.silent is None
    )


def model_progress(
    model: DesiredModel, replicas: Iterable[ObservedReplica], fractions: Mapping[str, float]
) -> float | None:
    """Return how far a model's load is, 0 to 1: the mean over the wanted replicas. Ready ones count 1, those whose
    progress is unknown count 0, and replicas of an older definition do not count. `fractions` maps replica names to the
    progress, 0 to 1, that their engines report. None: no replica is wanted, or the progress of none is known."""
    by_index: dict[int, float] = {}
    for replica in replicas:
        if replica.phase is not Phase.RUNNING or replica.id.spec_hash != model.spec_hash or replica.silent is not None:
            continue
        fraction = 1.0 if replica.health is Health.READY else fractions.get(replica.name)
        if fraction is not None and replica.id.index < model.replicas:
            by_index[replica.id.index] = max(fraction, by_index.get(replica.id.index, 0.0))
    return sum(by_index.values()) / model.replicas if by_index else None


def explain_vram_gap(model: DesiredModel, observed_mib: int | None) -> str | None:
    """Return a warning for operators that a replica takes more or less of a GPU than `vram_mib` declares, by a tenth of
    the declared MiB or more, and what to do. None: it takes about as much, the model declares no `vram_mib` or has no
    GPU, or nothing was observed. `observed_mib` is the most memory, in MiB, that one replica was observed to hold on
    one of its GPUs; None and 0 mean that it is not known."""
    declared_mib = model.vram_mib
    if declared_mib is None or not observed_mib or model.gpu_count == 0:
        return None
    if abs(observed_mib - declared_mib) < VRAM_TOLERANCE * declared_mib:
        return None
    difference = observed_mib / declared_mib - 1
    figures = f"`vram_mib` declares {declared_mib} MiB of each GPU, and a replica was seen to take {observed_mib}"
    if difference > 0:
        return f"{figures}, {difference:.0%} more: raise it, or its next load may find too little memory"
    return f"{figures}, {-difference:.0%} less: a lower one leaves room for others"
