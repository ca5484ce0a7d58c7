"""The counters and gauges of a LocalLLM server under its names, for dashboards that were made for one (ADR 25).

All are computed from Roundhouse's own metrics when Prometheus reads, so requests are counted once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.control.inflight import InflightCounts
from gateway.metrics.request_metrics import RequestCollector

PREFIX: Final = "localllm"


class LoadedEngine(NamedTuple):
    """A replica that takes requests, as the label values of LocalLLM's `engine_loaded`."""

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
