"""Fusion of rankings, scores in OpenAI's range, and filters: both forms, what they mean, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from contract.documents import FusionChoice, Mode, SearchHit, SearchResult, SearchScores
from contract.files import VectorStoreSearch
from retrieval.filters import FilterError, matches_filter, parse_filter
from retrieval.fusion import RRF_CONSTANT, FusionRule, fuse_rankings
from retrieval.vector_store.base import ScoredPoint
from retrieval.views import build_search, scale_score

DENSE = [ScoredPoint(1, 0, 0.9), ScoredPoint(1, 1, 0.5), ScoredPoint(2, 0, 0.1)]
SPARSE = [ScoredPoint(2, 0, 12.0), ScoredPoint(3, 0, 4.0)]


def test_reciprocal_ranks_are_summed() -> None:
    fused = fuse_rankings(DENSE, SPARSE, FusionRule(dense_weight=1.0))
    assert [each.place for each in fused] == [(2, 0), (1, 0), (1, 1), (3, 0)]
    assert fused[0].score == pytest.approx(1 / (RRF_CONSTANT + 3) + 1 / (RRF_CONSTANT + 1))
    assert (fused[0].dense, fused[0].dense_rank, fused[0].sparse, fused[0].sparse_rank) == (0.1, 3, 12.0, 1)
    assert (fused[1].sparse, fused[1].sparse_rank) == (None, None)


def test_the_best_of_one_ranking_goes_before_what_is_in_the_midst_of_both() -> None:
    """With a code word, words alone find the right chunk, and chunks about anything are in both rankings."""
    both = [ScoredPoint(2, ordinal, 0.5 - ordinal / 100) for ordinal in range(49)]
    fused = fuse_rankings(both, [ScoredPoint(1, 0, 9.0), *both], FusionRule(dense_weight=1.0))
    assert (1, 0) in [each.place for each in fused[:4]]


def test_what_a_client_does_not_choose_is_as_without_a_choice() -> None:
    choice = FusionChoice()
    assert FusionRule(choice.method, choice.dense_weight, choice.sparse_weight) == FusionRule()


def test_a_ranking_without_weight_counts_nothing() -> None:
    fused = fuse_rankings(DENSE, SPARSE, FusionRule(dense_weight=0.0))
    assert [each.place for each in fused] == [(2, 0), (3, 0), (1, 0), (1, 1)]


def test_weighted_scores_are_scaled() -> None:
    fused = fuse_rankings(DENSE, SPARSE, FusionRule("weighted", dense_weight=1.0, sparse_weight=0.75))
    assert {each.place: each.score for each in fused} == pytest.approx(
        {(1, 0): 1.0, (1, 1): 0.5, (2, 0): 0.75, (3, 0): 0.0}
    )


def test_a_ranking_of_equals_fits_whole() -> None:
    equals = [ScoredPoint(1, 0, 0.3), ScoredPoint(1, 1, 0.3)]
    fused = fuse_rankings(equals, [], FusionRule("weighted", dense_weight=1.0))
    assert [each.score for each in fused] == [1.0, 1.0]


def test_a_single_ranking_keeps_its_scores() -> None:
    single = fuse_rankings(None, SPARSE, FusionRule())
    assert [(each.place, each.score) for each in single] == [((2, 0), 12.0), ((3, 0), 4.0)]
    assert fuse_rankings([], None, FusionRule()) == []


@pytest.mark.parametrize(
    ("mode", "score", "rerank", "scaled"),
    [
        ("dense", 0.5, None, 0.5),
        ("dense", -0.5, None, 0.0),
        ("dense", 3.0, 3.0, 0.75),
        ("dense", 1.0, 1.0, 0.5),
        ("sparse", 3.0, None, 0.75),
        ("hybrid", 1.4, None, 1.0),
        ("hybrid", 0.7, None, 0.5),
        ("hybrid", 3.0, 3.0, 0.75),
        ("hybrid", -1.0, -1.0, 0.0),
    ],
)
def test_scores_are_scaled_from_0_to_1(mode: Mode, score: float, rerank: float | None, scaled: float) -> None:
    scores = SearchScores(dense=None, dense_rank=None, sparse=None, sparse_rank=None, rerank=rerank)
    place: dict[str, Any] = {"document_id": "d", "filename": None, "chunk": 0, "start": 0, "end": 1, "page": None}
    hit = SearchHit(**place, headings=[], text="x", score=score, scores=scores, metadata={}, space="vs_1")
    result = SearchResult(mode=mode, embedding_model=None, rerank_model=None, complete=True, notice=None, data=[hit])
    assert scale_score(hit, result, VectorStoreSearch(query="x")) == scaled


@pytest.mark.parametrize("ranking", [None, {"hybrid_search": {"embedding_weight": 3, "text_weight": 1}}])
def test_the_best_of_both_rankings_has_the_score_1(ranking: dict[str, Any] | None) -> None:
    wanted = VectorStoreSearch.model_validate({"query": "x", "ranking_options": ranking})
    choice = build_search(wanted, "x", has_reranker=False).fusion
    assert choice is not None
    rule = FusionRule(choice.method, choice.dense_weight, choice.sparse_weight)
    best = fuse_rankings([DENSE[0]], [ScoredPoint(1, 0, 9.0)], rule)[0]
    scores = SearchScores(dense=1.0, dense_rank=1, sparse=9.0, sparse_rank=1, rerank=None)
    place: dict[str, Any] = {"document_id": "d", "filename": None, "chunk": 0, "start": 0, "end": 1, "page": None}
    hit = SearchHit(**place, headings=[], text="x", score=best.score, scores=scores, metadata={}, space="vs_1")
    result = SearchResult(
        mode="hybrid", embedding_model=None, rerank_model=None, complete=True, notice=None, data=[hit]
    )
    assert scale_score(hit, result, wanted) == 1.0


GERMAN = {"type": "eq", "key": "lang", "value": "de"}
ATTRIBUTES = {
    "lang": "en",
    "year": 2024,
    "price": 1.5,
    "draft": False,
    "tags": ["a", "b"],
    "at": ["2024-03-01T10:00+02:00", "x"],
}


@pytest.mark.parametrize(
    ("value", "matches"),
    [
        *((value, True) for value in (None, {}, {"lang": "en"})),
        ({"lang": "de"}, False),
        ({"lang": ["de", "en"]}, True),
        ({"lang": "en", "year": 2023}, False),
        ({"year": 2024.0}, True),
        ({"draft": 0}, False),
        ({"draft": False}, True),
        ({"tags": "b"}, True),
        ({"missing": "x"}, False),
        ({"type": "ne", "key": "missing", "value": "x"}, True),
        ({"type": "ne", "key": "tags", "value": "a"}, False),
        ({"type": "nin", "key": "lang", "value": ["de", "fr"]}, True),
        ({"type": "in", "key": "year", "value": [2023, 2024]}, True),
        ({"type": "gt", "key": "price", "value": 1.5}, False),
        ({"type": "gte", "key": "price", "value": 1.5}, True),
        ({"type": "lt", "key": "year", "value": 2025}, True),
        ({"type": "lte", "key": "lang", "value": 5}, False),
        ({"type": "gte", "key": "at", "value": "2024-03-01T08:00:00Z"}, True),
        ({"type": "gt", "key": "at", "value": "2024-03-01 08:00"}, False),
        ({"type": "lt", "key": "at", "value": "2024-03-01T08:00:00.001Z"}, True),
        ({"type": "lte", "key": "at", "value": "2024-03-01"}, False),
        ({"type": "lte", "key": "at", "value": 2e12}, False),
        ({"type": "gt", "key": "year", "value": "0001-01-01"}, False),
        ({"at": "2024-03-01T08:00Z"}, False),
        ({"type": "or", "filters": [GERMAN, {"type": "and", "filters": [{"year": 2024}, {"draft": False}]}]}, True),
        # Attributes of these names are attributes still.
        ({"type": "eq"}, False),
    ],
)
def test_a_filter_matches_by_attributes(value: Any, matches: bool) -> None:
    assert matches_filter(parse_filter(value), ATTRIBUTES) is matches


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ([], "filter: must be an object"),
        ({'"': 1}, "the attribute '\"' must match"),
        ({"type": "eq", "key": "a"}, "filter.value: must be a string, a finite number or a boolean"),
        ({"type": "like", "key": "a", "value": "x"}, "filter.type: must be one of eq, ne"),
        ({"type": "gt", "key": "a", "value": "x"}, "filter.value: must be a number, a date (2024-03-01) or"),
        ({"type": "gt", "key": "a", "value": True}, "filter.value: must be a number, a date (2024-03-01) or"),
        ({"type": "lt", "key": "a", "value": "2024-02-30"}, "a date and time (2024-03-01T10:00:00Z) for lt"),
        ({"type": "in", "key": "a", "value": []}, "filter.value: must be a list with at least one value"),
        ({"type": "eq", "key": "a", "value": 1, "tenant": "b"}, "filter: has the unknown field 'tenant'"),
        ({"type": "and", "filters": []}, "filter.filters: must be a list with at least one filter"),
        ({"type": "and", "filters": [{"a": {}}]}, "filter.filters[0].a: must be a string"),
        ({"a": "x" * 513}, "filter.a: is longer than 512 characters"),
        ({"a": [1] * 1001}, "filter.a: has more than 1000 values"),
        ({f"a{number}": 1 for number in range(101)}, "filter: has more than 100 comparisons"),
    ],
)
def test_a_malformed_filter_is_refused_with_its_place(value: Any, problem: str) -> None:
    with pytest.raises(FilterError) as error:
        parse_filter(value)
    assert problem in str(error.value)


def test_a_filter_that_is_nested_too_deeply_is_refused() -> None:
    value: dict[str, Any] = {"a": 1}
    for _ in range(9):
        value = {"type": "and", "filters": [value]}
    with pytest.raises(FilterError, match="is nested deeper than 8"):
        parse_filter(value)
