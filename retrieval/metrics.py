"""Prometheus metrics of retrieval."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from contract.documents import SearchResult

_SEARCH_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 60)
_PREFIX: Final = "roundhouse_retrieval"


@dataclass(frozen=True, slots=True)
class Figures:
    """Values of the gauges and counters, which the caller reads anew for each scrape. The counters (`published`,
    `failed`, `retried`, `chunks_written`) count since the start of the program."""

    versions: Mapping[str, int] = field(default_factory=dict)
    """Versions by state, each state: a panel then shows 0 and not "no data"."""
    chunks: int = 0
    """Of the searchable versions."""
    oldest_age_s: float = 0.0
    """Seconds since the oldest version was accepted that is queued, parsing or embedding; 0 without any."""
    unindexed_documents: int = 0
    """Visible versions that searches cannot find, because the active collection lacks them."""
    published: int = 0
    failed: int = 0
    retried: int = 0
    chunks_written: int = 0


class RetrievalMetrics(Collector):
    """The Prometheus metrics of one retrieval program, in a registry of their own (not prometheus_client's global
    one)."""

    def __init__(self) -> None:
        self._figures = Figures()
        self._registry = CollectorRegistry()
        self._registry.register(self)
        self._search_seconds = Histogram(
            f"{_PREFIX}_search_seconds",
            "Duration of answered searches, the embedding of the query and a reranking included.",
            ["mode"],
            buckets=_SEARCH_BUCKETS,
            registry=self._registry,
        )

    def record_search(self, result: SearchResult, seconds: float) -> None:
        """Add one answered search to the histogram of durations, under its mode (`dense`, `sparse` or `hybrid`, with
        `+rerank` if it was reranked). `seconds`: its duration. Do not call it for a search that failed."""
        mode = f"{result.mode}+rerank" if result.rerank_model is not None else result.mode
        self._search_seconds.labels(mode).observe(seconds)

    def render(self, figures: Figures) -> bytes:
        """Return all metrics in Prometheus' text format, with `figures` as the values of gauges and counters."""
        self._figures = figures
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Yield the gauges and counters, with the figures of the last call of `render`; before the first, all are 0.
        For prometheus_client's registry, which calls this; others call `render`."""
        figures = self._figures
        versions = GaugeMetricFamily(
            f"{_PREFIX}_versions",
            "Versions of documents, by state. `garbage` is replaced or deleted, and still to be removed.",
            labels=["state"],
        )
        for state, count in sorted(figures.versions.items()):
            versions.add_metric([state], count)
        yield versions
        yield GaugeMetricFamily(f"{_PREFIX}_chunks", "Chunks that searches can find.", figures.chunks)
        yield GaugeMetricFamily(
            f"{_PREFIX}_ingest_lag_seconds",
            "Age of the oldest version that is neither searchable nor failed; 0 without any.",
            figures.oldest_age_s,
        )
        yield GaugeMetricFamily(
            f"{_PREFIX}_unindexed_documents",
            "Documents that searches cannot find until the vector store is complete again.",
            figures.unindexed_documents,
        )
        yield CounterMetricFamily(f"{_PREFIX}_published", "Versions that became searchable.", figures.published)
        yield CounterMetricFamily(f"{_PREFIX}_failed", "Versions that failed for good.", figures.failed)
        yield CounterMetricFamily(
            f"{_PREFIX}_retries", "Tries to index a version that are to be repeated.", figures.retried
        )
        yield CounterMetricFamily(
            f"{_PREFIX}_chunks_written", "Chunks that were written to the vector store.", figures.chunks_written
        )
