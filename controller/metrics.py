"""The controller's Prometheus metrics, read from its last round when they are scraped."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from controller.reconciler import Reconciler
from controller.schema.status import ModelState


class RoundCollector(Collector):
    """Gauges of the last complete round, and counters of actions issued."""

    def __init__(self, reconciler: Reconciler, actions: Callable[[], dict[str, int]]) -> None:
        self._reconciler = reconciler
        self._actions = actions

    def collect(self) -> Iterator[Metric]:
        """Called by each scrape."""
        yield self._counter("roundhouse_controller_actions", "Actions issued, by kind.", self._actions())
        up = GaugeMetricFamily("roundhouse_controller_observation_ok", "1 while the last observation was complete.")
        up.add_metric([], float(self._reconciler.error is None and self._reconciler.round is not None))
        yield up
        done = self._reconciler.round
        if done is None:
            return
        paused = GaugeMetricFamily("roundhouse_controller_paused", "1 while the controller is paused.")
        paused.add_metric([], float(done.desired.paused))
        yield paused
        state = GaugeMetricFamily("roundhouse_model_state", "1 for the state a model is in.", labels=["model", "state"])
        wanted = GaugeMetricFamily("roundhouse_model_replicas_wanted", "Replicas wanted now.", labels=["model"])
        loaded = GaugeMetricFamily("roundhouse_model_replicas_loaded", "Replicas that serve now.", labels=["model"])
        for status in done.statuses:
            for each in ModelState:
                state.add_metric([status.name, each.value], float(status.state is each))
            wanted.add_metric([status.name], status.wanted_replicas)
            loaded.add_metric([status.name], status.loaded_replicas)
        yield from (state, wanted, loaded)
        blocked = GaugeMetricFamily("roundhouse_controller_blocked", "Wanted replicas that cannot be started now.")
        blocked.add_metric([], len(done.plan.blocked))
        yield blocked
        if done.observed.gpus:
            used = GaugeMetricFamily("roundhouse_gpu_used_mib", "GPU memory in use, MiB.", labels=["gpu", "uuid"])
            total = GaugeMetricFamily("roundhouse_gpu_total_mib", "GPU memory, MiB.", labels=["gpu", "uuid"])
            for gpu in done.observed.gpus:
                used.add_metric([str(gpu.index), gpu.uuid], gpu.used_mib)
                total.add_metric([str(gpu.index), gpu.uuid], gpu.total_mib)
            yield from (used, total)

    def _counter(self, name: str, text: str, values: dict[str, int]) -> Metric:
        family = CounterMetricFamily(name, text, labels=["kind"])
        for kind, value in sorted(values.items()):
            family.add_metric([kind], value)
        return family


def create_registry(reconciler: Reconciler, actions: Callable[[], dict[str, int]]) -> CollectorRegistry:
    """A registry of this controller's metrics alone."""
    registry = CollectorRegistry()
    registry.register(RoundCollector(reconciler, actions))
    return registry
