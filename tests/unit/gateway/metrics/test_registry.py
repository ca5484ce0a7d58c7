"""The metrics: documented, and bounded in number."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from assistant.extension import McpServersCollector, StoredResponsesCollector, StreamsCollector
from assistant.storage.records import StoredTotals
from assistant.streams.registry import StreamTotals
from gateway.control.inflight import InflightCounts
from gateway.control.link import LinkState
from gateway.metrics.engine_exposition import RENAMED, EnginePage, merge_pages, rename
from gateway.metrics.request_metrics import MAX_CLIENTS, NO_WORK, UNKNOWN_MODEL, EngineWork, Metrics, Outcome
from gateway.metrics.state_metrics import (
    CertificateCollector,
    ConnectionCollector,
    LoadedEngine,
    LocalllmCollector,
    StateCollector,
)
from gateway.protocols.common.dialect import Usage
from gateway.routing.table import LiveRoutes

DOCS = Path(__file__).parents[4] / "docs" / "metrics.md"


def everything() -> Metrics:
    """Metrics that have counted one of everything, so that every label shows."""
    metrics, live, ledger, link = Metrics(), LiveRoutes(), InflightCounts(lambda: 0.0, {"m": 1}), LinkState()
    metrics.registry.register(StateCollector(live, ledger, link, lambda: 3.0))
    link.table_at = 1.0
    ledger.enter_replica("m", "r", "req-1")
    metrics.registry.register(ConnectionCollector(lambda: 3, lambda: 2))
    metrics.registry.register(McpServersCollector(lambda: {"weather": True}))
    metrics.registry.register(StoredResponsesCollector(lambda: StoredTotals(5, 4096), lambda: 1))
    metrics.registry.register(StreamsCollector(lambda: StreamTotals(2, 3, 4, 4096, 1, 1, 5, 1, 1)))
    metrics.registry.register(CertificateCollector(lambda: False))
    metrics.key_series_of("team-a").count_finished(Usage(3, 4))
    metrics.client_series_of(b"app/1.0").count_finished(0.5)
    work = EngineWork(inference_s=0.9, chunks=4, first_token_s=0.5, stream_s=0.3)
    metrics.model_series_of("m").count_finished("completed", work, Usage(3, 4), 0)
    metrics.model_series_of("m").count_round("completed", work, Usage(3, 4), 0)
    metrics.registry.register(
        LocalllmCollector(metrics.requests, ledger, lambda: [LoadedEngine("m_model_stub_0", "stub")])
    )
    series = metrics.series_of("m", "/v1/chat/completions")
    series.count_finished(200, 1.0, 0.5, Usage(3, 4, 1))
    series.count_turn("reused", Usage(3, 4, 0))
    series.count_retries()
    series.count_client_left()
    series.count_broken_off("engine_disconnected")
    series.count_waited(0.2)
    series.count_refused("queue_full")
    metrics.count_tool_call("calculate", "ok")
    return metrics


def test_the_docs_hold_the_same_metrics_and_labels() -> None:
    rows = re.findall(
        r"^\| `(roundhouse_gateway_\w+)` \| (\w+) \| ([\w, ]*) \| (.+) \|$", DOCS.read_text(), re.MULTILINE
    )
    families = [each for each in everything().registry.collect() if each.name.startswith("roundhouse_gateway_")]
    names = {each.name: f"{each.name}_total" if each.type == "counter" else each.name for each in families}
    served = {(names[family.name], family.type): family.documentation for family in families}
    assert {(name, kind): text for name, kind, _, text in rows} == served
    documented = {name: set(re.findall(r"\w+", labels)) for name, _, labels, _ in rows}
    for family in families:
        if family.name != "roundhouse_gateway_replicas":
            for sample in family.samples:
                assert set(sample.labels) - {"le"} == documented[names[family.name]], sample.name


ROUTE = "/v1/chat/completions"


@pytest.mark.parametrize(
    ("name", "labels", "value"),
    [
        *(("inflight", {"model": "m"}, 1), ("queued", {"model": "m"}, 1), ("table_age_seconds", {}, 2)),
        ("link_up", {}, 0),
        ("requests_total", {"model": "m", "route": ROUTE, "status": "200"}, 1),
        ("first_byte_seconds_sum", {"model": "m", "route": ROUTE}, 0.5),
        ("tokens_total", {"model": "m", "direction": "in"}, 3),
        ("tokens_total", {"model": "m", "direction": "out"}, 4),
        ("retries_total", {"model": "m"}, 1),
        ("client_disconnects_total", {"model": "m", "route": ROUTE}, 1),
        ("broken_answers_total", {"model": "m", "code": "engine_disconnected"}, 1),
        ("refusals_total", {"model": "m", "code": "queue_full"}, 1),
        ("queue_wait_seconds_count", {"model": "m"}, 1),
        ("engine_connections", {"state": "idle"}, 3),
        ("engine_connections", {"state": "busy"}, 2),
    ],
)
def test_each_metric_tells_what_was_counted_or_how_it_stands(name: str, labels: dict[str, str], value: float) -> None:
    assert sample(everything(), name, **labels) == value
    assert sample(Metrics(), name, **labels) in (None, 0), "two gateways in one process do not share"


def sample(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(f"roundhouse_gateway_{name}", labels)


def test_routes_of_a_model_share_its_tokens_and_a_key_is_counted_by_its_name() -> None:
    metrics = Metrics()
    for route in (ROUTE, "/v1/completions"):
        metrics.series_of("m", route).count_finished(200, 1.0, None, Usage(1, 2))
    assert sample(metrics, "tokens_total", model="m", direction="out") == 4
    assert sample(metrics, "requests_total", model="m", route="/v1/completions", status="200") == 1
    metrics.key_series_of("team-a").count_finished(Usage(3, 4))
    metrics.key_series_of("team-a").count_finished(None)
    assert sample(metrics, "key_requests_total", key="team-a") == 2
    assert sample(metrics, "key_tokens_total", key="team-a", direction="in") == 3
    assert sample(metrics, "key_tokens_total", key="team-a", direction="out") == 4
    for text in (b"", b"anonymous", b"\x01"):
        metrics.client_series_of(text).count_finished(1.0)
    assert sample(metrics, "client_requests_total", client="anonymous") == 3, "by their cleaned name"


def test_series_are_bounded() -> None:
    metrics = Metrics()
    for number in range(10_000):
        metrics.client_series_of(b"agent/%d \xff" % number).count_finished(0.5)
        metrics.client_series_of(b"agent/1 \xff").count_finished(0.0)
    [family] = [each for each in metrics.registry.collect() if each.name == "roundhouse_gateway_client_requests"]
    counts = {each.labels["client"]: each.value for each in family.samples}
    assert len(counts) == MAX_CLIENTS + 1
    assert sum(counts.values()) == 20_000
    assert counts["other"] == 10_000 - MAX_CLIENTS
    assert counts["agent/1"] == 10_001
    assert len(metrics._clients) == MAX_CLIENTS
    # MCP servers name their tools as they like, and may name them anew.
    metrics = Metrics()
    for number in range(250):
        metrics.count_tool_call(f"server__{number}", "ok")
    assert sample(metrics, "tool_calls_total", tool="server__0", outcome="ok") == 1
    assert sample(metrics, "tool_calls_total", tool="server__199", outcome="ok") == 1
    assert sample(metrics, "tool_calls_total", tool="server__200", outcome="ok") is None
    assert sample(metrics, "tool_calls_total", tool="other", outcome="ok") == 50


def test_speed_is_counted_of_complete_streams_alone() -> None:
    metrics = Metrics()
    series = metrics.model_series_of("m")
    series.count_finished("completed", EngineWork(2.0, 12, 0.5, 1.0), Usage(3, 11), 0)
    series.count_finished("cancelled", EngineWork(2.0, 6, 0.5, 1.0), None, 5)
    series.count_finished("completed", EngineWork(2.0, 0), Usage(3, 1), 0)
    series.count_finished("errored", NO_WORK, None, 0)
    assert sample(metrics, "time_per_output_token_seconds_count", model="m") == 1
    assert sample(metrics, "time_per_output_token_seconds_sum", model="m") == 0.1
    assert sample(metrics, "time_to_first_token_seconds_count", model="m") == 2
    assert sample(metrics, "request_tokens_count", model="m", direction="out") == 2
    assert sample(metrics, "unreported_tokens_total", model="m") == 5
    assert sample(metrics, "stream_chunks_total", model="m") == 18
    assert sample(metrics, "request_outcomes_total", model="m", outcome="completed") == 2
    assert sample(metrics, "inference_seconds_total", model="m") == 6


def test_nothing_is_shown_that_was_not_counted() -> None:
    metrics = Metrics()
    metrics.series_of(UNKNOWN_MODEL, "/v1/completions").count_finished(404, 0.1, 0.1, None)
    text = generate_latest(metrics.registry).decode()
    counted = {line.partition("{")[0] for line in text.splitlines() if line.startswith("roundhouse_gateway_")}
    assert counted == {
        "roundhouse_gateway_requests_total",
        *(f"roundhouse_gateway_request_duration_seconds_{part}" for part in ("bucket", "count", "sum")),
        *(f"roundhouse_gateway_first_byte_seconds_{part}" for part in ("bucket", "count", "sum")),
    }


@pytest.mark.parametrize("value", [0.0, 0.0099, 0.01, 0.010001, 0.3, 1, 1800, 1800.5, 1e9])
def test_histograms_read_as_prometheus_clients_own(value: float) -> None:
    theirs, ours = CollectorRegistry(), Metrics()
    bounds = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800)
    name = "roundhouse_gateway_request_duration_seconds"
    Histogram(name, "x", ("model", "route"), buckets=bounds, registry=theirs).labels("m", "r").observe(value)
    ours.series_of("m", "r").count_finished(200, value, None, None)
    assert samples(ours.registry, name) == samples(theirs, name)


def test_counters_read_as_prometheus_clients_own() -> None:
    theirs, ours = CollectorRegistry(), Metrics()
    name = "roundhouse_gateway_refusals"
    Counter(name, "x", ("model", "code"), registry=theirs).labels('od"d\\ \n', "queue_full").inc(2)
    series = ours.series_of('od"d\\ \n', "r")
    series.count_refused("queue_full")
    series.count_refused("queue_full")
    assert samples(ours.registry, name) == samples(theirs, name)


def samples(registry: CollectorRegistry, name: str) -> list[object]:
    """Samples of a family, as a scrape reads them."""
    families = text_string_to_metric_families(generate_latest(registry).decode())
    return [
        (found.name, found.labels, found.value)
        for family in families
        if family.name == name
        for found in family.samples
    ]


NAMES = {
    *("requests_total", "requests_completed_total", "requests_errored_total", "requests_cancelled_total"),
    *("stream_chunks_total", "inference_seconds_total", "client_requests_total", "inference_seconds_avg"),
    *("chunks_per_second_avg", "queue_depth", "inflight", "engines_loaded", "engine_loaded"),
    "client_inference_seconds_avg",
}
"""As LocalLLM's documentation lists them."""


def busy_metrics() -> Metrics:
    """Metrics of two models: one finished, one broken and one cancelled request."""
    metrics, ledger = Metrics(), InflightCounts(lambda: 0.0, {"m": 2, "n": 1})
    ledger.enter_replica("m", "r", "req-1")
    metrics.registry.register(
        LocalllmCollector(metrics.requests, ledger, lambda: [LoadedEngine("m_4096_stub_0", "stub")])
    )
    ended: tuple[tuple[str, Outcome, EngineWork], ...] = (
        ("m", "completed", EngineWork(2.0, 8, 0.5, 1.5)),
        ("n", "errored", NO_WORK),
        ("n", "cancelled", EngineWork(1.0, 2, 0.5, 0.5)),
    )
    for model, outcome, work in ended:
        metrics.model_series_of(model).count_finished(outcome, work, Usage(3, 7) if model == "m" else None, 0)
        metrics.client_series_of(b"MyApp/1.0").count_finished(work.inference_s)
    return metrics


def value_of(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(f"localllm_{name}", labels)


def test_exactly_its_documentations_metrics_are_served_and_documented() -> None:
    served = {
        (f"{family.name}_total" if family.type == "counter" else family.name, family.type)
        for family in busy_metrics().registry.collect()
        if family.name.startswith("localllm_")
    }
    assert {name for name, _ in served} == {f"localllm_{name}" for name in NAMES}
    rows = re.findall(r"^\| `(localllm_\w+)` \| (\w+) \|", DOCS.read_text(), re.MULTILINE)
    assert set(rows) == served


def test_the_counts_are_ours_over_all_models() -> None:
    metrics = busy_metrics()
    expected = {
        "requests_completed_total": 1,
        "requests_errored_total": 1,
        "requests_cancelled_total": 1,
        "requests_total": 3,
        "stream_chunks_total": 10,
        "chunks_per_second_avg": 5,
        "inference_seconds_total": 3,
        "inference_seconds_avg": 3,
        "queue_depth": 3,
        "inflight": 1,
        "engines_loaded": 1,
    }
    assert {name: value_of(metrics, name) for name in expected} == expected
    assert value_of(metrics, "engine_loaded", key="m_4096_stub_0", backend="stub") == 1
    assert value_of(metrics, "client_requests_total", client="MyApp/1.0") == 3
    assert value_of(metrics, "client_inference_seconds_avg", client="MyApp/1.0") == 1
    # Before the first request, nothing is divided by zero.
    metrics = Metrics()
    metrics.registry.register(LocalllmCollector(metrics.requests, InflightCounts(lambda: 0.0, {}), list))
    assert value_of(metrics, "inference_seconds_avg") == value_of(metrics, "chunks_per_second_avg") == 0


LLAMA = """# HELP llamacpp:prompt_tokens_total Number of prompt tokens processed.
# TYPE llamacpp:prompt_tokens_total counter
llamacpp:prompt_tokens_total 12
# HELP llamacpp:requests_processing Number of requests processing.
# TYPE llamacpp:requests_processing gauge
llamacpp:requests_processing 1
"""
OLD_VLLM = """# HELP vllm:gpu_cache_usage_perc GPU KV-cache usage.
# TYPE vllm:gpu_cache_usage_perc gauge
vllm:gpu_cache_usage_perc{model_name="a"} 0.25
# TYPE vllm:gpu_prefix_cache_queries_total counter
vllm:gpu_prefix_cache_queries_total{model_name="a"} 20.0
# TYPE vllm:gpu_prefix_cache_queries_created gauge
vllm:gpu_prefix_cache_queries_created{model_name="a"} 1.7e9
# TYPE vllm:time_per_output_token_seconds histogram
vllm:time_per_output_token_seconds_bucket{le="0.01",model_name="a"} 3.0
vllm:time_per_output_token_seconds_bucket{le="+Inf",model_name="a"} 4.0
vllm:time_per_output_token_seconds_count{model_name="a"} 4.0
vllm:time_per_output_token_seconds_sum{model_name="a"} 0.5
"""
BOTH_VLLM = """# TYPE vllm:gpu_cache_usage_perc gauge
vllm:gpu_cache_usage_perc{engine="0"} 0.9
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0"} 0.5
"""


def page(text: str | None, model: str = "m", replica: str = "r") -> EnginePage:
    return EnginePage(model, replica, text, 0.25)


def families(*pages: EnginePage) -> dict[str, Metric]:
    return {family.name: family for family in text_string_to_metric_families(merge_pages(pages))}


def engine_samples(*pages: EnginePage) -> Iterator[tuple[str, dict[str, str], float]]:
    for family in families(*pages).values():
        yield from ((each.name, each.labels, each.value) for each in family.samples)


def test_each_sample_says_whose_it_is() -> None:
    found = list(engine_samples(page(LLAMA, "m", "m-0"), page(LLAMA, "n/x", "n-0")))
    for model, replica in (("m", "m-0"), ("n/x", "n-0")):
        labels = {"model": model, "replica": replica}
        assert ("llamacpp:prompt_tokens_total", labels, 12) in found
        assert ("roundhouse_engine_up", labels, 1) in found
        assert ("roundhouse_engine_scrape_seconds", labels, 0.25) in found
    text = merge_pages([page(LLAMA, "m", "m-0"), page(LLAMA, "n", "n-0")])
    assert text.count("# TYPE llamacpp:requests_processing gauge") == 1


def test_an_engine_that_could_not_be_read_costs_its_own_part() -> None:
    by_name = families(page(LLAMA, "m", "m-0"), page(None, "n", "n-0"))
    up = {each.labels["replica"]: each.value for each in by_name["roundhouse_engine_up"].samples}
    assert up == {"m-0": 1, "n-0": 0}
    assert {each.labels["replica"] for each in by_name["llamacpp:prompt_tokens"].samples} == {"m-0"}


def test_our_own_metrics_of_engines_and_old_names_are_documented() -> None:
    text = DOCS.read_text()
    rows = re.findall(r"^\| `(roundhouse_engine_\w+)` \| (\w+) \| ([\w, ]+) \| (.+) \|$", text, re.MULTILINE)
    assert set(rows) == {
        (name, family.type, ", ".join(sorted(family.samples[0].labels)), family.documentation)
        for name, family in families(page(None)).items()
    }
    told = set(re.findall(r"^\| `(vllm:\w+)` \| `(vllm:\w+)` \|$", text, re.MULTILINE))
    assert {(old.removesuffix("_total"), new.removesuffix("_total")) for old, new in told} == set(RENAMED.items())


def test_old_names_of_vllm_are_served_as_the_new_ones() -> None:
    found = families(page(OLD_VLLM))
    assert "gpu" not in "".join(found)
    assert found["vllm:kv_cache_usage_perc"].samples[0].value == 0.25
    assert found["vllm:kv_cache_usage_perc"].type == "gauge"
    assert found["vllm:prefix_cache_queries"].type == "counter"
    histogram = found["vllm:inter_token_latency_seconds"]
    assert histogram.type == "histogram"
    assert {each.name for each in histogram.samples} == {
        f"vllm:inter_token_latency_seconds_{part}" for part in ("bucket", "count", "sum")
    }
    assert not any(name.endswith("_created") for name, _, _ in engine_samples(page(OLD_VLLM)))


def test_versions_side_by_side_are_one_family_and_the_new_name_counts_where_an_engine_serves_both() -> None:
    assert [each.value for each in families(page(BOTH_VLLM))["vllm:kv_cache_usage_perc"].samples] == [0.5]
    found = families(page(OLD_VLLM, "m", "old"), page(BOTH_VLLM, "m", "new"))["vllm:kv_cache_usage_perc"]
    assert {each.labels["replica"]: each.value for each in found.samples} == {"old": 0.25, "new": 0.5}


@pytest.mark.parametrize(("old", "new"), RENAMED.items())
def test_names_are_mapped_with_each_suffix(old: str, new: str) -> None:
    assert rename(old) == new
    assert [rename(old + suffix) for suffix in ("_total", "_bucket", "_sum", "_count")] == [
        new + suffix for suffix in ("_total", "_bucket", "_sum", "_count")
    ]
    assert rename(new) == new
    assert new not in RENAMED, "a name is changed once, not in steps"


@pytest.mark.parametrize(
    "line",
    [
        *("<html>no metrics</html>", "llamacpp:bad", "llamacpp:bad x", 'llamacpp:bad{label="open} 1'),
        *('llamacpp:bad{label="a"} 1 2 3', "llamacpp:bad{} 1e", "# TYPE llamacpp:bad nonsense", "# EOF"),
        *("process_open_fds 12", "llamacpp:bad 1\x00", ""),
    ],
)
def test_a_line_that_is_no_sample_spoils_nothing(line: str) -> None:
    found = families(page(line + "\n" + LLAMA), page(LLAMA, "n", "n-0"))
    assert len(found["llamacpp:prompt_tokens"].samples) == 2
    assert not any("bad" in name or name.startswith("process") for name in found)


def test_labels_of_the_engine_stay_and_never_take_the_place_of_ours() -> None:
    text = 'vllm:x{model="theirs",replica="7",model_name="a,model=b \\" c",} 1.5e3 1700000000\nllamacpp:y NaN\n'
    found = {name: labels for name, labels, _ in engine_samples(page(text))}
    theirs = {"exported_model": "theirs", "exported_replica": "7", "model_name": 'a,model=b " c'}
    assert found["vllm:x"] == {"model": "m", "replica": "r", **theirs}
    assert "llamacpp:y" in found
    [up] = families(page(None, 'a"b\\c\nd', "r"))["roundhouse_engine_up"].samples
    assert up.labels["model"] == 'a"b\\c\nd', "names of models are escaped"


def test_what_prometheus_client_writes_is_read_whole() -> None:
    registry = CollectorRegistry()
    Counter("vllm:requests", "Requests.", ("reason",), registry=registry).labels("stop").inc(3)
    Gauge("vllm:running", "Running.", registry=registry).set(-0.5)
    Histogram("vllm:latency_seconds", "Latency.", ("engine",), registry=registry).labels("0").observe(0.2)
    theirs = generate_latest(registry).decode()
    expected = {
        (each.name, each.value, tuple(sorted(each.labels.items())))
        for family in text_string_to_metric_families(theirs)
        for each in family.samples
        if not each.name.endswith("_created")
    }
    ours = {
        (name, value, tuple(sorted(label for label in labels.items() if label[0] not in ("model", "replica"))))
        for name, labels, value in engine_samples(page(theirs))
        if not name.startswith("roundhouse")
    }
    assert ours == expected
