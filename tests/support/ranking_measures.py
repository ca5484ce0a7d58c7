"""How good a ranking is, where some items are known to be the right ones. Pure.

`ranking` is best first and has no item twice. `relevant` has at least one item; all of them are right in equal measure.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence


def recall(ranking: Sequence[str], relevant: Collection[str], depth: int) -> float:
    """Return the part of the relevant items that the first `depth` items have."""
    return len(set(ranking[:depth]) & set(relevant)) / len(relevant)


def reciprocal_rank(ranking: Sequence[str], relevant: Collection[str]) -> float:
    """Return 1 / the rank of the first relevant item; 0 where there is none. Its mean over questions is the MRR."""
    return next((1 / rank for rank, item in enumerate(ranking, start=1) if item in relevant), 0.0)


def ndcg(ranking: Sequence[str], relevant: Collection[str], depth: int) -> float:
    """Return the discounted gain of the first `depth` items over that of the best possible ranking (Järvelin and
    Kekäläinen, 2002): a relevant item at rank r gains 1 / log2(r + 1)."""
    gain = sum(1 / math.log2(rank + 1) for rank, item in enumerate(ranking[:depth], start=1) if item in relevant)
    best = sum(1 / math.log2(rank + 1) for rank in range(1, min(depth, len(relevant)) + 1))
    return gain / best
