"""Gauges and counters that are read off other parts of the gateway when Prometheus asks, and the metrics under
LocalLLM's names (ADR 25), computed from Roundhouse's own, so that requests are counted once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.control.inflight import InflightCounts
from gateway.control.link import LinkState
from gateway.metrics.request_metrics import RequestCollector
from gateway.routing.table import LiveRoutes


class StateCollector(Collector):
    """Gauges of requests in flight and waiting, replicas, the link to the controller and the routing table's age,
    computed from other parts of the gateway when they are read. `now`: monotonic seconds."""

    def __init__(self, live: LiveRoutes, ledger: InflightCounts, link: LinkState, now: Callable[[], float]) -> None:
        self._live = live
        self._ledger = ledger
        self._link = link
        self._now = now

    def collect(self) -> Iterator[Metric]:
        """Yield each gauge with its present values; those of replicas and the table's age have none before the first
        routing table."""
        routes = self._live.current_or_none
        replicas = {name: len(route.endpoints) for name, route in routes.models.items()} if routes else {}
        # A declared model without requests has the value 0: a gap in the curve would mean that nothing is known.
        idle = dict.fromkeys(replicas, 0)
        inflight = idle | dict(self._ledger.inflight_by_model)
        yield gauge_family("inflight", "Requests that engines are serving.", "model", inflight)
        queued = idle | dict(self._ledger.queued)
        yield gauge_family("queued", "Requests that wait for a load or a slot.", "model", queued)
        yield gauge_family("replicas", "Replicas that accept requests.", "model", replicas)
        link = GaugeMetricFamily("roundhouse_gateway_link_up", "1 while the controller is connected.")
        link.add_metric((), float(self._link.is_connected))
        yield link
        age = GaugeMetricFamily(
            "roundhouse_gateway_table_age_seconds", "Seconds since the last routing table was received."
        )
        if self._link.table_at is not None:
            age.add_metric((), self._now() - self._link.table_at)
        yield age


class ConnectionCollector(Collector):
    """Gauge of the open connections to engines. `count_idle` and `count_busy` are called at each scrape."""

    def __init__(self, count_idle: Callable[[], int], count_busy: Callable[[], int]) -> None:
        self._count_idle = count_idle
        self._count_busy = count_busy

    def collect(self) -> Iterator[Metric]:
        counts = {"idle": self._count_idle(), "busy": self._count_busy()}
        yield gauge_family(
            "engine_connections", "Open connections to engines; state is `idle` or `busy`.", "state", counts
        )


class CertificateCollector(Collector):
    """Gauge that is 1 while `has_problem` returns True: the TLS certificate's files cannot be used."""

    def __init__(self, has_problem: Callable[[], bool]) -> None:
        self._has_problem = has_problem

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily(
            "roundhouse_gateway_tls_certificate_problem",
            "1 while the certificate's files cannot be used, so that the previous certificate is served.",
            float(self._has_problem()),
        )


def gauge_family(name: str, text: str, label: str, values: Mapping[str, int]) -> Metric:
    """Return the gauge `roundhouse_gateway_NAME` with the one label `label` and a series for each entry of `values`,
    which maps values of the label to numbers. `text`: the metric's help."""
    family = GaugeMetricFamily(f"roundhouse_gateway_{name}", text, labels=(label,))
    for value, number in values.items():
        family.add_metric((value,), number)
    return family


PREFIX: Final = "localllm"


class LoadedEngine(NamedTuple):
    """A replica that takes requests, as the label values of LocalLLM's `engine_loaded`. `key`: as in `/health`."""

    key: str
    """Key of the replica, as in `/health`."""
    backend: str


class LocalllmCollector(Collector):
    """Yields the metrics of a LocalLLM server under its names (`localllm_*`), computed at each scrape from the counters
    of the gateway's requests, the counts of requests in flight, and the loaded replicas, for which it calls
    `list_engines`."""

    def __init__(
        self,
        requests: RequestCollector,
        ledger: InflightCounts,
        list_engines: Callable[[], Iterable[LoadedEngine]],
    ) -> None:
        self._requests = requests
        self._ledger = ledger
        self._list_engines = list_engines

    def collect(self) -> Iterator[Metric]:
        """Yield each metric. prometheus_client calls this at each scrape."""
        yield from self._count_requests()
        yield from self._count_clients()
        yield _gauge("queue_depth", "Requests that wait for a load or a slot.", sum(self._ledger.queued.values()))
        yield _gauge("inflight", "Requests that engines are serving.", sum(self._ledger.inflight_by_model.values()))
        engines = list(self._list_engines())
        yield _gauge("engines_loaded", "Replicas that take requests, without remote models.", len(engines))
        loaded = GaugeMetricFamily(
            f"{PREFIX}_engine_loaded", "1 for each replica that takes requests.", labels=("key", "backend")
        )
        for engine in engines:
            loaded.add_metric(engine, 1)
        yield loaded

    def _count_requests(self) -> Iterator[Metric]:
        outcomes = self._requests.outcomes
        counts = {outcome: outcomes.sum_where(1, outcome) for outcome in ("completed", "errored", "cancelled")}
        yield _counter("requests", "Requests that ended.", sum(counts.values()))
        yield _counter("requests_completed", "Requests that were answered without an error.", counts["completed"])
        yield _counter("requests_errored", "Requests that ended with an error.", counts["errored"])
        yield _counter("requests_cancelled", "Requests that their client cancelled.", counts["cancelled"])
        chunks, stream_seconds = self._requests.stream_chunks.sum_all(), self._requests.stream_seconds.sum_all()
        yield _counter("stream_chunks", "Events of engines' streams.", chunks)
        yield _gauge(
            "chunks_per_second_avg", "Events of a stream per second, since the start.", _ratio(chunks, stream_seconds)
        )
        inference_seconds, ended = self._requests.inference_seconds.sum_all(), counts["completed"]
        yield _counter("inference_seconds", "Seconds that engines worked for requests, added up.", inference_seconds)
        yield _gauge(
            "inference_seconds_avg",
            "Seconds that engines worked, per completed request since the start.",
            _ratio(inference_seconds, ended),
        )

    def _count_clients(self) -> Iterator[Metric]:
        requests = CounterMetricFamily(f"{PREFIX}_client_requests", "Requests by client.", labels=("client",))
        seconds = GaugeMetricFamily(
            f"{PREFIX}_client_inference_seconds_avg",
            "Seconds that engines worked, per request of a client since the start.",
            labels=("client",),
        )
        inference_seconds = self._requests.client_inference_seconds
        for (client,), count in self._requests.client_requests.list_values():
            requests.add_metric((client,), count)
            seconds.add_metric((client,), _ratio(inference_seconds.counter_of(client).value, count))
        yield requests
        yield seconds


def _ratio(total: float, count: float) -> float:
    return total / count if count else 0.0


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(f"{PREFIX}_{name}", text, value)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"{PREFIX}_{name}", text, value)
