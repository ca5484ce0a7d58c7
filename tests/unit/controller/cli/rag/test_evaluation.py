"""Questions of `roundhouse rag eval`, and its reports."""

from __future__ import annotations

import json

import pytest

from controller.cli.exit_codes import CommandError, ExitCode
from controller.cli.rag.evaluation import Question, WayResult, parse_questions, rank_documents
from controller.cli.rag.evaluation_report import build_result, find_missed, render_json, render_markdown, table_rows
from controller.cli.rag.ranking_quality import RankingScores

QUESTIONS = [Question("where is the coal?", {"yard": 1.0}), Question("who\n| drives?", {"crew": 2.0, "yard": 1.0})]
HIT, MISS = RankingScores(1.0, 1.0, 1.0), RankingScores(0.0, 0.0, 0.0)
RESULTS = [
    WayResult("sparse", RankingScores(0.5, 0.5, 0.5), None, [HIT, MISS], is_complete=False),
    WayResult("dense", None, "no embedding model is set", (), is_complete=True),
]


def test_questions_name_documents_or_grades() -> None:
    lines = ['{"query": "a", "relevant": ["x", "y"], "note": 1}', "", '{"query": "b", "relevant": {"x": 2, "z": 0}}']
    assert parse_questions(lines, "q") == [Question("a", {"x": 1.0, "y": 1.0}), Question("b", {"x": 2.0, "z": 0.0})]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "this is no JSON"),
        ("[]", "a question is an object"),
        ('{"relevant": ["x"]}', "`query` must be a text"),
        ('{"query": "a"}', "`relevant` must be a list"),
        ('{"query": "a", "relevant": []}', "a grade above 0"),
        ('{"query": "a", "relevant": [1]}', "`relevant` holds 1"),
        ('{"query": "a", "relevant": {"x": -1}}', "the grade of x"),
        ('{"query": "a", "relevant": {"x": NaN}}', "the grade of x"),
        ('{"query": "a", "relevant": {"x": true}}', "the grade of x"),
    ],
)
def test_a_line_that_is_no_question_is_named(line: str, message: str) -> None:
    with pytest.raises(CommandError, match=message) as raised:
        parse_questions(['{"query": "a", "relevant": ["x"]}', line], "q.jsonl")
    assert str(raised.value).startswith("q.jsonl, line 2: ")
    assert raised.value.code is ExitCode.USAGE


def test_a_file_without_questions_is_refused() -> None:
    with pytest.raises(CommandError, match="holds no question"):
        parse_questions(["", " "], "q")


def test_a_document_stands_where_its_best_hit_is() -> None:
    assert rank_documents([{"document_id": each} for each in "abac"]) == ["a", "b", "c"]


def test_reports_say_what_was_measured_and_what_was_not() -> None:
    assert table_rows(RESULTS) == [("sparse", "0.500", "0.500", "0.500"), ("dense", "-", "-", "-")]
    assert find_missed(QUESTIONS, RESULTS) == [QUESTIONS[1]]
    assert find_missed(QUESTIONS, RESULTS[1:]) == []
    summary = build_result("q", QUESTIONS, RESULTS, ["crew"], 50)
    text = render_markdown(summary, QUESTIONS, RESULTS, "2026-11-23 14:05:09")
    assert "| sparse | 0.500 | 0.500 | 0.500 |\n| dense | - | - | - |\n" in text
    assert "- dense: no embedding model is set\n- sparse: an index was being rebuilt\n" in text
    assert "crew (1 in all)" in text
    assert "- who | drives? (crew, yard)\n" in text
    report = json.loads(render_json(summary, QUESTIONS, RESULTS, "now"))
    assert report["searches"]["dense"] == {
        "recall@5": None, "mrr": None, "ndcg@10": None, "reason": "no embedding model is set", "complete": True
    }  # fmt: skip
    assert report["by_question"][1]["scores"] == {
        "sparse": {"recall_at_5": 0.0, "reciprocal_rank": 0.0, "ndcg_at_10": 0.0}
    }
