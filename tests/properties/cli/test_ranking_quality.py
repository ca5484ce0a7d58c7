"""The measures of a ranking, against what defines them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.rag.ranking import average_scores, ndcg, recall, reciprocal_rank, score_ranking

DOCUMENTS = [f"d{number}" for number in range(6)]
rankings = st.lists(st.sampled_from(DOCUMENTS), unique=True)
grades = st.dictionaries(st.sampled_from(DOCUMENTS), st.integers(0, 3), min_size=1).filter(
    lambda drawn: any(drawn.values())
)


@given(rankings, grades)
def test_every_measure_is_from_0_to_1(ranking: Sequence[str], graded: Mapping[str, int]) -> None:
    scores = score_ranking(ranking, graded)
    for value in (scores.recall_at_5, scores.reciprocal_rank, scores.ndcg_at_10):
        assert 0 <= value <= 1 + 1e-12
    found = any(graded.get(document) for document in ranking)
    assert (scores.reciprocal_rank > 0) is (scores.ndcg_at_10 > 0) is found


@given(rankings, grades, st.integers(1, 6))
def test_recall_counts_what_is_found(ranking: Sequence[str], graded: Mapping[str, int], depth: int) -> None:
    relevant = [document for document, grade in graded.items() if grade]
    found = [document for document in relevant if document in ranking[:depth]]
    assert recall(ranking, graded, depth) == len(found) / len(relevant)


@given(rankings, grades)
def test_the_reciprocal_rank_is_of_the_first_relevant_document(
    ranking: Sequence[str], graded: Mapping[str, int]
) -> None:
    ranks = [rank for rank, document in enumerate(ranking, 1) if graded.get(document)]
    assert reciprocal_rank(ranking, graded) == (1 / ranks[0] if ranks else 0)


@given(grades, st.integers(1, 6))
def test_no_ranking_has_more_gain_than_the_best_one(graded: Mapping[str, int], depth: int) -> None:
    best = sorted(graded, key=lambda document: -graded[document])
    assert math.isclose(ndcg(best, graded, depth), 1)
    assert all(ndcg(other, graded, depth) <= 1 + 1e-12 for other in itertools.permutations(best))


@given(rankings, grades, st.data())
def test_a_better_document_further_up_lowers_nothing(
    ranking: Sequence[str], graded: Mapping[str, int], data: st.DataObject
) -> None:
    if len(ranking) < 2:
        return
    place = data.draw(st.integers(1, len(ranking) - 1))
    above, below = ranking[place - 1], ranking[place]
    if graded.get(below, 0) <= graded.get(above, 0):
        return
    better = [*ranking[: place - 1], below, above, *ranking[place + 1 :]]
    before, after = score_ranking(ranking, graded), score_ranking(better, graded)
    assert after.recall_at_5 >= before.recall_at_5
    assert after.reciprocal_rank >= before.reciprocal_rank
    assert after.ndcg_at_10 > before.ndcg_at_10


def test_known_rankings_have_known_scores() -> None:
    graded = {"a": 3.0, "b": 1.0, "c": 0.0}
    assert ndcg(["x", "b", "a"], graded, 10) == pytest.approx(
        (1 / math.log2(3) + 3 / math.log2(4)) / (3 / math.log2(2) + 1 / math.log2(3))
    )
    assert reciprocal_rank(["c", "x", "b"], graded) == pytest.approx(1 / 3)
    assert recall(["x", "b"], graded, 1) == 0
    assert average_scores([score_ranking(["a"], graded), score_ranking([], graded)]).reciprocal_rank == 0.5


def test_without_a_relevant_document_there_is_no_measure() -> None:
    with pytest.raises(ValueError, match="no document is relevant"):
        score_ranking(["a"], {"a": 0})
    with pytest.raises(ValueError, match="no scores"):
        average_scores([])
