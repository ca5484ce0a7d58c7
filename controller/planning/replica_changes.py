"""Replicas that leave, are missing, or come, whatever is decided about their room. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from controller.planning.eviction_candidates import Resident, may_go
from controller.state import DesiredState, ObservedReplica, ObservedState, OpKind, Phase


def leaving_of(desired: DesiredState, observed: ObservedState, now: float) -> list[ObservedReplica]:
    """Replicas that will be gone, whatever is decided here; not those that take longer than anybody should wait."""
    leaving = []
    for replica in observed.replicas:
        want = desired.models.get(replica.id.model)
        operation = observed.pending.get(replica.name)
        ends = operation is not None and operation.kind is not OpKind.START
        unwanted = want is None or not want.runs or replica.id.index >= want.replicas
        began = operation.began_at if operation is not None and ends else now
        since = began if replica.draining is None else min(began, replica.draining.since)
        if replica.phase is Phase.RUNNING and (ends or unwanted) and now - since < desired.swap_wait_s:
            leaving.append(replica)
    return leaving


def missing_of(desired: DesiredState, observed: ObservedState) -> dict[str, tuple[int, ...]]:
    """Models to the wanted indices at which no engine is, nor comes."""
    present: dict[str, set[int]] = {}
    for replica in observed.replicas:
        operation = observed.pending.get(replica.name)
        if replica.phase is Phase.RUNNING and (operation is None or operation.kind is OpKind.START):
            present.setdefault(replica.id.model, set()).add(replica.id.index)
    for operation in observed.pending.values():
        if operation.kind is OpKind.START:
            present.setdefault(operation.id.model, set()).add(operation.id.index)
    missing = {}
    for want in desired.models.values():
        there = present.get(want.name, ())
        if want.runs and want.replicas > sum(index < want.replicas for index in there):
            missing[want.name] = tuple(index for index in range(want.replicas) if index not in there)
    return missing


def coming_of(
    desired: DesiredState, observed: ObservedState, residents: Mapping[str, Resident]
) -> dict[str, list[Mapping[str, int]]]:
    """Models that could be let go once they are loaded, to what they will take."""
    coming: dict[str, list[Mapping[str, int]]] = {}
    seen = {replica.name for replica in observed.replicas}
    there = [each for each in observed.replicas if each.phase is Phase.RUNNING or each.name in observed.pending]
    takes = [(each.id.model, each.claims) for each in there]
    takes += [(op.id.model, op.claims) for name, op in observed.pending.items() if name not in seen]
    for name, claims in takes:
        if name not in residents and may_go(desired.models.get(name)):
            coming.setdefault(name, []).append(claims)
    return coming
