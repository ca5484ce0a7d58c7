"""Retrieval's settings, the prefixes that a model's name chooses, and its metrics, of which the docs say the same."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from pydantic import ValidationError

from contract.documents import SearchResult
from retrieval.embedding import Prefixes, choose_prefixes
from retrieval.metrics import Figures, RetrievalMetrics
from retrieval.settings import RetrievalSettings


@pytest.mark.parametrize("url", ["http://qdrant:6333", "https://qdrant.example/prefix", "http://[::1]:6333", None])
def test_an_address_of_a_qdrant_server(url: str | None) -> None:
    assert RetrievalSettings.model_validate({"qdrant_url": url}).qdrant_url == url


@pytest.mark.parametrize(
    "url",
    [
        *("qdrant", "qdrant:6333", "//qdrant:6333", "ftp://qdrant", "http://", "http://:6333", "http://qdrant:port"),
        *("http://qdrant:99999", "http://[::1", "http://a b:6333", "http://qdrant:6333\n", " http://qdrant"),
    ],
)
def test_what_is_no_address_is_refused_without_being_repeated(url: str) -> None:
    with pytest.raises(ValidationError) as caught:
        RetrievalSettings.model_validate({"qdrant_url": url})
    [error] = caught.value.errors()
    message = "Value error, must be the address of a server, such as http://qdrant:6333"
    assert (error["loc"], error["msg"]) == (("qdrant_url",), message)


@pytest.mark.parametrize(
    ("model", "query", "passage"),
    [
        ("intfloat/multilingual-e5-small", "query: ", "passage: "),
        ("e5-base-v2", "query: ", "passage: "),
        ("multilingual-e5-large-instruct", "Instruct: ", ""),
        ("nomic-embed-text-v1.5", "search_query: ", "search_document: "),
        ("Qwen3-Embedding-0.6B", "Instruct: ", ""),
        ("embeddinggemma-300m", "task: search result | query: ", "title: none | text: "),
        ("bge-small-en-v1.5", "Represent this sentence for searching relevant passages: ", ""),
        ("snowflake-arctic-embed-m-v1.5", "Represent this sentence for searching relevant passages: ", ""),
        ("snowflake-arctic-embed-l-v2.0", "query: ", ""),
        ("all-MiniLM-L6-v2", "", ""),
        ("bge-m3", "", ""),
    ],
)
def test_a_family_has_its_prefixes(model: str, query: str, passage: str) -> None:
    found = choose_prefixes(model)
    assert found.query.startswith(query)
    assert bool(found.query) == bool(query)
    assert found.passage == passage


def test_what_an_operator_sets_counts() -> None:
    assert choose_prefixes("e5-base", query="", passage="p: ") == Prefixes("", "p: ")


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


def test_metrics_of_retrieval_have_their_values() -> None:
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
