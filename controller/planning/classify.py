"""Sorting each observed replica of a model into exactly one bucket, by its state and by the desired state. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from controller.engines import REPLICA_ENGINES
from controller.planning.gpu_use import explain_unused_gpus
from controller.state import DesiredModel, Health, ObservedReplica, PendingOp, Phase, ReplicaId

_UNKNOWN: Final[Mapping[str, Mapping[str, int]]] = MappingProxyType({})


@dataclass(slots=True)
class Buckets:
    """The replicas of one model, each in exactly one bucket, by what a plan must do with it: leave it alone, remove it,
    stop it, keep it, replace it, or retire it. `classify_replicas` fills it for one plan."""

    busy: list[ReplicaId] = field(default_factory=list)
    """Replicas with an operation under way, without the wanted starts in `current`: no action may be issued, and their
    claims are still held."""
    ended: list[ObservedReplica] = field(default_factory=list)
    """Replicas whose engine has ended."""
    half_created: list[ObservedReplica] = field(default_factory=list)
    """Replicas that were created and not started, without an operation under way."""
    broken: list[tuple[ObservedReplica, str]] = field(default_factory=list)
    """Running replicas that are dead, stalled, past their start deadline or failed to sleep or wake, each with the
    reason."""
    off_gpu: list[tuple[ObservedReplica, str]] = field(default_factory=list)
    """Ready replicas that do not compute on the GPUs that they claim, each with the reason."""
    current: dict[int, ObservedReplica | None] = field(default_factory=dict)
    """Wanted index to the replica that runs the declared definition; None: its start is under way, or its host does not
    answer."""
    outdated: dict[int, ObservedReplica] = field(default_factory=dict)
    """Wanted index to the replica that runs an older definition, or must move to another host."""
    asleep: dict[int, ObservedReplica] = field(default_factory=dict)
    """Index to the replica of the declared definition that sleeps there, where nothing else runs or starts: also of an
    evicted model."""
    surplus: list[ObservedReplica] = field(default_factory=list)
    """Running replicas that are not wanted."""
    silent: list[ObservedReplica] = field(default_factory=list)
    """Replicas on hosts that do not answer, about which nothing is known: no action may be issued. Until the host is
    lost, their indices are taken."""


def classify_replicas(
    model: DesiredModel | None,
    replicas: Iterable[ObservedReplica],
    pending: Iterable[tuple[str, PendingOp]],
    now: float,
    gpu_use: Mapping[str, Mapping[str, int]] = _UNKNOWN,
    moving: Collection[str] = (),
) -> Buckets:
    """Sort the replicas of one model into buckets, and return the buckets. Nothing else is changed.

    `model` None: the model is not declared, so that its running replicas are surplus. `replicas` and `pending` must be
    of this model only. `pending`: replica name and operation of each operation under way, also of replicas that are not
    observed yet. `now`: Unix time in seconds. `gpu_use`: replica name to MiB in use by GPU uuid; without an entry,
    nothing is known and the replica is not `off_gpu`. `moving`: names of replicas that must move to another host. Of
    two replicas at one index and of one definition, the one that is ready, and has been reached for longest without a
    break, is kept and the other is surplus.
    """
    buckets = Buckets()
    operations = dict(pending)
    # Ready ones first, so that of two replicas at one index the one that serves is kept.
    for replica in sorted(replicas, key=_serving_order):
        operation = operations.pop(replica.name, None)
        if replica.silent is not None:
            buckets.silent.append(replica)
        elif operation is not None:
            _sort_busy(model, operation, replica, buckets)
        elif replica.phase is Phase.EXITED:
            buckets.ended.append(replica)
        elif replica.phase is Phase.CREATED:
            buckets.half_created.append(replica)
        elif reason := _breakage_reason(model, replica, now):
            buckets.broken.append((replica, reason))
        elif replica.sleep is not None and replica.is_asleep:
            _sort_asleep(model, replica, buckets, replica.name in moving)
        elif replica.name in gpu_use and (reason := _off_gpu_reason(model, replica, gpu_use[replica.name])):
            buckets.off_gpu.append((replica, reason))
        else:
            _sort_alive(model, replica, buckets, replica.name in moving)
    for operation in operations.values():
        _sort_busy(model, operation, None, buckets)
    _settle_indices(model, buckets)
    return buckets


def _settle_indices(model: DesiredModel | None, buckets: Buckets) -> None:
    """Let sleepers give way to whoever runs or starts at their index, and count the wanted indices of replicas on
    silent hosts as taken, until the hosts answer or are lost."""
    if not buckets.asleep and not buckets.silent:
        return
    for index in [each for each in buckets.asleep if each in buckets.current or each in buckets.outdated]:
        buckets.surplus.append(buckets.asleep.pop(index))
    for replica in buckets.silent:
        is_wanted = model is not None and model.runs and replica.id.index < model.replicas
        if is_wanted and replica.silent == "silent" and replica.phase is not Phase.EXITED:
            buckets.current.setdefault(replica.id.index, None)


def _serving_order(replica: ObservedReplica) -> tuple[bool, float, int, str, int]:
    """Sort key for replicas of one model. One that was out of reach comes after the one that served meanwhile."""
    replica_id, is_ready = replica.id, replica.health is Health.READY
    # Of two hosts that were always in reach of this controller, the later start was made for the one that was lost.
    attempt = -replica_id.attempt if replica.host else replica_id.attempt
    return not is_ready, replica.returned_at, replica_id.index, replica_id.spec_hash, attempt


def _sort_busy(
    model: DesiredModel | None, operation: PendingOp, replica: ObservedReplica | None, buckets: Buckets
) -> None:
    index = operation.id.index
    is_start = operation.kind.is_coming and (replica is None or replica.phase is not Phase.EXITED)
    is_wanted = model is not None and index < model.replicas and operation.id.spec_hash == model.spec_hash
    if is_start and is_wanted and index not in buckets.current:
        buckets.current[index] = None
    else:
        buckets.busy.append(operation.id)


def _sort_alive(model: DesiredModel | None, replica: ObservedReplica, buckets: Buckets, is_moving: bool) -> None:
    index = replica.id.index
    if model is None or not model.runs or index >= model.replicas:
        buckets.surplus.append(replica)
        return
    bucket: dict[int, ObservedReplica] | dict[int, ObservedReplica | None]
    is_current = replica.id.spec_hash == model.spec_hash and not is_moving
    bucket = buckets.current if is_current else buckets.outdated
    if index in bucket:
        buckets.surplus.append(replica)
    else:
        bucket[index] = replica


def _sort_asleep(model: DesiredModel | None, replica: ObservedReplica, buckets: Buckets, is_moving: bool) -> None:
    count = 0 if model is None or not model.runs else model.replicas or model.demand_replicas
    is_current = model is not None and replica.id.spec_hash == model.spec_hash and replica.id.index < count
    if is_current and not is_moving and replica.id.index not in buckets.asleep:
        buckets.asleep[replica.id.index] = replica
    else:
        buckets.surplus.append(replica)


def _breakage_reason(model: DesiredModel | None, replica: ObservedReplica, now: float) -> str | None:
    if replica.fault is not None:
        return replica.fault
    if replica.health is Health.DEAD:
        return "the engine says that it is dead"
    if replica.health is Health.STALLED:
        return "busy or not answering, and no progress for 120 s"
    if model is not None and replica.ready_since is None and replica.started_at is not None:
        waited_s = now - max(replica.started_at, replica.returned_at)
        if waited_s >= model.start_timeout_s:
            return f"not ready within {model.start_timeout_s:g} s of its start"
    return None


def _off_gpu_reason(model: DesiredModel | None, replica: ObservedReplica, mib_in_use: Mapping[str, int]) -> str | None:
    if model is None or replica.id.spec_hash != model.spec_hash or replica.id.index >= model.replicas:
        return None
    if (
        replica.health is not Health.READY
        or replica.draining is not None
        or not REPLICA_ENGINES[model.backend].computes
    ):
        return None
    return explain_unused_gpus(replica, mib_in_use)
