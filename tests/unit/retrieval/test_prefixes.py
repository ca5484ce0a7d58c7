"""Prefixes of queries and passages, by the model's name."""

from __future__ import annotations

import pytest

from retrieval.embedding.prefixes import Prefixes, choose_prefixes


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
