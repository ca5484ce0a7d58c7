"""How good a ranking of documents is, by the textbook measures in the formulas of `trec_eval`, and the report of it.
Pure.

Grades say how relevant a document is to a question: 0 not at all, 1 relevant, more for better answers. Documents
without a grade have 0. A ranking holds each document once, the best first.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

RECALL_DEPTH: Final = 5
NDCG_DEPTH: Final = 10


@dataclass(frozen=True, slots=True)
class RankingScores:
    """The measures of one ranking, or their means over several: each from 0 to 1, where 1 is best."""

    recall_at_5: float
    reciprocal_rank: float
    ndcg_at_10: float


@dataclass(frozen=True, slots=True)
class Question:
    """A query, and the grades of the documents by id: 0 for one that does not answer it, more for a better answer."""

    query: str
    grades: Mapping[str, float]
    """Grade by document id; at least one is above 0."""


@dataclass(frozen=True, slots=True)
class WayResult:
    """What came of all questions, searched in one way: scores, or the reason why the gateway cannot search so."""

    name: str
    """A key of WAYS."""
    scores: RankingScores | None
    """Means over all questions; None: the gateway cannot search so."""
    reason: str | None
    """Why the gateway cannot search so; None: it can."""
    by_question: Sequence[RankingScores]
    """In the order of the questions; empty where the gateway cannot search so."""
    is_complete: bool
    """False: an index was being rebuilt during a search, so that documents may have been missing."""


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


COLUMNS: Final = ("SEARCH", "RECALL@5", "MRR", "NDCG@10")
LISTED_MISSES: Final = 50
"""Questions at most that a report lists because no way found their documents."""


def table_rows(results: Sequence[WayResult]) -> list[tuple[str, str, str, str]]:
    """Return a row of COLUMNS for each way of searching, with scores to three decimals, or `-` if the gateway cannot
    search in that way."""
    rows = []
    for result in results:
        scores = result.scores
        values = ("-",) * 3 if scores is None else (scores.recall_at_5, scores.reciprocal_rank, scores.ndcg_at_10)
        first, second, third = (each if isinstance(each, str) else f"{each:.3f}" for each in values)
        rows.append((result.name, first, second, third))
    return rows


def build_result(
    source: str, questions: Sequence[Question], results: Sequence[WayResult], unknown: Sequence[str], top_k: int
) -> dict[str, Any]:
    """Return the summary of an evaluation as a value that JSON can hold, without the scores of each question. `source`:
    name of the questions' file; `results`: in the order in which the summary lists them; `unknown`: ids of relevant
    documents that the tenant does not have; `top_k`: hits that each search asked for."""
    return {
        "file": source,
        "questions": len(questions),
        "top_k": top_k,
        "unknown_documents": list(unknown),
        "searches": {
            result.name: {
                "recall@5": None if result.scores is None else result.scores.recall_at_5,
                "mrr": None if result.scores is None else result.scores.reciprocal_rank,
                "ndcg@10": None if result.scores is None else result.scores.ndcg_at_10,
                "reason": result.reason,
                "complete": result.is_complete,
            }
            for result in results
        },
    }


def render_json(
    summary: dict[str, Any], questions: Sequence[Question], results: Sequence[WayResult], made_at: str
) -> str:
    """Return the report as JSON text: the summary, and the scores of each question. `summary`: from `build_result`.
    `made_at`: date and time in words."""
    details = [
        {
            "query": question.query,
            "relevant": dict(question.grades),
            "scores": {result.name: asdict(result.by_question[place]) for result in results if result.by_question},
        }
        for place, question in enumerate(questions)
    ]
    return json.dumps({"made_at": made_at, **summary, "by_question": details}, indent=2, ensure_ascii=False) + "\n"


def render_markdown(
    summary: dict[str, Any], questions: Sequence[Question], results: Sequence[WayResult], made_at: str
) -> str:
    """Return the report as Markdown: a table with a row for each way of searching, and below it why the gateway could
    not search in a way, which ways met an index that was being rebuilt, which relevant documents the tenant does not
    have, and the questions of `find_missed`. Each of the last two lists has at most 50 entries.

    `summary`: from `build_result`, for the same `questions` and `results`. `made_at`: date and time in words.
    """
    lines = [
        f"# Searches of {summary['file']}",
        "",
        f"{summary['questions']} questions, {made_at}; the best {summary['top_k']} hits of each.",
        "",
        "| search | recall@5 | MRR | nDCG@10 |",
        "| --- | --- | --- | --- |",
        *(f"| {' | '.join(row)} |" for row in table_rows(results)),
        "",
    ]
    lines += [f"- {result.name}: {_cell(result.reason)}" for result in results if result.reason is not None]
    lines += [f"- {result.name}: an index was being rebuilt" for result in results if not result.is_complete]
    if unknown := summary["unknown_documents"]:
        lines.append(f"- not among the documents: {', '.join(unknown[:LISTED_MISSES])} ({len(unknown)} in all)")
    missed = find_missed(questions, results)
    if missed:
        lines += ["", "## Not among the first ten in any search", ""]
        lines += [f"- {_cell(each.query)} ({', '.join(each.grades)})" for each in missed[:LISTED_MISSES]]
        if len(missed) > LISTED_MISSES:
            lines.append(f"- and {len(missed) - LISTED_MISSES} more")
    return "\n".join(lines).rstrip() + "\n"


def find_missed(questions: Sequence[Question], results: Sequence[WayResult]) -> list[Question]:
    """Return the questions for which no way of searching found a relevant document among its first ten documents; an
    empty list if the gateway could not search in any way. `results`: those of the same questions."""
    done = [result for result in results if result.by_question]
    return [
        question
        for place, question in enumerate(questions)
        if done and not any(result.by_question[place].ndcg_at_10 for result in done)
    ]


def _cell(text: str | None) -> str:
    return " ".join((text or "").split())
