"""One ranking of two. Pure.

Reciprocal rank fusion: a candidate's score is the sum of weight / (2 + rank) over the rankings that have it (Cormack,
Clarke and Buettcher, SIGIR 2009; the constant is Qdrant's). Their constant 60 is for rankings of 1,000: of 50
candidates, each one in both rankings then goes before the first of one alone, so that code words and names, which words
alone find, were lost (nDCG@10 of the campaign `retrieval_quality`, mixed questions: 0.64 with 60, 0.71 with 2).

Weighted fusion: the weighted sum of both scores, each scaled to 0..1 between the least and the greatest score of its
ranking.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from contract.documents import DENSE_WEIGHT
from retrieval.vector_store.base import ScoredPoint

RRF_CONSTANT: Final = 2

Place = tuple[int, int]
"""Where a chunk is: the number of its version, and its ordinal in it."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A chunk that the dense ranking (by meaning) or the sparse one (by words) has, with its fused score. `dense` and
    `sparse` are its scores there, and the ranks count from 1; None: that ranking was not made or does not have it."""

    place: Place
    score: float
    dense: float | None = None
    dense_rank: int | None = None
    sparse: float | None = None
    sparse_rank: int | None = None


@dataclass(frozen=True, slots=True)
class FusionRule:
    """How two rankings are fused. A score is the sum, over the rankings that have the chunk, of weight / (2 + rank)
    (`rrf`), or of the weight times the score there, scaled to 0..1 between the least and the greatest of that ranking
    (`weighted`). Weights must be 0 or more, which is not checked; a ranking of weight 0 still adds its chunks, with
    nothing to their score."""

    method: Literal["rrf", "weighted"] = "rrf"
    dense_weight: float = DENSE_WEIGHT
    sparse_weight: float = 1.0


def fuse_rankings(
    dense: Sequence[ScoredPoint] | None, sparse: Sequence[ScoredPoint] | None, rule: FusionRule
) -> list[Candidate]:
    """Return the chunks of both rankings, each once, with their fused scores: best first, equal scores by version and
    ordinal.

    Each ranking must be best first, and have no chunk twice. None means that this search was not made: the scores are
    then those of the other ranking, and `rule` is not used. An empty ranking counts as made, so `rule` is used. The
    result is empty if neither ranking has a chunk.
    """
    dense_by, sparse_by = _by_place(dense), _by_place(sparse)
    parts = {}
    if dense is not None:
        parts["dense"] = _scale(dense, rule.dense_weight, rule.method)
    if sparse is not None:
        parts["sparse"] = _scale(sparse, rule.sparse_weight, rule.method)
    is_single = len(parts) < 2
    candidates = []
    for place in dense_by.keys() | sparse_by.keys():
        dense_score, dense_rank = dense_by.get(place, (None, None))
        sparse_score, sparse_rank = sparse_by.get(place, (None, None))
        own = dense_score if dense_score is not None else sparse_score
        score = own if is_single and own is not None else sum(part.get(place, 0.0) for part in parts.values())
        candidates.append(Candidate(place, score, dense_score, dense_rank, sparse_score, sparse_rank))
    return sorted(candidates, key=lambda each: (-each.score, each.place))


def _by_place(ranking: Sequence[ScoredPoint] | None) -> dict[Place, tuple[float, int]]:
    return {(each.version, each.ordinal): (each.score, rank) for rank, each in enumerate(ranking or (), start=1)}


def _scale(ranking: Sequence[ScoredPoint], weight: float, method: str) -> dict[Place, float]:
    if method == "rrf":
        return {
            (each.version, each.ordinal): weight / (RRF_CONSTANT + rank) for rank, each in enumerate(ranking, start=1)
        }
    scores = [each.score for each in ranking]
    low, high = min(scores, default=0.0), max(scores, default=0.0)
    width = (high - low) or 1.0
    # A ranking of equals says that all of them fit, not that none does.
    scaled = (1.0 if high == low else (score - low) / width for score in scores)
    return {(each.version, each.ordinal): weight * value for each, value in zip(ranking, scaled, strict=True)}
