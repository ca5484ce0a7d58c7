"""The models that could be let go, and what that would cost. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from controller.state import DesiredModel, ModelTraffic, ObservedReplica, ObservedState, Phase

LONGEST_RESIDENCY_S: Final = 60.0
"""A model whose `min_residency_s` is not declared stays at most this long, however long its load took."""
CHEAPEST_RELOAD_S: Final = 0.1
UNUSED: Final = ModelTraffic()


@dataclass(frozen=True, slots=True)
class EvictionCandidate:
    """A model that could be let go."""

    name: str
    replicas: tuple[ObservedReplica, ...]
    traffic: ModelTraffic
    inflight: int | None
    is_leaving: bool
    """It is on its way out already."""
    idle_since: float
    reload_s: float
    stays_until: float

    @property
    def is_busy(self) -> bool:
        """Whether somebody is, or may be, at it."""
        return self.inflight != 0 or self.traffic.waiting != 0

    @property
    def has_known_traffic(self) -> bool:
        """Whether it is known who is at it: while a gateway is lost it is not, unless its engines say for long enough
        that they are idle."""
        return self.inflight is not None and self.traffic.waiting is not None

    def eviction_order(self, now: float) -> tuple[bool, bool, float, str]:
        """The least goes first."""
        worth = (now - self.idle_since) / max(self.reload_s, CHEAPEST_RELOAD_S)
        return self.is_busy, not self.is_leaving, -worth, self.name


def alive_replicas(observed: ObservedState) -> dict[str, list[ObservedReplica]]:
    """Model to its replicas that run, ready or not."""
    replicas_by_model: dict[str, list[ObservedReplica]] = {}
    for replica in observed.replicas:
        if replica.phase is Phase.RUNNING:
            replicas_by_model.setdefault(replica.id.model, []).append(replica)
    return replicas_by_model


def pending_models(observed: ObservedState) -> set[str]:
    """Names of the models of which a replica is being started, stopped or removed."""
    return {operation.id.model for operation in observed.pending.values()}


def is_evictable(model: DesiredModel | None) -> bool:
    """Whether a request would load it again, and nobody has said that it is to stay."""
    return model is not None and model.autoload and not model.pinned and model.statement.kind in ("autoload", "file")


def candidate_of(
    model: DesiredModel,
    replicas: Sequence[ObservedReplica],
    observed: ObservedState,
    now: float,
    pending_names: Collection[str],
) -> EvictionCandidate | None:
    """The model as a candidate. None: the model cannot be evicted, or no replica of it runs.

    `replicas` are those that run. `pending_names` is of `pending_models`: such a model loads, or goes anyway.
    """
    if model.name in pending_names or not (is_evictable(model) and model.replicas and replicas):
        return None
    moments = [(each.started_at, each.ready_since) for each in replicas]
    # None later than now: the clock was set back.
    ready_times = [min(since, now) for _, since in moments if since is not None]
    if len(ready_times) < len(moments):
        return None
    reload_s = max((until - since for since, until in moments if since is not None and until is not None), default=0.0)
    counts = [observed.inflight.get(each.name, 0) for each in replicas]
    known_counts = [count for count in counts if count is not None]
    traffic = observed.traffic.get(model.name, UNUSED)
    residency_s = model.min_residency_s
    return EvictionCandidate(
        model.name,
        tuple(replicas),
        traffic,
        sum(known_counts) if len(known_counts) == len(counts) else None,
        all(each.draining is not None for each in replicas),
        max(min(traffic.last_used or 0.0, now), *ready_times),
        reload_s,
        max(ready_times) + (min(max(0.0, reload_s), LONGEST_RESIDENCY_S) if residency_s is None else residency_s),
    )
