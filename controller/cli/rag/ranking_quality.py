"""How good a ranking of documents is: the textbook measures, by the formulas of `trec_eval`. Pure.

Grades say how relevant a document is to a question: 0 not at all, 1 relevant, more for better answers. Documents
without a grade have 0. A ranking holds each document once, the best first.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

RECALL_DEPTH: Final = 5
NDCG_DEPTH: Final = 10


@dataclass(frozen=True, slots=True)
class RankingScores:
    """The measures of one ranking, or their means over several: each from 0 to 1, where 1 is best."""

    recall_at_5: float
    reciprocal_rank: float
    ndcg_at_10: float


def score_ranking(ranking: Sequence[str], grades: Mapping[str, float]) -> RankingScores:
    """Return the measures of a ranking: document ids, each once, the best first. `grades`: how relevant a document is,
    by its id; one without a grade has 0, and every grade above 0 is relevant. Raises ValueError where no grade is above
    0, because nothing can be found."""
    return RankingScores(
        recall(ranking, grades, RECALL_DEPTH), reciprocal_rank(ranking, grades), ndcg(ranking, grades, NDCG_DEPTH)
    )


def average_scores(scores: Sequence[RankingScores]) -> RankingScores:
    """Return the mean of each measure. Raises ValueError where there are no scores."""
    if not scores:
        raise ValueError("there are no scores")
    count = len(scores)
    return RankingScores(
        math.fsum(each.recall_at_5 for each in scores) / count,
        math.fsum(each.reciprocal_rank for each in scores) / count,
        math.fsum(each.ndcg_at_10 for each in scores) / count,
    )


def recall(ranking: Sequence[str], grades: Mapping[str, float], depth: int) -> float:
    """Return the share (0 to 1) of the relevant documents, those with a grade above 0, that are among the first `depth`
    of the ranking. Raises ValueError where none is relevant."""
    relevant = _relevant(grades)
    return len(relevant.intersection(ranking[:depth])) / len(relevant)


def reciprocal_rank(ranking: Sequence[str], grades: Mapping[str, float]) -> float:
    """Return 1 divided by the rank, counted from 1, of the first document with a grade above 0; 0 where the ranking has
    none. Raises ValueError where no grade is above 0. Its mean over questions is the MRR."""
    relevant = _relevant(grades)
    return next((1.0 / rank for rank, document in enumerate(ranking, 1) if document in relevant), 0.0)


def ndcg(ranking: Sequence[str], grades: Mapping[str, float], depth: int) -> float:
    """Return the discounted cumulative gain of the first `depth` documents, divided by that of the best ranking there
    could be. A document's gain is its grade (Järvelin and Kekäläinen 2002, as `ndcg_cut` of `trec_eval`). Raises
    ValueError where none is relevant."""
    _relevant(grades)
    gains = [max(0.0, grades.get(document, 0.0)) for document in ranking[:depth]]
    best = sorted((max(0.0, grade) for grade in grades.values()), reverse=True)[:depth]
    return _discounted(gains) / _discounted(best)


def _discounted(gains: Sequence[float]) -> float:
    return math.fsum(gain / math.log2(rank + 1) for rank, gain in enumerate(gains, 1))


def _relevant(grades: Mapping[str, float]) -> set[str]:
    relevant = {document for document, grade in grades.items() if grade > 0}
    if not relevant:
        raise ValueError("no document is relevant")
    return relevant
