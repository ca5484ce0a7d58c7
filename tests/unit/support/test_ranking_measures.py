"""Measures of rankings, against values worked out by hand."""

from __future__ import annotations

import pytest

from tests.support.ranking_measures import ndcg, recall, reciprocal_rank

RANKING = ("a", "b", "c", "d")


@pytest.mark.parametrize(
    ("relevant", "depth", "value"), [("a", 1, 1.0), ("c", 2, 0.0), ("cx", 3, 0.5), ("abcd", 2, 0.5)]
)
def test_recall(relevant: str, depth: int, value: float) -> None:
    assert recall(RANKING, relevant, depth) == value


@pytest.mark.parametrize(("relevant", "value"), [("a", 1.0), ("xd", 0.25), ("bc", 0.5), ("x", 0.0)])
def test_reciprocal_rank(relevant: str, value: float) -> None:
    assert reciprocal_rank(RANKING, relevant) == value


@pytest.mark.parametrize(
    ("relevant", "depth", "value"),
    [("a", 10, 1.0), ("c", 10, 0.5), ("c", 2, 0.0), ("ab", 10, 1.0), ("bx", 10, 0.38685), ("x", 10, 0.0)],
)
def test_ndcg(relevant: str, depth: int, value: float) -> None:
    assert ndcg(RANKING, relevant, depth) == pytest.approx(value, abs=1e-5)
