"""The controller's Prometheus metrics. Each scrape reads the reconciler's last round."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, NamedTuple, get_args

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from controller.gpus import Gpu
from controller.reconcile.reconciler import Reconciler
from controller.reports.round_counts import RoundCounts
from controller.schema.admin import Drift, DriftItem
from controller.schema.status import ModelState
from controller.sizing.estimator import Estimate
from controller.state import DesiredModel, Requirement
from controller.status.reconcile_round import Round


class MemorySource(NamedTuple):
    """The functions by which `RoundCollector` looks up the memory of models at each scrape. Both answer from what is
    known already, without waiting."""

    known_estimates: Callable[[Iterable[DesiredModel]], Mapping[str, Estimate]]
    """See `Estimator.known_estimates`."""
    observed_requirements: Callable[[Iterable[DesiredModel], tuple[Gpu, ...] | None], Mapping[str, Requirement]]
    """See `MemoryHistory.observed_requirements`."""


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
        unread_gauge = GaugeMetricFamily(
            "roundhouse_gpu_unread", "1 for a GPU that cannot be read.", labels=["gpu", "uuid"]
        )
        for gpu in last_round.observed.unread_gpus:
            unread_gauge.add_metric([gpu.label, gpu.uuid or ""], 1)
        yield unread_gauge
        if last_round.observed.gpus:
            yield from _gpu_metrics(
                last_round.observed.gpus, {each.name: each.id.model for each in last_round.observed.replicas}
            )

    def _drift_metrics(self) -> Iterator[Metric]:
        drift = self._get_drift()
        if drift is None:
            return
        drift_gauge = GaugeMetricFamily(
            "roundhouse_controller_drift",
            "Differences between what runs and what the files declare, by kind, at the last check.",
            labels=["kind"],
        )
        counts = Counter(item.kind for item in drift.items)
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


def _gpu_metrics(gpus: Iterable[Gpu], models: Mapping[str, str]) -> Iterator[Metric]:
    """Yield the GPUs' metrics. `models` maps replica names to models. An unknown figure has no sample."""
    used_gauge = GaugeMetricFamily("roundhouse_gpu_used_mib", "GPU memory in use, MiB.", labels=["gpu", "uuid"])
    total_gauge = GaugeMetricFamily("roundhouse_gpu_total_mib", "GPU memory, MiB.", labels=["gpu", "uuid"])
    busy_gauge = GaugeMetricFamily(
        "roundhouse_gpu_utilization_ratio",
        "Share of the driver's last sample period in which the GPU was busy.",
        labels=["gpu", "uuid"],
    )
    held_gauge = GaugeMetricFamily(
        "roundhouse_gpu_model_used_mib",
        "GPU memory that a model's engines use, MiB, if the driver reports it.",
        labels=["gpu", "uuid", "model"],
    )
    for gpu in gpus:
        labels = [gpu.label, gpu.uuid]
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
    process.

    `actions` returns how many actions were issued so far, by kind. `get_drift` returns the result of the last check of
    drift. `counts` None: no round was counted. `memory` None: nothing is known of models' memory.
    """
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    registry.register(RoundCollector(reconciler, actions, get_drift, memory or NO_MEMORY))
    for collector in (counts or RoundCounts()).list_collectors():
        registry.register(collector)
    return registry
