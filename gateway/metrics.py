"""What Prometheus reads. Counters are touched once per request; gauges are read off when they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.ledger import Ledger
from gateway.live_routes import LiveRoutes
from gateway.sse import Usage

UNKNOWN_MODEL = "unknown"
"""Label of requests that named no declared model."""

CLIENT_GONE_STATUS = 499
"""Label of requests whose client left before it had an answer (nginx's number)."""

_DURATION_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800)
_FIRST_BYTE_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


@dataclass(frozen=True, slots=True)
class Finished:
    """One request, when it is over. Times in seconds."""

    model: str
    route: str
    status: int
    duration_s: float
    first_byte_s: float | None
    usage: Usage | None
    retries: int
    client_gone: bool
    broken_off: str | None
    """Code of the error that ended an answer after its status was sent."""


class Metrics:
    """The gateway's own registry, and the counters of its requests."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self._requests = Counter(
            "roundhouse_gateway_requests",
            "Requests, by the HTTP status that was sent; 499: the client left before one was.",
            ("model", "route", "status"),
            registry=registry,
        )
        self._duration = Histogram(
            "roundhouse_gateway_request_duration_seconds",
            "From a request's headers to its answer's last byte.",
            ("model", "route"),
            buckets=_DURATION_BUCKETS,
            registry=registry,
        )
        self._first_byte = Histogram(
            "roundhouse_gateway_first_byte_seconds",
            "From a request's headers to its answer's first byte, heartbeats not counted.",
            ("model", "route"),
            buckets=_FIRST_BYTE_BUCKETS,
            registry=registry,
        )
        self._tokens = Counter(
            "roundhouse_gateway_tokens",
            "Tokens as engines counted them; direction is `in` (prompt) or `out` (completion).",
            ("model", "direction"),
            registry=registry,
        )
        self._retries = Counter(
            "roundhouse_gateway_retries", "Further tries after a connection failed.", ("model",), registry=registry
        )
        self._client_gone = Counter(
            "roundhouse_gateway_client_disconnects",
            "Clients that left before their answer was complete.",
            ("model", "route"),
            registry=registry,
        )
        self._broken_off = Counter(
            "roundhouse_gateway_broken_answers",
            "Answers that ended with an error after their status was sent.",
            ("model", "code"),
            registry=registry,
        )
        self._bound: dict[tuple[str, str], tuple[Histogram, Histogram]] = {}
        self._bound_requests: dict[tuple[str, str, int], Counter] = {}
        self._bound_tokens: dict[str, tuple[Counter, Counter]] = {}

    def finished(self, request: Finished) -> None:
        """Count one request."""
        model, route = request.model, request.route
        self._requests_child(model, route, request.status).inc()
        duration, first_byte = self._histograms(model, route)
        duration.observe(request.duration_s)
        if request.first_byte_s is not None:
            first_byte.observe(request.first_byte_s)
        if request.usage is not None:
            tokens_in, tokens_out = self._token_children(model)
            tokens_in.inc(request.usage.prompt)
            tokens_out.inc(request.usage.completion)
        if request.retries:
            self._retries.labels(model).inc(request.retries)
        if request.client_gone:
            self._client_gone.labels(model, route).inc()
        if request.broken_off:
            self._broken_off.labels(model, request.broken_off).inc()

    def _requests_child(self, model: str, route: str, status: int) -> Counter:
        child = self._bound_requests.get((model, route, status))
        if child is None:
            child = self._bound_requests[model, route, status] = self._requests.labels(model, route, status)
        return child

    def _histograms(self, model: str, route: str) -> tuple[Histogram, Histogram]:
        pair = self._bound.get((model, route))
        if pair is None:
            pair = (self._duration.labels(model, route), self._first_byte.labels(model, route))
            self._bound[model, route] = pair
        return pair

    def _token_children(self, model: str) -> tuple[Counter, Counter]:
        pair = self._bound_tokens.get(model)
        if pair is None:
            pair = self._bound_tokens[model] = (self._tokens.labels(model, "in"), self._tokens.labels(model, "out"))
        return pair

    def show_state(self, live: LiveRoutes, ledger: Ledger, link: LinkState, now: Callable[[], float]) -> None:
        """Add the gauges that are read off the gateway's parts. `now` is the clock of `link.table_at`."""
        self.registry.register(_StateCollector(live, ledger, link, now))


class LinkState:
    """How it stands with the controller."""

    def __init__(self) -> None:
        self.connected = False
        self.ever_connected = False
        self.table_at: float | None = None
        """Monotonic time of the last table, in seconds."""

    @property
    def word(self) -> str:
        """`connected`, `lost` or `never`."""
        if self.connected:
            return "connected"
        return "lost" if self.ever_connected else "never"


class _StateCollector(Collector):
    """Gauges without a place of their own: the ledger and the routes are the truth."""

    def __init__(self, live: LiveRoutes, ledger: Ledger, link: LinkState, now: Callable[[], float]) -> None:
        self._live = live
        self._ledger = ledger
        self._link = link
        self._now = now

    def collect(self) -> Iterable[Metric]:
        """Read the gauges off."""
        yield _by_model("inflight", "Requests inside engines.", self._ledger.inflight_by_model)
        yield _by_model("queued", "Requests that wait for a model to be loaded.", self._ledger.queued)
        routes = self._live.current_or_none
        replicas = {name: len(route.endpoints) for name, route in routes.models.items()} if routes else {}
        yield _by_model("replicas", "Replicas that take requests.", replicas)
        link = GaugeMetricFamily("roundhouse_gateway_link_up", "1 while the controller is connected.")
        link.add_metric((), float(self._link.connected))
        yield link
        age = GaugeMetricFamily("roundhouse_gateway_table_age_seconds", "Since the last routing table came.")
        if self._link.table_at is not None:
            age.add_metric((), self._now() - self._link.table_at)
        yield age


def _by_model(name: str, text: str, values: dict[str, int]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(f"roundhouse_gateway_{name}", text, labels=("model",))
    for model, value in values.items():
        family.add_metric((model,), value)
    return family
