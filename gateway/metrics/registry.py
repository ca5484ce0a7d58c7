"""The gateway's Prometheus metrics. Requests are counted once each; gauges are read when Prometheus asks.

No label holds a client's text: models and keys are declared; routes, error codes and statuses are the gateway's. Series
stay until a restart, including those of models and keys that are no longer declared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.control.inflight import InflightCounts
from gateway.control.link import LinkState
from gateway.metrics.fast_counters import FastCounter, FastCounters, FastHistograms
from gateway.protocols.common.dialect import Usage
from gateway.routing.live_routes import LiveRoutes
from gateway.storage.responses.records import StoredTotals
from gateway.streams.stream_totals import StreamTotals

UNKNOWN_MODEL = "unknown"
"""Model label of requests that named no declared model."""

CLIENT_GONE_STATUS = 499
"""Status label of requests whose client left before a status was sent (nginx's number)."""

_DURATION_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800)
_FIRST_BYTE_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
_QUEUE_WAIT_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


class RequestSeries:
    """Counters of one model's requests on one route. Obtain it from `Metrics.series_of`, and keep it."""

    __slots__ = ("_duration", "_first_byte", "_labels", "_requests", "_statuses", "_tokens")

    def __init__(self, requests: _RequestCollector, model: str, route: str) -> None:
        self._requests = requests
        self._labels = (model, route)
        self._duration = requests.duration.histogram_of(model, route)
        self._first_byte = requests.first_byte.histogram_of(model, route)
        self._statuses: dict[int, FastCounter] = {}
        self._tokens: tuple[FastCounter, FastCounter] | None = None

    def count_finished(self, status: int, duration_s: float, first_byte_s: float | None, usage: Usage | None) -> None:
        """Count one finished request. `duration_s`, `first_byte_s`: seconds since its headers arrived.

        `first_byte_s` None: no byte of an answer was sent. `usage` None: the engine did not report tokens.
        """
        counter = self._statuses.get(status) or self._status_counter(status)
        counter.value += 1
        self._duration.observe_value(duration_s)
        if first_byte_s is not None:
            self._first_byte.observe_value(first_byte_s)
        if usage is not None:
            prompt, completion = self._tokens or self._token_counters()
            prompt.value += usage.prompt
            completion.value += usage.completion
            if usage.cached:
                self._requests.cached_tokens.counter_of(self._labels[0]).value += usage.cached

    def count_turn(self, decision: str, usage: Usage | None) -> None:
        """Count a turn of a session. `decision`: what the answer's `X-Session` says."""
        self._requests.session_turns.counter_of(self._labels[0], decision).value += 1
        if decision == "reused" and usage is not None and usage.cached == 0:
            self._requests.session_misses.counter_of(self._labels[0]).value += 1

    def count_waited(self, seconds: float) -> None:
        """Count a request that had to wait for its slot. Call when it has the slot."""
        self._requests.queue_wait.histogram_of(self._labels[0]).observe_value(seconds)

    def count_retries(self, retries: int = 1) -> None:
        """Count further attempts of a request, after the first."""
        self._requests.retries.counter_of(self._labels[0]).value += retries

    def count_client_left(self) -> None:
        """Count a client that left before its answer was complete."""
        self._requests.client_gone.counter_of(*self._labels).value += 1

    def count_broken_off(self, code: str) -> None:
        """Count an answer that ended with the error `code` after its status was sent."""
        self._requests.broken_off.counter_of(self._labels[0], code).value += 1

    def count_refused(self, code: str) -> None:
        """Count a request that the gateway answered with the error `code`."""
        self._requests.refusals.counter_of(self._labels[0], code).value += 1

    def _status_counter(self, status: int) -> FastCounter:
        model, route = self._labels
        counter = self._statuses[status] = self._requests.requests.counter_of(model, route, str(status))
        return counter

    def _token_counters(self) -> tuple[FastCounter, FastCounter]:
        model, tokens = self._labels[0], self._requests.tokens
        self._tokens = counters = (tokens.counter_of(model, "in"), tokens.counter_of(model, "out"))
        return counters


class KeySeries:
    """Counters of one declared key. Obtain it from `Metrics.key_series_of`, and keep it."""

    __slots__ = ("_requests", "_tokens_in", "_tokens_out")

    def __init__(self, requests: _RequestCollector, key: str) -> None:
        self._requests = requests.key_requests.counter_of(key)
        self._tokens_in = requests.key_tokens.counter_of(key, "in")
        self._tokens_out = requests.key_tokens.counter_of(key, "out")

    def count_finished(self, usage: Usage | None) -> None:
        """Count one finished request that carried the key, answered or refused. `usage` None: no tokens reported."""
        self._requests.value += 1
        if usage is not None:
            self._tokens_in.value += usage.prompt
            self._tokens_out.value += usage.completion


class Metrics:
    """The gateway's Prometheus registry, and the counters of its requests."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._requests = _RequestCollector()
        self._series: dict[tuple[str, str], RequestSeries] = {}
        self._keys: dict[str, KeySeries] = {}
        self.registry.register(self._requests)

    def series_of(self, model: str, route: str) -> RequestSeries:
        """Return the counters of a model on a route.

        `model`: the name of a declared model, or `UNKNOWN_MODEL`; never a client's text. `route`: the path as declared.
        """
        series = self._series.get((model, route))
        if series is None:
            series = self._series[model, route] = RequestSeries(self._requests, model, route)
        return series

    def key_series_of(self, name: str) -> KeySeries:
        """Return the counters of a declared key."""
        series = self._keys.get(name)
        if series is None:
            series = self._keys[name] = KeySeries(self._requests, name)
        return series

    def show_state(self, live: LiveRoutes, ledger: InflightCounts, link: LinkState, now: Callable[[], float]) -> None:
        """Add gauges of requests in flight, queues, replicas and the link. `now`: monotonic seconds."""
        self.registry.register(_StateCollector(live, ledger, link, now))

    def show_stored(self, stored_totals: Callable[[], StoredTotals], failures: Callable[[], int]) -> None:
        """Add metrics of the store. Both functions are called when Prometheus reads."""
        self.registry.register(_StoredResponsesCollector(stored_totals, failures))

    def show_streams(self, stream_totals: Callable[[], StreamTotals]) -> None:
        """Add metrics of resumable streams. `stream_totals` is called when Prometheus reads."""
        self.registry.register(_StreamsCollector(stream_totals))

    def show_certificate(self, has_problem: Callable[[], bool]) -> None:
        """Add the gauge of unusable certificate files. `has_problem` is called when Prometheus reads."""
        self.registry.register(_CertificateCollector(has_problem))

    def show_connections(self, *, count_idle: Callable[[], int], count_busy: Callable[[], int]) -> None:
        """Add the gauge of connections to engines. Both functions are called when Prometheus reads."""
        self.registry.register(_ConnectionCollector(count_idle, count_busy))


class _RequestCollector(Collector):
    """The metrics that requests are counted in."""

    def __init__(self) -> None:
        self.requests = FastCounters(
            "roundhouse_gateway_requests",
            "Requests, by the HTTP status that was sent; 499: the client disconnected before a status was sent.",
            ("model", "route", "status"),
        )
        self.duration = FastHistograms(
            "roundhouse_gateway_request_duration_seconds",
            "Seconds from a request's headers to the last byte of its answer.",
            ("model", "route"),
            _DURATION_BUCKETS,
        )
        self.first_byte = FastHistograms(
            "roundhouse_gateway_first_byte_seconds",
            "Seconds from a request's headers to the first byte of its answer, not counting heartbeats.",
            ("model", "route"),
            _FIRST_BYTE_BUCKETS,
        )
        self.queue_wait = FastHistograms(
            "roundhouse_gateway_queue_wait_seconds",
            "Seconds that requests waited for a slot; requests that did not wait are not counted.",
            ("model",),
            _QUEUE_WAIT_BUCKETS,
        )
        self.tokens = FastCounters(
            "roundhouse_gateway_tokens",
            "Tokens as engines counted them; direction is `in` (prompt) or `out` (completion).",
            ("model", "direction"),
        )
        self.cached_tokens = FastCounters(
            "roundhouse_gateway_cached_tokens",
            "Tokens of prompts that engines had in their cache, where they tell; they count in `in`, too.",
            ("model",),
        )
        self.session_turns = FastCounters(
            "roundhouse_gateway_session_turns",
            "Turns of sessions, by what `X-Session` says: `new`, `reused` or `rebuilt`.",
            ("model", "decision"),
        )
        self.session_misses = FastCounters(
            "roundhouse_gateway_session_misses",
            "Turns said to be `reused` of which the engine had nothing in its cache.",
            ("model",),
        )
        self.retries = FastCounters(
            "roundhouse_gateway_retries",
            "Retries after a connection to an engine failed or its KV cache was full.",
            ("model",),
        )
        self.client_gone = FastCounters(
            "roundhouse_gateway_client_disconnects",
            "Clients that disconnected before their answer was complete.",
            ("model", "route"),
        )
        self.broken_off = FastCounters(
            "roundhouse_gateway_broken_answers",
            "Answers that ended with an error after their status was sent.",
            ("model", "code"),
        )
        self.refusals = FastCounters(
            "roundhouse_gateway_refusals",
            "Requests that the gateway answered with an error of its own.",
            ("model", "code"),
        )
        self.key_requests = FastCounters(
            "roundhouse_gateway_key_requests", "Requests with a declared key, including refused ones.", ("key",)
        )
        self.key_tokens = FastCounters(
            "roundhouse_gateway_key_tokens",
            "Tokens of a key's requests; direction is `in` (prompt) or `out` (completion).",
            ("key", "direction"),
        )

    def collect(self) -> Iterator[Metric]:
        """Yield each metric in prometheus_client's form."""
        for family in vars(self).values():
            yield family.make_family()


class _StateCollector(Collector):
    """Gauges that are computed from other parts of the gateway when they are read."""

    def __init__(self, live: LiveRoutes, ledger: InflightCounts, link: LinkState, now: Callable[[], float]) -> None:
        self._live = live
        self._ledger = ledger
        self._link = link
        self._now = now

    def collect(self) -> Iterator[Metric]:
        """Yield each gauge with its present values."""
        yield _gauge("inflight", "Requests that engines are serving.", "model", self._ledger.inflight_by_model)
        yield _gauge("queued", "Requests that wait for a load or a slot.", "model", self._ledger.queued)
        routes = self._live.current_or_none
        replicas = {name: len(route.endpoints) for name, route in routes.models.items()} if routes else {}
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


class _ConnectionCollector(Collector):
    def __init__(self, count_idle: Callable[[], int], count_busy: Callable[[], int]) -> None:
        self._count_idle = count_idle
        self._count_busy = count_busy

    def collect(self) -> Iterator[Metric]:
        counts = {"idle": self._count_idle(), "busy": self._count_busy()}
        yield _gauge("engine_connections", "Open connections to engines; state is `idle` or `busy`.", "state", counts)


class _CertificateCollector(Collector):
    def __init__(self, has_problem: Callable[[], bool]) -> None:
        self._has_problem = has_problem

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily(
            "roundhouse_gateway_tls_certificate_problem",
            "1 while the certificate's files cannot be used, so that the previous certificate is served.",
            float(self._has_problem()),
        )


class _StoredResponsesCollector(Collector):
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


class _StreamsCollector(Collector):
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
