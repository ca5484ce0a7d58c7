"""Retrieval's metrics: what they say, and that the docs say the same."""

from __future__ import annotations

import re
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from retrieval.metrics import Figures, RetrievalMetrics
from retrieval.schema.search import SearchResult

DOCS = Path(__file__).parents[3] / "docs" / "metrics.md"
ROW = re.compile(r"^\| `(roundhouse_retrieval_\w+)` \| (\w+) \| ([`\w, ]*?) ?\| (.+) \|$", re.MULTILINE)


def _searched(metrics: RetrievalMetrics, *, rerank_model: str | None) -> None:
    result = SearchResult(mode="hybrid", embedding_model="e", rerank_model=rerank_model, complete=True, data=[])
    metrics.record_search(result, 0.02)


def test_the_docs_hold_the_same_metrics() -> None:
    metrics = RetrievalMetrics()
    _searched(metrics, rerank_model=None)
    served = set()
    for family in text_string_to_metric_families(metrics.render(Figures(versions={"ready": 0})).decode()):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        labels = {label for sample in family.samples for label in sample.labels} - {"le"}
        if not name.endswith("_created"):
            served.add((name, family.type, tuple(labels)))
    documented = {
        (name, kind, tuple(re.findall(r"\w+", labels))) for name, kind, labels, _ in ROW.findall(DOCS.read_text())
    }
    assert documented == served


def test_what_they_say() -> None:
    metrics = RetrievalMetrics()
    _searched(metrics, rerank_model=None)
    _searched(metrics, rerank_model="r")
    figures = Figures(versions={"ready": 2, "failed": 0}, chunks=7, oldest_age_s=3.5, published=4, failed=1)
    lines = metrics.render(figures).decode().splitlines()
    for line in (
        'roundhouse_retrieval_versions{state="ready"} 2.0',
        'roundhouse_retrieval_versions{state="failed"} 0.0',
        "roundhouse_retrieval_chunks 7.0",
        "roundhouse_retrieval_ingest_lag_seconds 3.5",
        "roundhouse_retrieval_published_total 4.0",
        'roundhouse_retrieval_search_seconds_count{mode="hybrid"} 1.0',
        'roundhouse_retrieval_search_seconds_count{mode="hybrid+rerank"} 1.0',
    ):
        assert line in lines
