"""The gateway's Prometheus registry, and the counters of requests in it, made for the hot path.

Not safe across threads. The classes of prometheus_client take a lock and create objects on each call, which costs more
than the rest of the gateway's work for a request.

No label holds a client's text, but the bounded label `client`: models and keys are declared; routes, error codes and
statuses are the gateway's.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate
from typing import Final, Literal, NamedTuple

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.protocols.common.dialect import Usage
from gateway.tenancy.api_keys import clean_client_text


class FastCounter:
    """One series of a counter. Add to `value` to count, in one thread only."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: float = 0.0


class FastCounters:
    """A counter metric with labels: one series per combination of label values. Use it from one thread."""

    def __init__(self, name: str, text: str, labels: tuple[str, ...]) -> None:
        """`name`: without `_total`. `text`: the metric's help. `labels`: names of the labels."""
        self._name, self._text, self._labels = name, text, labels
        self._series: dict[tuple[str, ...], FastCounter] = {}

    def counter_of(self, *labels: str) -> FastCounter:
        """Return the series of these label values: one value per label, in the order of the metric's labels (not
        checked). The series is created on first use. Keep it if you count often: it is never removed or replaced."""
        return self._series.get(labels) or self._series.setdefault(labels, FastCounter())

    def list_values(self) -> list[tuple[tuple[str, ...], float]]:
        """Return the label values of each series, and its count, in the order in which the series were created."""
        return [(labels, counter.value) for labels, counter in self._series.items()]

    def sum_all(self) -> float:
        """Return the sum over all series."""
        return sum(counter.value for counter in self._series.values())

    def sum_where(self, index: int, value: str) -> float:
        """Return the sum over the series whose label number `index`, from 0, is `value`."""
        return sum(counter.value for labels, counter in self._series.items() if labels[index] == value)

    def make_family(self) -> Metric:
        """Return the metric with all its series in prometheus_client's form."""
        family = CounterMetricFamily(self._name, self._text, labels=self._labels)
        for labels, counter in self._series.items():
            family.add_metric(labels, counter.value)
        return family


class FastHistogram:
    """One series of a histogram: counts by bucket, and the sum of the values. Use it from one thread. `bounds`: upper
    bounds of the buckets, ascending, without `+Inf`."""

    __slots__ = ("_bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        """Number of values in each bucket, not cumulative; the last is for values above every bound."""
        self.sum = 0.0

    def observe_value(self, value: float) -> None:
        """Count one value. A value equal to a bucket's upper bound belongs to that bucket."""
        self.counts[bisect_left(self._bounds, value)] += 1
        self.sum += value


class FastHistograms:
    """A histogram metric with labels: one series per combination of label values. Use it from one thread."""

    def __init__(self, name: str, text: str, labels: tuple[str, ...], bounds: tuple[float, ...]) -> None:
        """`text`: the metric's help. `bounds`: upper bounds of the buckets, ascending, without `+Inf`."""
        self._name, self._text, self._labels, self.bounds = name, text, labels, bounds
        self._series: dict[tuple[str, ...], FastHistogram] = {}

    def histogram_of(self, *labels: str) -> FastHistogram:
        """Return the series of these label values: one value per label, in the order of the metric's labels (not
        checked). The series is created on first use. Keep it if you count often: it is never removed or replaced."""
        return self._series.get(labels) or self._series.setdefault(labels, FastHistogram(self.bounds))

    def list_counts(self) -> list[tuple[tuple[str, ...], list[int]]]:
        """Return the label values of each series, and a copy of its counts by bucket, as `FastHistogram.counts`."""
        return [(labels, histogram.counts.copy()) for labels, histogram in self._series.items()]

    def make_family(self) -> Metric:
        """Return the metric with all its series in prometheus_client's form."""
        family = HistogramMetricFamily(self._name, self._text, labels=self._labels)
        upper_bounds = [*(str(float(bound)) for bound in self.bounds), "+Inf"]
        for labels, histogram in self._series.items():
            family.add_metric(labels, list(zip(upper_bounds, accumulate(histogram.counts), strict=True)), histogram.sum)
        return family


Outcome = Literal["completed", "errored", "cancelled"]
"""How a request ended."""

UNKNOWN_MODEL = "unknown"
"""Model label of requests that named no declared model."""

CLIENT_GONE_STATUS = 499
"""Status label of requests whose client left before a status was sent (nginx's number)."""

_DURATION_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800)
_FIRST_BYTE_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
_QUEUE_WAIT_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_FIRST_TOKEN_BUCKETS: Final = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10),
    *(30, 60),
)
_OUTPUT_TOKEN_BUCKETS: Final = (0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5)
_TOKEN_BUCKETS: Final = (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576)
"""The buckets of these three are those that OpenTelemetry's semantic conventions for generative AI advise
(`gen_ai.server.time_to_first_token`, `gen_ai.server.time_per_output_token`, `gen_ai.client.token.usage`). A first token
may wait for a queue here, so two larger ones are added, and small models are faster than 100 tokens per second, so two
smaller ones; of the numbers of tokens, those beyond any context are left out."""

MAX_CLIENTS: Final = 100
"""Values of the label `client` at most, besides `other`."""
OTHER_CLIENTS: Final = "other"
"""Value of the label `client` for all clients that came when there were `MAX_CLIENTS`."""

MAX_TOOLS: Final = 200
"""Values of the label `tool` at most, besides `other`: MCP servers name their tools as they like."""
OTHER_TOOLS: Final = "other"
"""Value of the label `tool` for all tools that were called when there were `MAX_TOOLS`."""


class EngineWork(NamedTuple):
    """What an engine did for one request, as the gateway saw it, in seconds and events. 0 stands for what did not
    happen; `first_token_s` None: the client got no stream."""

    inference_s: float = 0.0
    """Seconds from the sending of the last attempt to the end of the request; 0: no engine was asked."""
    chunks: int = 0
    """Events of the engine's stream; 0: it sent none."""
    first_token_s: float | None = None
    """Seconds from the request's headers to the first byte of the client's stream; None: the client got no stream."""
    stream_s: float = 0.0
    """Seconds from the first byte of the client's stream to the end of the request; 0: the client got no stream."""


NO_WORK: Final = EngineWork()


class RequestSeries:
    """Counters of one model's requests on one route. Obtain it from `Metrics.series_of`, and keep it."""

    __slots__ = ("_duration", "_first_byte", "_labels", "_requests", "_statuses", "_tokens")

    def __init__(self, requests: RequestCollector, model: str, route: str) -> None:
        self._requests = requests
        self._labels = (model, route)
        self._duration = requests.duration.histogram_of(model, route)
        self._first_byte = requests.first_byte.histogram_of(model, route)
        self._statuses: dict[int, FastCounter] = {}
        self._tokens: tuple[FastCounter, FastCounter] | None = None

    def count_finished(self, status: int, duration_s: float, first_byte_s: float | None, usage: Usage | None) -> None:
        """Count one finished request. `status`: the HTTP status that was sent, or `CLIENT_GONE_STATUS` (499) if none
        was.

        `duration_s`, `first_byte_s`: seconds from the arrival of its headers to the end and to the answer's first byte;
        `first_byte_s` None: no byte of an answer was sent. `usage` None: no tokens are known, and none are counted.
        """
        counter = self._statuses.get(status) or self._status_counter(status)
        counter.value += 1
        self._duration.observe_value(duration_s)
        if first_byte_s is not None:
            self._first_byte.observe_value(first_byte_s)
        self.count_tokens(usage)

    def count_tokens(self, usage: Usage | None) -> None:
        """Count the tokens of a round of a request. `usage` None: none are known, and none are counted."""
        if usage is not None:
            prompt, completion = self._tokens or self._token_counters()
            prompt.value += usage.prompt
            completion.value += usage.completion
            if usage.cached:
                self._requests.cached_tokens.counter_of(self._labels[0]).value += usage.cached

    def count_turn(self, decision: str, usage: Usage | None) -> None:
        """Count a turn of a session. `decision`: what the answer's `X-Session` says: `new`, `reused` or `rebuilt`.

        A `reused` turn of which the engine had no token in its cache (`usage.cached` 0) counts as a miss, too.
        """
        self._requests.session_turns.counter_of(self._labels[0], decision).value += 1
        if decision == "reused" and usage is not None and usage.cached == 0:
            self._requests.session_misses.counter_of(self._labels[0]).value += 1

    def count_waited(self, seconds: float) -> None:
        """Count a request that had to wait `seconds` for its slot. Call when it has the slot."""
        self._requests.queue_wait.histogram_of(self._labels[0]).observe_value(seconds)

    def count_retries(self, retries: int = 1) -> None:
        """Count `retries` further attempts of a request, not counting its first one."""
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


class ModelSeries:
    """Counters of what engines did for one model's requests. Obtain it from `Metrics.model_series_of`, and keep it."""

    __slots__ = (
        "_chunks",
        "_first_token",
        "_inference",
        "_outcomes",
        "_output_token",
        "_requests",
        "_stream_seconds",
        "_tokens_in",
        "_tokens_out",
        "_unreported",
        "model",
    )

    def __init__(self, requests: RequestCollector, model: str) -> None:
        self.model = model
        self._requests = requests
        self._outcomes: dict[Outcome, FastCounter] = {}
        self._inference: FastCounter | None = None
        self._chunks: FastCounter
        self._stream_seconds: FastCounter
        self._unreported: FastCounter
        self._first_token: FastHistogram
        self._output_token: FastHistogram
        self._tokens_in: FastHistogram
        self._tokens_out: FastHistogram

    def count_finished(self, outcome: Outcome, work: EngineWork, usage: Usage | None, unreported_tokens: int) -> None:
        """Count one finished request. With `work` `NO_WORK` (that very object), only the outcome is counted; with
        `work.chunks` 0, nothing of a stream.

        `usage` None: the engine did not report its tokens; `unreported_tokens`, those that were counted in its stream,
        are counted instead.
        """
        counter = self._outcomes.get(outcome)
        if counter is None:
            counter = self._outcomes[outcome] = self._requests.outcomes.counter_of(self.model, outcome)
        counter.value += 1
        self._count_work(outcome, work, usage, unreported_tokens)

    def count_round(self, outcome: Outcome, work: EngineWork, usage: Usage | None, unreported_tokens: int) -> None:
        """Count one finished round of a response whose tools the gateway runs. It adds nothing to the outcomes of
        requests; all else is as in `count_finished`."""
        self._requests.rounds.counter_of(self.model, outcome).value += 1
        self._count_work(outcome, work, usage, unreported_tokens)

    def _count_work(self, outcome: Outcome, work: EngineWork, usage: Usage | None, unreported_tokens: int) -> None:
        if work is NO_WORK:
            return
        inference = self._inference or self._bind_series()
        inference.value += work.inference_s
        if usage is not None:
            self._tokens_in.observe_value(usage.prompt)
            self._tokens_out.observe_value(usage.completion)
        else:
            self._unreported.value += unreported_tokens
        if not work.chunks:
            return
        self._chunks.value += work.chunks
        self._stream_seconds.value += work.stream_s
        if work.first_token_s is not None:
            self._first_token.observe_value(work.first_token_s)
            if outcome == "completed" and usage is not None and usage.completion > 1:
                self._output_token.observe_value(work.stream_s / (usage.completion - 1))

    def _bind_series(self) -> FastCounter:
        """Bind the series of requests that reach an engine; other models, such as `unknown`, have none."""
        requests, model = self._requests, self.model
        self._inference = inference = requests.inference_seconds.counter_of(model)
        self._chunks = requests.stream_chunks.counter_of(model)
        self._stream_seconds = requests.stream_seconds.counter_of(model)
        self._unreported = requests.unreported_tokens.counter_of(model)
        self._first_token = requests.first_token.histogram_of(model)
        self._output_token = requests.output_token.histogram_of(model)
        self._tokens_in = requests.request_tokens.histogram_of(model, "in")
        self._tokens_out = requests.request_tokens.histogram_of(model, "out")
        return inference


class KeySeries:
    """Counters of one declared key. Obtain it from `Metrics.key_series_of`, and keep it."""

    __slots__ = ("_requests", "_tokens_in", "_tokens_out")

    def __init__(self, requests: RequestCollector, key: str) -> None:
        self._requests = requests.key_requests.counter_of(key)
        self._tokens_in = requests.key_tokens.counter_of(key, "in")
        self._tokens_out = requests.key_tokens.counter_of(key, "out")

    def count_finished(self, usage: Usage | None) -> None:
        """Count one finished request that carried the key, answered or refused. `usage` None: no tokens reported."""
        self._requests.value += 1
        self.count_tokens(usage)

    def count_tokens(self, usage: Usage | None) -> None:
        """Count the tokens of a round of a request. `usage` None: none are known, and none are counted."""
        if usage is not None:
            self._tokens_in.value += usage.prompt
            self._tokens_out.value += usage.completion


class ClientSeries:
    """Counters of one client, or of all clients that share the label value `other`. Obtain it from
    `Metrics.client_series_of`, which the caller asks for each request."""

    __slots__ = ("_inference", "_requests")

    def __init__(self, requests: RequestCollector, client: str) -> None:
        self._requests = requests.client_requests.counter_of(client)
        self._inference = requests.client_inference_seconds.counter_of(client)

    def count_finished(self, inference_s: float) -> None:
        """Count one finished request. `inference_s`: seconds from its last sending to an engine to its end; 0: none was
        asked."""
        self._requests.value += 1
        self._inference.value += inference_s

    def count_work(self, inference_s: float) -> None:
        """Count an engine's work for a round of a request, but no request. `inference_s`: as for `count_finished`, of
        the round."""
        self._inference.value += inference_s


class RequestCollector(Collector):
    """The metrics that requests are counted in, one per attribute. `Metrics` makes and registers it; requests count by
    `RequestSeries`, `ModelSeries`, `KeySeries` and `ClientSeries`."""

    def __init__(self) -> None:
        self._families: list[FastCounters | FastHistograms] = []
        self.requests = self._add_counters(
            "roundhouse_gateway_requests",
            "Requests, by the HTTP status that was sent; 499: the client disconnected before a status was sent.",
            ("model", "route", "status"),
        )
        self.duration = self._add_histograms(
            "roundhouse_gateway_request_duration_seconds",
            "Seconds from a request's headers to the last byte of its answer.",
            ("model", "route"),
            _DURATION_BUCKETS,
        )
        self.first_byte = self._add_histograms(
            "roundhouse_gateway_first_byte_seconds",
            "Seconds from a request's headers to the first byte of its answer, not counting heartbeats.",
            ("model", "route"),
            _FIRST_BYTE_BUCKETS,
        )
        self.queue_wait = self._add_histograms(
            "roundhouse_gateway_queue_wait_seconds",
            "Seconds that requests waited for a slot; requests that did not wait are not counted.",
            ("model",),
            _QUEUE_WAIT_BUCKETS,
        )
        self.tokens = self._add_counters(
            "roundhouse_gateway_tokens",
            "Tokens as engines counted them; direction is `in` (prompt) or `out` (completion).",
            ("model", "direction"),
        )
        self.cached_tokens = self._add_counters(
            "roundhouse_gateway_cached_tokens",
            "Tokens of prompts that engines had in their cache, where they tell; they count in `in`, too.",
            ("model",),
        )
        self.session_turns = self._add_counters(
            "roundhouse_gateway_session_turns",
            "Turns of sessions, by what `X-Session` says: `new`, `reused` or `rebuilt`.",
            ("model", "decision"),
        )
        self.session_misses = self._add_counters(
            "roundhouse_gateway_session_misses",
            "Turns said to be `reused` of which the engine had nothing in its cache.",
            ("model",),
        )
        self.retries = self._add_counters(
            "roundhouse_gateway_retries",
            "Retries after a connection to an engine failed or its KV cache was full.",
            ("model",),
        )
        self.client_gone = self._add_counters(
            "roundhouse_gateway_client_disconnects",
            "Clients that disconnected before their answer was complete.",
            ("model", "route"),
        )
        self.broken_off = self._add_counters(
            "roundhouse_gateway_broken_answers",
            "Answers that ended with an error after their status was sent.",
            ("model", "code"),
        )
        self.refusals = self._add_counters(
            "roundhouse_gateway_refusals",
            "Requests that the gateway answered with an error of its own.",
            ("model", "code"),
        )
        self.key_requests = self._add_counters(
            "roundhouse_gateway_key_requests", "Requests with a declared key, including refused ones.", ("key",)
        )
        self.key_tokens = self._add_counters(
            "roundhouse_gateway_key_tokens",
            "Tokens of a key's requests; direction is `in` (prompt) or `out` (completion).",
            ("key", "direction"),
        )

        self.outcomes = self._add_counters(
            "roundhouse_gateway_request_outcomes",
            "Requests that ended, by how: `completed`, `errored` (an error's status, or broken off by one), or "
            "`cancelled` by their client.",
            ("model", "outcome"),
        )
        self.rounds = self._add_counters(
            "roundhouse_gateway_rounds",
            "Rounds of responses whose tools the gateway runs, by how they ended, as in `request_outcomes_total`, "
            "which counts the response.",
            ("model", "outcome"),
        )
        self.inference_seconds = self._add_counters(
            "roundhouse_gateway_inference_seconds",
            "Seconds from the sending of requests to an engine to their end, added up.",
            ("model",),
        )
        self.stream_chunks = self._add_counters(
            "roundhouse_gateway_stream_chunks", "Events of engines' streams, counted when the request ends.", ("model",)
        )
        self.stream_seconds = self._add_counters(
            "roundhouse_gateway_stream_seconds",
            "Seconds from the first byte of streams to their end, added up.",
            ("model",),
        )
        self.unreported_tokens = self._add_counters(
            "roundhouse_gateway_unreported_tokens",
            "Tokens of streams that ended before the engine reported its count; they count in `out`, too.",
            ("model",),
        )
        self.first_token = self._add_histograms(
            "roundhouse_gateway_time_to_first_token_seconds",
            "Seconds from the headers of a request for a stream to the first event of its answer.",
            ("model",),
            _FIRST_TOKEN_BUCKETS,
        )
        self.output_token = self._add_histograms(
            "roundhouse_gateway_time_per_output_token_seconds",
            "Seconds for each token after the first, the mean of each complete stream.",
            ("model",),
            _OUTPUT_TOKEN_BUCKETS,
        )
        self.request_tokens = self._add_histograms(
            "roundhouse_gateway_request_tokens",
            "Tokens of each request as its engine counted them; direction is `in` (prompt) or `out` (completion).",
            ("model", "direction"),
            _TOKEN_BUCKETS,
        )
        self.client_requests = self._add_counters(
            "roundhouse_gateway_client_requests",
            "Requests by client, as it names itself by `X-Client-Id` or `User-Agent`.",
            ("client",),
        )
        self.client_inference_seconds = self._add_counters(
            "roundhouse_gateway_client_inference_seconds",
            "Seconds that engines worked for a client's requests, added up.",
            ("client",),
        )
        self.tool_calls = self._add_counters(
            "roundhouse_gateway_tool_calls",
            "Calls of tools that ended, by how: `ok`, `error` (the tool said so), `refused`, `timeout`, `failed` or "
            "`cancelled`.",
            ("tool", "outcome"),
        )

    def collect(self) -> Iterator[Metric]:
        """Yield each metric with its present values in prometheus_client's form. prometheus_client calls it at each
        scrape."""
        for family in self._families:
            yield family.make_family()

    def _add_counters(self, name: str, text: str, labels: tuple[str, ...]) -> FastCounters:
        counters = FastCounters(name, text, labels)
        self._families.append(counters)
        return counters

    def _add_histograms(
        self, name: str, text: str, labels: tuple[str, ...], bounds: tuple[float, ...]
    ) -> FastHistograms:
        histograms = FastHistograms(name, text, labels, bounds)
        self._families.append(histograms)
        return histograms


class Metrics:
    """The gateway's Prometheus registry, and the counters of its requests.

    Made once; use it in the event loop. Collectors of other metrics are registered in `registry`, each once. Series
    stay until a restart, including those of models and keys that are no longer declared.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.requests = RequestCollector()
        self._series: dict[tuple[str, str], RequestSeries] = {}
        self._models: dict[str, ModelSeries] = {}
        self._keys: dict[str, KeySeries] = {}
        self._clients: dict[bytes, ClientSeries] = {}
        self._other_clients: ClientSeries | None = None
        self._tools: set[str] = set()
        self.registry.register(self.requests)

    def series_of(self, model: str, route: str) -> RequestSeries:
        """Return the counters of a model on a route, created on first use.

        `model`: the name of a declared model, or `UNKNOWN_MODEL`; never a client's text. `route`: the path as declared.
        """
        series = self._series.get((model, route))
        if series is None:
            series = self._series[model, route] = RequestSeries(self.requests, model, route)
        return series

    def model_series_of(self, model: str) -> ModelSeries:
        """Return the counters of a model on all routes, created on first use. `model`: the name of a declared model, or
        `UNKNOWN_MODEL`; never a client's text."""
        series = self._models.get(model)
        if series is None:
            series = self._models[model] = ModelSeries(self.requests, model)
        return series

    def client_series_of(self, client_text: bytes) -> ClientSeries:
        """Return the counters of a client, created on first use. `client_text`: how the client names itself
        (`find_client_text`), not cleaned. The first `MAX_CLIENTS` (100) names have counters of their own; all others
        share those of `other`."""
        return self._clients.get(client_text) or self._add_client(client_text)

    def _add_client(self, client_text: bytes) -> ClientSeries:
        if len(self._clients) < MAX_CLIENTS:
            client = clean_client_text(client_text).decode("ascii")
            series = self._clients[client_text] = ClientSeries(self.requests, client)
            return series
        if self._other_clients is None:
            self._other_clients = ClientSeries(self.requests, OTHER_CLIENTS)
        return self._other_clients

    def key_series_of(self, name: str) -> KeySeries:
        """Return the counters of a key, created on first use. `name`: the name of a declared key, not its secret."""
        series = self._keys.get(name)
        if series is None:
            series = self._keys[name] = KeySeries(self.requests, name)
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
        self.requests.tool_calls.counter_of(tool, outcome).value += 1
