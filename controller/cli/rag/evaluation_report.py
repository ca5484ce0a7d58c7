"""What `roundhouse rag eval` prints and writes. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

from controller.cli.rag.evaluation import Question, WayResult

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
