"""The metrics under LocalLLM's names: all of its documentation's, no other, and the same counts as ours."""

from __future__ import annotations

import re
from pathlib import Path

from gateway.control.inflight import InflightCounts
from gateway.metrics.localllm_names import LoadedEngine
from gateway.metrics.registry import Metrics
from gateway.metrics.request_metrics import NO_WORK, EngineWork, Outcome
from gateway.protocols.common.dialect import Usage

DOCS = Path(__file__).parents[4] / "docs" / "metrics.md"
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
    metrics.show_localllm_names(ledger, lambda: [LoadedEngine("m_4096_stub_0", "stub")])
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
    outcomes = {name: value_of(metrics, f"requests_{name}_total") for name in ("completed", "errored", "cancelled")}
    assert outcomes == {"completed": 1, "errored": 1, "cancelled": 1}
    assert value_of(metrics, "requests_total") == 3
    assert value_of(metrics, "stream_chunks_total") == 10
    assert value_of(metrics, "chunks_per_second_avg") == 5
    assert value_of(metrics, "inference_seconds_total") == 3
    assert value_of(metrics, "inference_seconds_avg") == 3
    assert value_of(metrics, "queue_depth") == 3
    assert value_of(metrics, "inflight") == 1
    assert value_of(metrics, "engines_loaded") == 1
    assert value_of(metrics, "engine_loaded", key="m_4096_stub_0", backend="stub") == 1
    assert value_of(metrics, "client_requests_total", client="MyApp/1.0") == 3
    assert value_of(metrics, "client_inference_seconds_avg", client="MyApp/1.0") == 1


def test_before_the_first_request_nothing_is_divided_by_zero() -> None:
    metrics = Metrics()
    metrics.show_localllm_names(InflightCounts(lambda: 0.0, {}), list)
    assert value_of(metrics, "inference_seconds_avg") == value_of(metrics, "chunks_per_second_avg") == 0
