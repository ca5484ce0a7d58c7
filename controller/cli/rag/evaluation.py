"""`roundhouse rag eval`: asks questions whose answers are known, in each way of searching, and scores the rankings."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from controller.cli.exit_codes import CommandError, ExitCode
from controller.cli.rag.client import RagClient
from controller.cli.rag.ranking_quality import RankingScores, average_scores, score_ranking

Item = TypeVar("Item")
Answer = TypeVar("Answer")

AT_ONCE: Final = 4
"""Searches that are asked at the same time."""
WAYS: Final[Mapping[str, Mapping[str, Any]]] = {
    "sparse": {"mode": "sparse"},
    "dense": {"mode": "dense"},
    "hybrid": {"mode": "hybrid"},
    "reranked": {"rerank": True},
}
"""What each way of searching adds to the body of a search. `reranked` is the gateway's default mode, reranked."""


class QuestionError(Exception):
    """A line of a questions' file is no question. The message says why; `parse_questions` turns it into a CommandError
    with the line's number."""


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


def parse_questions(lines: Iterable[str], source: str) -> list[Question]:
    """Return the questions in `lines`, each a JSON object such as `{"query": "...", "relevant": ["document id"]}`.

    `relevant` lists the ids of the documents that answer the query, each with grade 1, or maps ids to grades from 0; at
    least one grade must be above 0. Blank lines and other keys are ignored. `source`: name of the file, for messages.

    Raises CommandError (USAGE), with `source` and the line's number counted from 1, for a line that is no question;
    and, with `source`, if there is no question at all.
    """
    questions = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                questions.append(_parse_question(line))
            except QuestionError as error:
                raise CommandError(f"{source}, line {number}: {error}", ExitCode.USAGE) from None
    if not questions:
        raise CommandError(f"{source} holds no question", ExitCode.USAGE)
    return questions


async def find_unknown_documents(client: RagClient, questions: Sequence[Question]) -> list[str]:
    """Return the ids, sorted, of relevant documents that the tenant does not have, so that no search can find them.
    Reads the whole list of the tenant's documents. Raises RefusedError where the gateway refuses, and CommandError
    where it does not answer, or not as a gateway does."""
    wanted = {document for question in questions for document, grade in question.grades.items() if grade > 0}
    async for document in client.list_documents():
        wanted.discard(document["id"])
    return sorted(wanted)


async def evaluate_ways(
    client: RagClient, questions: Sequence[Question], *, top_k: int, on_answer: Callable[[str, int], None]
) -> list[WayResult]:
    """Search every question in every way of WAYS (`sparse`, `dense`, `hybrid`, `reranked`), and return one result for
    each way, in that order.

    `questions`: at least one. A document's rank is that of its best hit among `top_k`. If the gateway refuses the first
    search of a way, no further search is made in that way; its result has the gateway's reason and no scores.
    `on_answer`: called after each answer that is scored, with the way's name and the number of its answers so far.

    Raises CommandError for a search that fails later, and where no gateway answers.
    """
    results = []
    for name, options in WAYS.items():
        body = {"top_k": top_k, **options}
        try:
            await client.search({**body, "query": questions[0].query})
        except CommandError as error:
            if error.code is not ExitCode.FAILED:
                raise
            results.append(WayResult(name, None, str(error), (), is_complete=True))
            continue
        results.append(await _evaluate_way(client, name, body, questions, on_answer))
    return results


def rank_documents(hits: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the ids of the documents of `hits`, which are ordered best first: each id once, at the place of its first
    hit."""
    return list(dict.fromkeys(hit["document_id"] for hit in hits))


async def _evaluate_way(
    client: RagClient,
    name: str,
    body: Mapping[str, Any],
    questions: Sequence[Question],
    on_answer: Callable[[str, int], None],
) -> WayResult:
    scores: list[RankingScores] = []
    is_complete = True

    async def search(question: Question) -> Mapping[str, Any]:
        return await client.search({**body, "query": question.query})

    async for question, answer in _ask_in_order(questions, search):
        is_complete &= answer["complete"]
        scores.append(score_ranking(rank_documents(answer["data"]), question.grades))
        on_answer(name, len(scores))
    return WayResult(name, average_scores(scores), None, scores, is_complete)


async def _ask_in_order(
    items: Sequence[Item], ask: Callable[[Item], Awaitable[Answer]]
) -> AsyncIterator[tuple[Item, Answer]]:
    """Yield each item with what `ask` returned for it, AT_ONCE at a time. Raises what `ask` raises."""
    for start in range(0, len(items), AT_ONCE):
        batch = items[start : start + AT_ONCE]
        for item, answer in zip(batch, await asyncio.gather(*map(ask, batch)), strict=True):
            yield item, answer


def _parse_question(line: str) -> Question:
    try:
        parsed = json.loads(line)
    except ValueError as error:
        raise QuestionError(f"this is no JSON: {error}") from None
    if not isinstance(parsed, dict):
        raise QuestionError('a question is an object, such as {"query": "...", "relevant": ["document id"]}')
    query, relevant = parsed.get("query"), parsed.get("relevant")
    if not isinstance(query, str) or not query.strip():
        raise QuestionError("`query` must be a text")
    if isinstance(relevant, list):
        relevant = dict.fromkeys(map(_checked_id, relevant), 1.0)
    if not isinstance(relevant, dict):
        raise QuestionError('`relevant` must be a list of document ids, or grades by id: {"id": 2, "other": 1}')
    grades = {_checked_id(document): _checked_grade(document, grade) for document, grade in relevant.items()}
    if not any(grades.values()):
        raise QuestionError("`relevant` must name a document with a grade above 0")
    return Question(query, grades)


def _checked_id(document: object) -> str:
    if not isinstance(document, str) or not document:
        raise QuestionError(f"`relevant` holds {json.dumps(document)}, which is no document id")
    return document


def _checked_grade(document: str, grade: object) -> float:
    if isinstance(grade, bool) or not isinstance(grade, int | float) or not math.isfinite(grade) or grade < 0:
        raise QuestionError(f"the grade of {document} must be a number from 0")
    return float(grade)
