"""Fusion of a dense and a sparse ranking."""

from __future__ import annotations

import pytest

from retrieval.schema.search import FusionChoice
from retrieval.search.fusion import RRF_CONSTANT, FusionRule, fuse_rankings
from retrieval.vector_store.base import ScoredPoint

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


def test_weights_count() -> None:
    fused = fuse_rankings(DENSE, SPARSE, FusionRule(dense_weight=0.0))
    assert [each.place for each in fused] == [(2, 0), (3, 0), (1, 0), (1, 1)]


def test_weighted_scores_are_scaled() -> None:
    fused = fuse_rankings(DENSE, SPARSE, FusionRule("weighted", dense_weight=1.0, sparse_weight=0.75))
    assert {each.place: each.score for each in fused} == pytest.approx(
        {(1, 0): 1.0, (1, 1): 0.5, (2, 0): 0.75, (3, 0): 0.0}
    )


def test_a_ranking_of_equals_fits_whole() -> None:
    fused = fuse_rankings(
        [ScoredPoint(1, 0, 0.3), ScoredPoint(1, 1, 0.3)], [], FusionRule("weighted", dense_weight=1.0)
    )
    assert [each.score for each in fused] == [1.0, 1.0]


def test_a_single_ranking_keeps_its_scores() -> None:
    assert [(each.place, each.score) for each in fuse_rankings(None, SPARSE, FusionRule())] == [
        ((2, 0), 12.0),
        ((3, 0), 4.0),
    ]
    assert fuse_rankings([], None, FusionRule()) == []
