"""Counters of what changes from one round of reconciling to the next: loads, restarts, evictions; and the rounds' own
durations. They begin at 0 with each controller."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from prometheus_client import Counter, Histogram
from prometheus_client.registry import Collector

from controller.journal.round_events import list_new_failures
from controller.planning.actions import Start
from controller.status.reconcile_round import Round

_LOAD_BUCKETS: Final = (1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800)
_ROUND_BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


class RoundCounts:
    """Prometheus metrics of what changes from one round to the next (loads, crashes, restarts, evictions), of rounds
    that were not complete, and of rounds' durations. A controller has one, which `create_registry` puts into its
    registries; its counters begin at 0."""

    def __init__(self) -> None:
        self._loads = Counter(
            "roundhouse_model_loads",
            "Starts of engines that came to an end; result is `loaded` or `failed`.",
            ["model", "result"],
            registry=None,
        )
        self._load_seconds = Histogram(
            "roundhouse_model_load_seconds",
            "Seconds from the start of an engine until it was ready, of those that got ready.",
            ["model"],
            buckets=_LOAD_BUCKETS,
            registry=None,
        )
        self._crashes = Counter(
            "roundhouse_model_crashes", "Engines that had been ready and failed.", ["model"], registry=None
        )
        self._restarts = Counter(
            "roundhouse_model_restarts",
            "Starts of replicas whose previous engine had failed.",
            ["model"],
            registry=None,
        )
        self._evictions = Counter(
            "roundhouse_model_evictions",
            "Evictions of a model, to make room for another or because it was not used for its idle_ttl_s.",
            ["model"],
            registry=None,
        )
        self._swaps = Counter(
            "roundhouse_controller_swaps",
            "Plans that evicted at least one model.",
            registry=None,
        )
        self._round_seconds = Histogram(
            "roundhouse_controller_reconcile_seconds",
            "Duration of a round of reconciling: observe, plan, publish.",
            buckets=_ROUND_BUCKETS,
            registry=None,
        )
        self._round_errors = Counter(
            "roundhouse_controller_reconcile_errors",
            "Rounds that were not complete: the runtime did not answer, there are no valid files, or a fault.",
            registry=None,
        )

    def list_collectors(self) -> Iterator[Collector]:
        """Yield the metrics, to be registered."""
        yield from vars(self).values()

    def record_duration(self, seconds: float) -> None:
        """Record the duration of a round, complete or not, in seconds."""
        self._round_seconds.observe(seconds)

    def count_round(self, before: Round | None, after: Round | None) -> None:
        """Count the loads, crashes, restarts and evictions that `after` has and `before` had not. `after` None: the
        round was not complete, and only that is counted.

        `before`: the last complete round before `after`; None: there was none, so `after` finds the engines of an
        earlier controller, and nothing of it is counted.
        """
        if after is None:
            self._round_errors.inc()
            return
        if before is None:
            return
        self._count_ready(before, after)
        for key, _, was_ready in list_new_failures(before, after):
            if was_ready:
                self._crashes.labels(key.model).inc()
            else:
                self._loads.labels(key.model, "failed").inc()
        if not after.desired.paused:
            for action in after.plan.actions:
                if isinstance(action, Start) and action.id.key in after.observed.failures:
                    self._restarts.labels(action.model).inc()
        new_evictions = after.plan.evicted.keys() - before.plan.evicted.keys()
        for model in new_evictions:
            self._evictions.labels(model).inc()
        if new_evictions:
            self._swaps.inc()

    def _count_ready(self, before: Round, after: Round) -> None:
        ready_before = {each.name for each in before.observed.replicas if each.ready_since is not None}
        for replica in after.observed.replicas:
            if replica.ready_since is not None and replica.name not in ready_before:
                self._loads.labels(replica.id.model, "loaded").inc()
                started_at = replica.created_at if replica.started_at is None else replica.started_at
                self._load_seconds.labels(replica.id.model).observe(max(0.0, replica.ready_since - started_at))
