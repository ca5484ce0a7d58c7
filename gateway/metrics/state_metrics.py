"""Gauges and counters that are read off other parts of the gateway when Prometheus asks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.control.inflight import InflightCounts
from gateway.control.link import LinkState
from gateway.routing.live_routes import LiveRoutes
from gateway.storage.responses.records import StoredTotals
from gateway.streams.stream_totals import StreamTotals


class StateCollector(Collector):
    """Gauges of requests in flight and waiting, replicas, the link to the controller and the routing table's age,
    computed from other parts of the gateway when they are read."""

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
        yield _gauge("inflight", "Requests that engines are serving.", "model", inflight)
        queued = idle | dict(self._ledger.queued)
        yield _gauge("queued", "Requests that wait for a load or a slot.", "model", queued)
        yield _gauge("replicas", "Replicas that accept requests.", "model", replicas)
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
    def __init__(self, count_idle: Callable[[], int], count_busy: Callable[[], int]) -> None:
        self._count_idle = count_idle
        self._count_busy = count_busy

    def collect(self) -> Iterator[Metric]:
        counts = {"idle": self._count_idle(), "busy": self._count_busy()}
        yield _gauge("engine_connections", "Open connections to engines; state is `idle` or `busy`.", "state", counts)


class CertificateCollector(Collector):
    def __init__(self, has_problem: Callable[[], bool]) -> None:
        self._has_problem = has_problem

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily(
            "roundhouse_gateway_tls_certificate_problem",
            "1 while the certificate's files cannot be used, so that the previous certificate is served.",
            float(self._has_problem()),
        )


class McpServersCollector(Collector):
    def __init__(self, list_connected: Callable[[], Mapping[str, bool]]) -> None:
        self._list_connected = list_connected

    def collect(self) -> Iterator[Metric]:
        text = "1 while the gateway is connected to a declared MCP server, 0 while it is not."
        yield _gauge("mcp_server_up", text, "server", self._list_connected())


class StoredResponsesCollector(Collector):
    def __init__(self, stored_totals: Callable[[], StoredTotals], failures: Callable[[], int]) -> None:
        self._stored_totals = stored_totals
        self._failures = failures

    def collect(self) -> Iterator[Metric]:
        totals = self._stored_totals()
        yield GaugeMetricFamily("roundhouse_gateway_stored_responses", "Responses that are stored.", totals.responses)
        yield GaugeMetricFamily(
            "roundhouse_gateway_stored_completions", "Chat completions that are stored.", totals.completions
        )
        yield GaugeMetricFamily(
            "roundhouse_gateway_stored_conversations", "Conversations that are stored.", totals.conversations
        )
        yield GaugeMetricFamily(
            "roundhouse_gateway_stored_bytes", "Bytes of the database of stored responses.", totals.bytes
        )
        yield CounterMetricFamily(
            "roundhouse_gateway_store_failures",
            "Jobs that failed in the database of stored responses, or were refused because too many waited.",
            self._failures(),
        )


class StreamsCollector(Collector):
    def __init__(self, stream_totals: Callable[[], StreamTotals]) -> None:
        self._stream_totals = stream_totals

    def collect(self) -> Iterator[Metric]:
        totals = self._stream_totals()
        counts = {"live": totals.live, "ended": totals.ended}
        yield _gauge("streams", "Resumable streams that are kept; state is `live` or `ended`.", "state", counts)
        yield GaugeMetricFamily(
            "roundhouse_gateway_stream_readers", "Clients that read a resumable stream now.", totals.readers
        )
        yield GaugeMetricFamily(
            "roundhouse_gateway_stream_bytes", "Bytes of memory charged for resumable streams.", totals.bytes
        )
        for name, text, count in (
            ("reads", "GET requests that read a resumable stream.", totals.reads),
            ("evictions", "Ended streams removed before their TTL to make room.", totals.evicted),
            ("refusals", "Streams refused with `streams_full`.", totals.refused),
            ("recovered", "Streams of an earlier gateway process that were taken over at the start.", totals.recovered),
            ("files_lost", "Streams whose file could not be written.", totals.lost_files),
        ):
            yield CounterMetricFamily(f"roundhouse_gateway_stream_{name}", text, count)


def _gauge(name: str, text: str, label: str, values: Mapping[str, int]) -> Metric:
    family = GaugeMetricFamily(f"roundhouse_gateway_{name}", text, labels=(label,))
    for value, number in values.items():
        family.add_metric((value,), number)
    return family
