"""`roundhouse rag eval` through a gateway."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from controller.cli.app import run
from controller.cli.exit_codes import ExitCode
from tests.support.retrieval_gateway import retrieval_gateway

TEXTS = {"yard": "Coal is stored beside the shed.", "crew": "The driver wears a cap.", "other": "Nothing of use here."}
QUESTIONS = [
    {"query": "stored coal", "relevant": ["yard"]},
    {"query": "driver", "relevant": {"crew": 2, "yard": 1}},
    {"query": "water", "relevant": ["well"]},
]


def write_questions(path: Path) -> Path:
    path.write_text("\n".join(map(json.dumps, QUESTIONS)))
    return path


async def test_each_way_that_the_gateway_can_do_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    questions, report = write_questions(tmp_path / "questions.jsonl"), tmp_path / "report.md"
    options = {"retrieval_embedding_model": "minilm", "retrieval_rerank_model": "judge"}
    async with retrieval_gateway(tmp_path, **options) as (gateway, retrieval):
        for name, text in TEXTS.items():
            await retrieval.add(text, name, tenant="me")
        command = ["rag", "eval", str(questions), "--gateway", gateway.url, "--tenant", "me", "--report", str(report)]
        assert await asyncio.to_thread(run, command) == ExitCode.DONE
        out, err = capsys.readouterr()
        rows = {row[0]: row[1:] for row in map(str.split, out.splitlines())}
        # Found first, found first of two, and not there: recall (1 + 1/2 + 0) / 3, reciprocal ranks (1 + 1 + 0) / 3.
        assert rows["sparse"][:2] == ["0.500", "0.667"]
        assert set(rows) == {"SEARCH", "sparse", "dense", "hybrid", "reranked"}
        assert "1 document of the questions are not there, so no search finds them: well" in err
        assert "| reranked | " in report.read_text()
        assert "- water (well)" in report.read_text()


async def test_what_the_gateway_cannot_do_has_its_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    questions, report = write_questions(tmp_path / "questions.jsonl"), tmp_path / "report.json"
    async with retrieval_gateway(tmp_path) as (gateway, retrieval):
        await retrieval.add(TEXTS["yard"], "yard", tenant="me")
        command = ["rag", "eval", str(questions), "--gateway", gateway.url, "--tenant", "me", "--report", str(report)]
        assert await asyncio.to_thread(run, [*command, "--json"]) == ExitCode.DONE
        out, err = capsys.readouterr()
        searches = json.loads(out)["searches"]
        assert searches["sparse"]["reason"] is None
        assert [name for name, each in searches.items() if each["recall@5"] is None] == ["dense", "hybrid", "reranked"]
        assert "dense: " in err
        assert len(json.loads(report.read_text())["by_question"]) == 3
        assert await asyncio.to_thread(run, [*command, "--report", str(tmp_path)]) == ExitCode.FAILED
        assert "cannot be written" in capsys.readouterr().err
