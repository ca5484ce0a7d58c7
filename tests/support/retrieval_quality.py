"""How well a whole retrieval program finds the documents that answer known questions, in each of its modes."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tests.support.known_items import Question
from tests.support.ranking_measures import ndcg, recall, reciprocal_rank
from tests.support.retrieval_harness import RetrievalHarness
from tests.support.wait import until

MODES: Final = ("sparse", "dense", "hybrid")
HITS: Final = 10
INGEST_LIMIT_S: Final = 7200.0


@dataclass(frozen=True, slots=True)
class Quality:
    """Means over the questions of a set. Chunks of one document count as the document, at the place of its best."""

    recall_5: float
    mrr: float
    ndcg_10: float


Qualities = Mapping[str, Mapping[str, Quality]]
"""Set of questions to mode to its figures."""


async def add_documents(here: RetrievalHarness, documents: Mapping[str, str]) -> dict[str, int]:
    """Add documents, name to Markdown, and wait until they are worked off. Return versions by state."""
    for name, text in documents.items():
        body = {"id": name, "text": text, "filename": "page.md"}
        answer = await here.request("POST", "/v1/documents", body)
        assert answer.status_code in (200, 202), answer.text

    async def count_states() -> dict[str, int] | None:
        status = (await here.request("GET", "/v1/retrieval", is_admin=True)).json()
        states: dict[str, int] = status["versions"]
        done = states.get("ready", 0) + states.get("failed", 0)
        return states if done == len(documents) else None

    counted: dict[str, int] = await until("the documents are worked off", count_states, INGEST_LIMIT_S)
    return counted


async def measure_quality(
    here: RetrievalHarness, sets: Mapping[str, Sequence[Question]], modes: Sequence[str] = MODES, **search: Any
) -> Qualities:
    """Ask all questions in all modes. `search`: further fields of each search."""
    return {
        name: {mode: await _measure_mode(here, questions, mode, search) for mode in modes}
        for name, questions in sets.items()
    }


async def _measure_mode(
    here: RetrievalHarness, questions: Sequence[Question], mode: str, search: Mapping[str, Any]
) -> Quality:
    rankings = []
    for question in questions:
        hits = await here.search(question.text, mode=mode, top_k=HITS, **search)
        rankings.append((list(dict.fromkeys(hit["document_id"] for hit in hits)), [question.document]))
    return Quality(
        statistics.fmean(recall(ranking, right, 5) for ranking, right in rankings),
        statistics.fmean(reciprocal_rank(ranking, right) for ranking, right in rankings),
        statistics.fmean(ndcg(ranking, right, 10) for ranking, right in rankings),
    )


def find_misses(qualities: Qualities, mixed: str) -> list[str]:
    """Return what hybrid searches miss of their aims, by nDCG@10: at most 1% below the better of both others in any
    set, at least 5% above it in the set `mixed`."""
    misses = []
    for name, modes in qualities.items():
        best = max(modes["sparse"].ndcg_10, modes["dense"].ndcg_10)
        ratio = modes["hybrid"].ndcg_10 / best
        least = 1.05 if name == mixed else 0.99
        if ratio < least:
            misses.append(f"{name}: hybrid is {ratio:.3f} of the better single mode, and must be {least}")
    return misses
