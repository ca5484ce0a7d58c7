"""The controller's Prometheus metrics. Each scrape reads the reconciler's last round."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from controller.reconcile.reconciler import Reconciler
from controller.schema.status import ModelState
from controller.state import Gpu


class RoundCollector(Collector):
    """Collects gauges of the reconciler's last complete round, and counters of issued actions, for one Prometheus
    registry (see `create_registry`)."""

    def __init__(self, reconciler: Reconciler, actions: Callable[[], dict[str, int]]) -> None:
        """`actions` returns how many actions were issued so far, by kind (`Executor.count_issued`)."""
        self._reconciler = reconciler
        self._actions = actions

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

    def _counter(self, name: str, text: str, values: dict[str, int]) -> Metric:
        family = CounterMetricFamily(name, text, labels=["kind"])
        for kind, value in sorted(values.items()):
            family.add_metric([kind], value)
        return family


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


def create_registry(reconciler: Reconciler, actions: Callable[[], dict[str, int]]) -> CollectorRegistry:
    """Create a new registry, not prometheus_client's global one, with the controller's metrics and those of its
    process.

    `actions` returns how many actions were issued so far, by kind.
    """
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    registry.register(RoundCollector(reconciler, actions))
    return registry
