"""Scores of searches in vector stores, in OpenAI's range."""

from __future__ import annotations

import pytest

from retrieval.file_search.searching import scale_score
from retrieval.schema.files import VectorStoreSearch
from retrieval.schema.search import Mode, SearchHit, SearchResult, SearchScores


@pytest.mark.parametrize(
    ("mode", "score", "rerank", "scaled"),
    [
        ("dense", 0.5, None, 0.5),
        ("dense", -0.5, None, 0.0),
        ("dense", 3.0, 3.0, 0.75),
        ("dense", 1.0, 1.0, 0.5),
        ("sparse", 3.0, None, 0.75),
        ("hybrid", 1.5, None, 0.75),
        ("hybrid", 3.0, 3.0, 0.75),
        ("hybrid", -1.0, -1.0, 0.0),
    ],
)
def test_scores_go_from_0_to_1_and_reranked_ones_keep_their_order(
    mode: Mode, score: float, rerank: float | None, scaled: float
) -> None:
    hit = SearchHit(
        document_id="d",
        filename=None,
        chunk=0,
        start=0,
        end=1,
        page=None,
        headings=[],
        text="x",
        score=score,
        scores=SearchScores(dense=None, dense_rank=None, sparse=None, sparse_rank=None, rerank=rerank),
        metadata={},
        space="vs_1",
    )
    result = SearchResult(mode=mode, embedding_model=None, rerank_model=None, complete=True, notice=None, data=[hit])
    assert scale_score(hit, result, VectorStoreSearch(query="x")) == scaled
