"""Replicas that leave, are missing or come independently of evictions. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from controller.hosts import HostState
from controller.planning.eviction_candidates import EvictionCandidate, is_evictable
from controller.planning.placement import booked_claims
from controller.state import DesiredState, ObservedReplica, ObservedState, Phase


def leaving_replicas(desired: DesiredState, observed: ObservedState) -> list[tuple[ObservedReplica, float]]:
    """Return the running replicas that are being stopped, removed or put to sleep or are not wanted, on hosts that
    answer, in the order observed, each with the Unix time at which it began to leave (drain or stop); that of the
    observation if it is yet to begin. Those that sleep already are not among them."""
    replicas = []
    for replica in observed.replicas:
        model = desired.models.get(replica.id.model)
        operation = observed.pending.get(replica.name)
        if replica.silent is not None or (replica.sleep is not None and replica.is_asleep and operation is None):
            continue  # the room of sleepers is given to others as they need it
        is_ending = operation is not None and not operation.kind.is_coming
        is_unwanted = model is None or not model.runs or replica.id.index >= model.replicas
        if replica.phase is Phase.RUNNING and (is_ending or is_unwanted):
            began_at = operation.began_at if operation is not None and is_ending else observed.at
            since = began_at if replica.draining is None else min(began_at, replica.draining.since)
            replicas.append((replica, since))
    return replicas


def missing_replicas(desired: DesiredState, observed: ObservedState) -> dict[str, tuple[int, ...]]:
    """Return, by model name, the wanted indices (from 0), ascending, at which no engine runs or is being started,
    whatever definition it runs.

    Models that lack no replica, and remote models, have no entry. A replica that is being stopped or sleeps, or whose
    host is lost, counts as missing; one that is being woken, or whose host is silent, does not.
    """
    indices_by_model: dict[str, set[int]] = {}
    for replica in observed.replicas:
        operation = observed.pending.get(replica.name)
        is_there = replica.sleep is None or not replica.is_asleep if operation is None else operation.kind.is_coming
        if replica.phase is Phase.RUNNING and is_there and replica.silent != "lost":
            indices_by_model.setdefault(replica.id.model, set()).add(replica.id.index)
    for operation in observed.pending.values():
        if operation.kind.is_coming:
            indices_by_model.setdefault(operation.id.model, set()).add(operation.id.index)
    missing_indices = {}
    for model in desired.models.values():
        indices = indices_by_model.get(model.name, ())
        if model.runs and model.replicas > sum(index < model.replicas for index in indices):
            missing_indices[model.name] = tuple(index for index in range(model.replicas) if index not in indices)
    return missing_indices


def coming_replicas(
    desired: DesiredState, observed: ObservedState, candidates: Mapping[str, EvictionCandidate]
) -> dict[str, list[Mapping[str, int]]]:
    """Return, by model name, the claims of each replica of the models that will be eviction candidates once they are
    loaded.

    These are the models that may be evicted, are not in `candidates`, and have a replica that runs or is being started,
    and is not being stopped. Each claims mapping is MiB by GPU uuid or `memory_key`.
    """
    claims_by_model: dict[str, list[Mapping[str, int]]] = {}
    observed_names = {replica.name for replica in observed.replicas}
    starts = {name: op for name, op in observed.pending.items() if op.kind.is_coming}
    active_replicas = [
        each
        for each in observed.replicas
        if each.name in starts
        or (
            each.phase is Phase.RUNNING
            and not each.is_asleep
            and each.silent is None
            and each.name not in observed.pending
        )
    ]
    model_claims = [(each.id.model, booked_claims(each, observed)) for each in active_replicas]
    model_claims += [(op.id.model, op.claims) for name, op in starts.items() if name not in observed_names]
    for name, claims in model_claims:
        if name not in candidates and is_evictable(desired.models.get(name)):
            claims_by_model.setdefault(name, []).append(claims)
    return claims_by_model


def moving_replicas(desired: DesiredState, observed: ObservedState) -> dict[str, str]:
    """Return the names of the running replicas that must move to another host, to the reason: their host is draining,
    or the definition's `hosts` does not name it any more."""
    hosts = {host.name: host for host in observed.hosts}
    moving = {}
    for replica in observed.replicas:
        model, host = desired.models.get(replica.id.model), hosts.get(replica.host)
        if model is None or host is None or replica.silent is not None:
            continue
        if host.state is HostState.DRAINING:
            moving[replica.name] = f"{host.title} is drained"
        elif model.hosts and not host.is_named_by(model.hosts):
            moving[replica.name] = f"`hosts` does not name {host.title}"
    return moving
