"""Searches in vector stores, in OpenAI's form. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from retrieval.schema.files import TextContent, VectorStoreHit, VectorStoreResults, VectorStoreSearch
from retrieval.schema.search import FusionChoice, SearchHit, SearchRequest, SearchResult


def build_search(wanted: VectorStoreSearch, query: str, *, has_reranker: bool) -> SearchRequest:
    """Return the search in Roundhouse's own form for `query`, one of the queries of `wanted`. The query is cut off
    after 32,768 characters. The search asks for weighted fusion, because OpenAI's scores go from 0 to 1, and for a
    rerank if `ranker` names one and `has_reranker` is True. `score_threshold` is left to `merge_results`.

    Raises pydantic's ValidationError for an empty query.
    """
    ranking = wanted.ranking_options
    weights = None if ranking is None else ranking.hybrid_search
    fusion = FusionChoice(method="weighted")
    if weights is not None:
        fusion = FusionChoice(
            method="weighted", dense_weight=weights.embedding_weight, sparse_weight=weights.text_weight
        )
    wants_rerank = ranking is not None and ranking.ranker not in (None, "none")
    return SearchRequest(
        query=query[:32_768],
        top_k=wanted.max_num_results,
        filter=wanted.filters,
        fusion=fusion,
        rerank=wants_rerank and has_reranker,
    )


def merge_results(
    wanted: VectorStoreSearch, queries: Sequence[str], results: Sequence[SearchResult]
) -> VectorStoreResults:
    """Return the hits of all queries in OpenAI's form, best first, at most `max_num_results`, without those below
    `score_threshold`. A chunk that several queries found is there once, with its best score.

    `results`: one per query. Scores are made comparable by `scale_score`.
    """
    best: dict[tuple[str, int], VectorStoreHit] = {}
    for result in results:
        for hit in result.data:
            found = _build_hit(hit, scale_score(hit, result, wanted))
            key = (found.file_id, found.chunk)
            if key not in best or best[key].score < found.score:
                best[key] = found
    threshold = 0.0 if wanted.ranking_options is None else wanted.ranking_options.score_threshold or 0.0
    ranked = sorted(best.values(), key=lambda hit: (-hit.score, hit.file_id, hit.chunk))
    kept = [hit for hit in ranked if hit.score >= threshold]
    return VectorStoreResults(search_query=list(queries), data=kept[: wanted.max_num_results])


def scale_score(hit: SearchHit, result: SearchResult, wanted: VectorStoreSearch) -> float:
    """Return a hit's score from 0 to 1, by how its search `result` was made.

    Hybrid without a rerank: the weighted sum over the sum of the weights, 0 where that is 0. Dense without a rerank:
    the score (the cosine), cut to 0..1. Otherwise (BM25, or a rerank model's score), where there is no upper bound:
    `s / (1 + s)`, 0 where `s` is negative.
    """
    is_reranked = hit.scores.rerank is not None
    if result.mode == "hybrid" and not is_reranked:
        weights = None if wanted.ranking_options is None else wanted.ranking_options.hybrid_search
        total = 2.0 if weights is None else weights.embedding_weight + weights.text_weight
        return min(1.0, hit.score / total) if total else 0.0
    positive = max(0.0, hit.score)
    return min(1.0, positive) if result.mode == "dense" and not is_reranked else positive / (1.0 + positive)


def _build_hit(hit: SearchHit, score: float) -> VectorStoreHit:
    return VectorStoreHit(
        file_id=hit.document_id,
        filename=hit.filename or hit.document_id,
        score=score,
        attributes=hit.metadata,
        content=[TextContent(text=hit.text)],
        chunk=hit.chunk,
        start=hit.start,
        end=hit.end,
        page=hit.page,
        headings=hit.headings,
    )
