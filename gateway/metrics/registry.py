"""The gateway's Prometheus metrics. Requests are counted once each; gauges are read when Prometheus asks.

Series stay until a restart, including those of models and keys that are no longer declared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from prometheus_client import CollectorRegistry, ProcessCollector

from gateway.control.inflight import InflightCounts
from gateway.control.link import LinkState
from gateway.metrics.localllm_names import LoadedEngine, LocalllmCollector
from gateway.metrics.request_metrics import (
    MAX_CLIENTS,
    MAX_TOOLS,
    OTHER_CLIENTS,
    OTHER_TOOLS,
    ClientSeries,
    KeySeries,
    ModelSeries,
    RequestCollector,
    RequestSeries,
)
from gateway.metrics.state_metrics import (
    CertificateCollector,
    ConnectionCollector,
    McpServersCollector,
    StateCollector,
    StoredResponsesCollector,
    StreamsCollector,
)
from gateway.routing.live_routes import LiveRoutes
from gateway.storage.responses.records import StoredTotals
from gateway.streams.stream_totals import StreamTotals
from gateway.tenancy.clients import clean_client_text


class Metrics:
    """The gateway's Prometheus registry, and the counters of its requests.

    Made once; use it in the event loop. Call each `show_...` method at most once: a second call would serve its metrics
    twice.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._requests = RequestCollector()
        self._series: dict[tuple[str, str], RequestSeries] = {}
        self._models: dict[str, ModelSeries] = {}
        self._keys: dict[str, KeySeries] = {}
        self._clients: dict[bytes, ClientSeries] = {}
        self._other_clients: ClientSeries | None = None
        self._tools: set[str] = set()
        self.registry.register(self._requests)

    def series_of(self, model: str, route: str) -> RequestSeries:
        """Return the counters of a model on a route, created on first use.

        `model`: the name of a declared model, or `UNKNOWN_MODEL`; never a client's text. `route`: the path as declared.
        """
        series = self._series.get((model, route))
        if series is None:
            series = self._series[model, route] = RequestSeries(self._requests, model, route)
        return series

    def model_series_of(self, model: str) -> ModelSeries:
        """Return the counters of a model on all routes, created on first use. `model`: the name of a declared model, or
        `UNKNOWN_MODEL`; never a client's text."""
        series = self._models.get(model)
        if series is None:
            series = self._models[model] = ModelSeries(self._requests, model)
        return series

    def client_series_of(self, client_text: bytes) -> ClientSeries:
        """Return the counters of a client, created on first use.

        `client_text`: how the client names itself (`find_client_text`), not cleaned.

        The first `MAX_CLIENTS` (100) names have counters of their own; all others share those of `other`.
        """
        return self._clients.get(client_text) or self._add_client(client_text)

    def _add_client(self, client_text: bytes) -> ClientSeries:
        if len(self._clients) < MAX_CLIENTS:
            client = clean_client_text(client_text).decode("ascii")
            series = self._clients[client_text] = ClientSeries(self._requests, client)
            return series
        if self._other_clients is None:
            self._other_clients = ClientSeries(self._requests, OTHER_CLIENTS)
        return self._other_clients

    def key_series_of(self, name: str) -> KeySeries:
        """Return the counters of a key, created on first use. `name`: the name of a declared key, not its secret."""
        series = self._keys.get(name)
        if series is None:
            series = self._keys[name] = KeySeries(self._requests, name)
        return series

    def count_tool_call(self, tool: str, outcome: str) -> None:
        """Count an ended call of a tool. `outcome`: `ok`, `error` (the tool said so), `refused`, `timeout`, `failed` or
        `cancelled`. `tool`: the name of a tool that there is, or `unknown`; the first `MAX_TOOLS` (200) have counters
        of their own, all others share those of `other`."""
        if tool not in self._tools:
            if len(self._tools) < MAX_TOOLS:
                self._tools.add(tool)
            else:
                tool = OTHER_TOOLS
        self._requests.tool_calls.counter_of(tool, outcome).value += 1

    def show_state(self, live: LiveRoutes, ledger: InflightCounts, link: LinkState, now: Callable[[], float]) -> None:
        """Add gauges of requests in flight, queues, replicas, the link and the table's age. Call at most once.

        The objects are read when Prometheus reads. `now` returns monotonic seconds.
        """
        self.registry.register(StateCollector(live, ledger, link, now))

    def show_localllm_names(self, ledger: InflightCounts, list_engines: Callable[[], Iterable[LoadedEngine]]) -> None:
        """Add the metrics under LocalLLM's names (ADR 25). `list_engines` is called when Prometheus reads.

        Call at most once.
        """
        self.registry.register(LocalllmCollector(self._requests, ledger, list_engines))

    def show_stored(self, stored_totals: Callable[[], StoredTotals], failures: Callable[[], int]) -> None:
        """Add metrics of the store of responses, completions and conversations. `failures`: number of its jobs that
        have failed or were refused so far. Both functions are called when Prometheus reads. Call at most once."""
        self.registry.register(StoredResponsesCollector(stored_totals, failures))

    def show_streams(self, stream_totals: Callable[[], StreamTotals]) -> None:
        """Add metrics of resumable streams. `stream_totals` is called when Prometheus reads. Call at most once."""
        self.registry.register(StreamsCollector(stream_totals))

    def show_mcp_servers(self, list_connected: Callable[[], Mapping[str, bool]]) -> None:
        """Add the gauge of MCP servers. `list_connected` returns each declared server to whether it is connected, and
        is called when Prometheus reads. Call at most once."""
        self.registry.register(McpServersCollector(list_connected))

    def show_certificate(self, has_problem: Callable[[], bool]) -> None:
        """Add the gauge of unusable certificate files. `has_problem` is called when Prometheus reads; True: the latest
        files cannot be used.

        Call at most once.
        """
        self.registry.register(CertificateCollector(has_problem))

    def show_connections(self, *, count_idle: Callable[[], int], count_busy: Callable[[], int]) -> None:
        """Add the gauge of connections to engines. Call at most once.

        Both functions are called when Prometheus reads, and return numbers of open connections.
        """
        self.registry.register(ConnectionCollector(count_idle, count_busy))
