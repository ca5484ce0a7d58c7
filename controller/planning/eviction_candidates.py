"""Eviction candidates: models that could be evicted, and what their reload would cost. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from controller.state import DesiredModel, ModelTraffic, ObservedReplica, ObservedState, Phase

LONGEST_RESIDENCY_S: Final = 60.0
"""Maximum number of seconds that a model stays loaded by default: as long as its load took, but no longer than this."""
CHEAPEST_RELOAD_S: Final = 0.1
"""Least seconds that a reload counts as in `eviction_order`."""
UNUSED: Final = ModelTraffic()


@dataclass(frozen=True, slots=True)
class EvictionCandidate:
    """A model that may be evicted, with all of its replicas loaded, and what is known of its use.

    Built by `candidate_of` for one plan. Times are Unix time in seconds.
    """

    name: str
    replicas: tuple[ObservedReplica, ...]
    traffic: ModelTraffic
    inflight: int | None
    """Number of requests in its replicas, over all gateways; None: not known for at least one replica."""
    is_leaving: bool
    """Whether all of its replicas are being drained."""
    idle_since: float
    """When a request last arrived or ended, or when its last replica became ready, whichever is later."""
    reload_s: float
    """Seconds that the slowest of its replicas took to load; 0 where that is not known."""
    stays_until: float
    """When its `min_residency_s` is over. Until then it is not evicted."""

    @property
    def is_busy(self) -> bool:
        """Whether requests use the model or wait for it; also True where either count is unknown."""
        return self.inflight != 0 or self.traffic.waiting != 0

    @property
    def has_known_traffic(self) -> bool:
        """Whether the number of requests in its replicas and the number that wait for it are both known. While a
        gateway is lost they are not, unless the model's engines report for long enough that they are idle."""
        return self.inflight is not None and self.traffic.waiting is not None

    def eviction_order(self, now: float) -> tuple[bool, bool, float, str]:
        """Return a sort key at `now` (Unix time); the least is evicted first.

        Idle models come before busy ones. Within each of these two groups, models that are being drained come first,
        then the model with the highest ratio of idle seconds to reload seconds.
        """
        worth = (now - self.idle_since) / max(self.reload_s, CHEAPEST_RELOAD_S)
        return self.is_busy, not self.is_leaving, -worth, self.name


def alive_replicas(observed: ObservedState) -> dict[str, list[ObservedReplica]]:
    """Return the running replicas, ready or not, by model name, each model's in the order observed, without those that
    sleep and those whose host does not answer. Models without one are left out."""
    replicas_by_model: dict[str, list[ObservedReplica]] = {}
    for replica in observed.replicas:
        is_asleep = replica.sleep is not None and replica.is_asleep
        if replica.phase is Phase.RUNNING and not is_asleep and replica.silent is None:
            replicas_by_model.setdefault(replica.id.model, []).append(replica)
    return replicas_by_model


def pending_models(observed: ObservedState) -> set[str]:
    """Return the names of the models with a replica whose start, stop, removal, sleep or wake is under way, or has
    ended since the last observation began."""
    return {operation.id.model for operation in observed.pending.values()}


def is_evictable(model: DesiredModel | None) -> bool:
    """Whether a model may be evicted at all: a request would load it again, no operator loaded or unloaded it, and it
    is not pinned. None: the model is not declared; False. Use, residency and replicas are not looked at."""
    return model is not None and model.autoload and not model.pinned and model.statement.kind in ("autoload", "file")


def _last_load(replica: ObservedReplica) -> tuple[float | None, float | None]:
    """Return when the replica's last load or wake began and ended."""
    sleep = replica.sleep
    if sleep is None or sleep.woken_at is None:
        return replica.started_at, replica.ready_since
    return sleep.woken_at - (sleep.wake_s or 0.0), sleep.woken_at


def candidate_of(
    model: DesiredModel,
    replicas: Sequence[ObservedReplica],
    observed: ObservedState,
    now: float,
    pending_names: Collection[str],
) -> EvictionCandidate | None:
    """Return the model as a candidate for eviction, busy or not.

    None: it may not be evicted (`is_evictable`), is not wanted, has no running replica, has one that was never ready,
    or has an operation under way. `replicas`: the model's running replicas. `pending_names`: result of
    `pending_models`. `now`: Unix time in seconds.
    """
    if model.name in pending_names or not (is_evictable(model) and model.replicas and replicas):
        return None
    moments = [_last_load(each) for each in replicas]
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
