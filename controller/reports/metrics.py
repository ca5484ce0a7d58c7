"""The controller's Prometheus metrics: the last round, read at each scrape, and counters of what changes from one
round to the next, which begin at 0 with each controller.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple, get_args

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from contract.admin import Drift, DriftItem
from contract.status import ModelState
from controller.hosts import Gpu, Host, HostState
from controller.memory_estimator import Estimate
from controller.model_status import Round
from controller.planning.actions import Start
from controller.reconciler import Reconciler
from controller.round_events import list_new_failures
from controller.state import DesiredModel, Requirement

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
        round was not complete, and only that is counted. `before`: the last complete round before `after`; None: there
        was none, so `after` finds the engines of an earlier controller, and nothing of it is counted."""
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
                if isinstance(action, Start) and replace(action.id.key, host=action.host) in after.observed.failures:
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


class MemorySource(NamedTuple):
    """The functions by which `RoundCollector` looks up the memory of models at each scrape. Both answer from what is
    known already, without waiting."""

    known_estimates: Callable[[Iterable[DesiredModel]], Mapping[str, Estimate]]
    """Returns the known estimates for one replica of each model, by name; models without one are absent."""
    observed_requirements: Callable[[Iterable[DesiredModel], tuple[Gpu, ...] | None], Mapping[str, Requirement]]
    """Returns the observed memory of one replica of each model, by name, on the GPUs given (None: unknown)."""


NO_MEMORY: Final = MemorySource(lambda _: {}, lambda *_: {})


class RoundCollector(Collector):
    """Collects gauges of the reconciler's last complete round, and counters of issued actions, for one Prometheus
    registry (see `create_registry`)."""

    def __init__(
        self,
        reconciler: Reconciler,
        actions: Callable[[], dict[str, int]],
        get_drift: Callable[[], Drift | None],
        memory: MemorySource,
    ) -> None:
        """`actions` returns how many actions were issued so far, by kind (`Executor.count_issued`). `get_drift` returns
        the result of the last check; None: there was none."""
        self._reconciler = reconciler
        self._actions = actions
        self._get_drift = get_drift
        self._memory = memory

    def collect(self) -> Iterator[Metric]:
        """Yield the metric families. prometheus_client calls this at each scrape. Before the first complete
        round, it yields only the actions and `roundhouse_controller_observation_ok`, which is 0."""
        yield self._counter("roundhouse_controller_actions", "Actions issued, by kind.", self._actions())
        observation_gauge = GaugeMetricFamily(
            "roundhouse_controller_observation_ok", "1 while the last observation was complete."
        )
        observation_gauge.add_metric([], float(self._reconciler.error is None and self._reconciler.round is not None))
        yield observation_gauge
        last_round = self._reconciler.round
        if last_round is None:
            return
        yield from self._drift_metrics()
        yield from _memory_metrics(last_round, self._memory)
        paused_gauge = GaugeMetricFamily("roundhouse_controller_paused", "1 while the controller is paused.")
        paused_gauge.add_metric([], float(last_round.desired.paused))
        yield paused_gauge
        state_gauge = GaugeMetricFamily(
            "roundhouse_model_state", "1 for the present state of a model.", labels=["model", "state"]
        )
        wanted_gauge = GaugeMetricFamily("roundhouse_model_replicas_wanted", "Replicas wanted now.", labels=["model"])
        loaded_gauge = GaugeMetricFamily(
            "roundhouse_model_replicas_loaded", "Replicas that serve now.", labels=["model"]
        )
        for status in last_round.statuses:
            for each in ModelState:
                state_gauge.add_metric([status.name, each.value], float(status.state is each))
            wanted_gauge.add_metric([status.name], status.wanted_replicas)
            loaded_gauge.add_metric([status.name], status.loaded_replicas)
        yield from (state_gauge, wanted_gauge, loaded_gauge)
        blocked_gauge = GaugeMetricFamily(
            "roundhouse_controller_blocked", "Wanted replicas that cannot be started now."
        )
        blocked_gauge.add_metric([], len(last_round.plan.blocked))
        yield blocked_gauge
        observed = last_round.observed
        has_names = any(host.name for host in observed.hosts)
        if has_names:
            yield from _host_metrics(observed.hosts, observed.is_cut_off)
        host_label = ["host"] if has_names else []
        unread_gauge = GaugeMetricFamily(
            "roundhouse_gpu_unread", "1 for a GPU that cannot be read.", labels=["gpu", "uuid", *host_label]
        )
        for gpu in observed.unread_gpus:
            unread_gauge.add_metric([gpu.label, gpu.uuid or "", *([gpu.host] if has_names else [])], 1)
        yield unread_gauge
        if observed.gpus:
            yield from _gpu_metrics(observed.gpus, {each.name: each.id.model for each in observed.replicas}, host_label)

    def _drift_metrics(self) -> Iterator[Metric]:
        drift = self._get_drift()
        if drift is None:
            return
        drift_gauge = GaugeMetricFamily(
            "roundhouse_controller_drift",
            "Differences between what runs and what the files declare, by kind, at the last check.",
            labels=["kind"],
        )
        counts = collections.Counter(item.kind for item in drift.items)
        for kind in get_args(DriftItem.model_fields["kind"].annotation):
            drift_gauge.add_metric([kind], counts[kind])
        yield drift_gauge

    def _counter(self, name: str, text: str, values: dict[str, int]) -> Metric:
        family = CounterMetricFamily(name, text, labels=["kind"])
        for kind, value in sorted(values.items()):
            family.add_metric([kind], value)
        return family


def _memory_metrics(last_round: Round, memory: MemorySource) -> Iterator[Metric]:
    """Yield the memory of one replica of each model, before a load and as it was seen. Unknown figures are absent."""
    models = [model for model in last_round.desired.models.values() if model.runs]
    gpus = last_round.observed.gpus
    predicted_gauge = GaugeMetricFamily(
        "roundhouse_model_predicted_mib",
        "MiB that one replica is predicted to take; place is `gpu` (each of its GPUs) or `host`.",
        labels=["model", "place"],
    )
    observed_gauge = GaugeMetricFamily(
        "roundhouse_model_observed_mib",
        "MiB that one replica was seen to take at most; place is `gpu` (the fullest of its GPUs) or `host`.",
        labels=["model", "place"],
    )
    for name, estimate in memory.known_estimates(models).items():
        if estimate.gpus and (estimate.gpu_share is None or gpus):
            gpu_mib = min((gpu.total_mib for gpu in gpus or ()), default=0)
            predicted_gauge.add_metric([name, "gpu"], estimate.mib_on_gpu(gpu_mib))
        predicted_gauge.add_metric([name, "host"], estimate.host_mib)
    for name, requirement in memory.observed_requirements(models, gpus).items():
        for place, mib in (("gpu", requirement.per_gpu_mib), ("host", requirement.host_mib)):
            if mib is not None:
                observed_gauge.add_metric([name, place], mib)
    yield from (predicted_gauge, observed_gauge)


def _host_metrics(hosts: Iterable[Host], is_cut_off: bool) -> Iterator[Metric]:
    state_gauge = GaugeMetricFamily(
        "roundhouse_host_state", "1 for the present state of a host.", labels=["host", "state"]
    )
    for host in hosts:
        for each in HostState:
            state_gauge.add_metric([host.name, each.value], float(host.state is each))
    cut_off_gauge = GaugeMetricFamily(
        "roundhouse_hosts_cut_off", "1 while so many hosts are silent that the controller counts as cut off."
    )
    cut_off_gauge.add_metric([], float(is_cut_off))
    yield from (state_gauge, cut_off_gauge)


def _gpu_metrics(gpus: Iterable[Gpu], models: Mapping[str, str], host_label: Sequence[str]) -> Iterator[Metric]:
    """Yield the GPUs' metrics. `models` maps replica names to models. `host_label`: the label `host`, or none where
    hosts have no name. An unknown figure has no sample."""
    names = ["gpu", "uuid", *host_label]
    used_gauge = GaugeMetricFamily("roundhouse_gpu_used_mib", "GPU memory in use, MiB.", labels=names)
    total_gauge = GaugeMetricFamily("roundhouse_gpu_total_mib", "GPU memory, MiB.", labels=names)
    busy_gauge = GaugeMetricFamily(
        "roundhouse_gpu_utilization_ratio",
        "Share of the driver's last sample period in which the GPU was busy.",
        labels=names,
    )
    held_gauge = GaugeMetricFamily(
        "roundhouse_gpu_model_used_mib",
        "GPU memory that a model's engines use, MiB, if the driver reports it.",
        labels=[*names, "model"],
    )
    for gpu in gpus:
        labels = [gpu.label, gpu.uuid, *([gpu.host] if host_label else [])]
        used_gauge.add_metric(labels, gpu.used_mib)
        total_gauge.add_metric(labels, gpu.total_mib)
        if gpu.utilization_percent is not None:
            busy_gauge.add_metric(labels, gpu.utilization_percent / 100)
        mib_by_model: dict[str, int] = {}
        for process in gpu.processes or ():
            model = models.get(process.replica or "")
            if model is not None and process.mib is not None:
                mib_by_model[model] = mib_by_model.get(model, 0) + process.mib
        for model, mib in sorted(mib_by_model.items()):
            held_gauge.add_metric([*labels, model], mib)
    yield from (used_gauge, total_gauge, busy_gauge, held_gauge)


def create_registry(
    reconciler: Reconciler,
    actions: Callable[[], dict[str, int]],
    counts: RoundCounts | None = None,
    get_drift: Callable[[], Drift | None] = lambda: None,
    memory: MemorySource | None = None,
) -> CollectorRegistry:
    """Create a new registry, not prometheus_client's global one, with the controller's metrics and those of its
    process. `actions` returns how many actions were issued so far, by kind. `get_drift` returns the result of the last
    check of drift. `counts` None: no round was counted. `memory` None: nothing is known of models' memory."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    registry.register(RoundCollector(reconciler, actions, get_drift, memory or NO_MEMORY))
    for collector in (counts or RoundCounts()).list_collectors():
        registry.register(collector)
    return registry
