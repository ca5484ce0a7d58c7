"""What campaigns make of clients, servers and rankings, what they are tried with, and the end of a test run."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest

from tests.campaigns.campaign_compaction import failures_of as failures_of_agents
from tests.campaigns.campaign_compaction import tables_of as tables_of_agents
from tests.campaigns.campaign_document_clients import failures_of as failures_of_clients
from tests.campaigns.campaign_document_clients import tables_of as tables_of_clients
from tests.campaigns.campaign_mcp_servers import failures_of as failures_of_servers
from tests.campaigns.campaign_mcp_servers import tables_of as tables_of_servers
from tests.support import installed_engines
from tests.support.agent_programs import AGENTS, DONE, SUMMARY, AgentRun, ToolCall, make_agent_model
from tests.support.compaction import CHAT, CompactionRun, RecordedCall
from tests.support.document_clients import PAGE
from tests.support.langchain_probe import BLOCK
from tests.support.reference_servers import HELD, run_checks
from tests.support.report import summarize_times
from tests.support.require import COMMAND, require, summarize_skips
from tests.support.retrieval_quality import (
    CODE_WORDS,
    HEADINGS,
    MIXED,
    PARAPHRASES,
    make_question_sets,
    ndcg,
    recall,
    reciprocal_rank,
)

READ = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
TOOL = {"type": "function", "function": {"name": "bash", "parameters": READ}}
CALLED = {"id": "c1", "type": "function", "function": {"name": "bash", "arguments": '{"command": "cat notes.txt"}'}}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "note 0 of the project says little"}
CLAUDE, CODEX, _ = AGENTS


def user(text: str) -> dict[str, Any]:
    """A message."""
    return {"role": "user", "content": text}


@pytest.mark.engines
@pytest.mark.embedded
def test_the_model_works_until_it_goes_on_from_its_summary(tmp_path: Path) -> None:
    installed_engines.needed("embedded")
    make_agent_model(tmp_path / "m.gguf", ToolCall("bash", '{"command": "cat notes.txt"}'), 4096)
    results: list[dict[str, Any]] = [{"role": "assistant", "content": None, "tool_calls": [CALLED]}, RESULT]
    system = {"role": "system", "content": "You make a summary where you are asked for one."}
    with installed_engines.started("embedded", tmp_path, "m", tmp_path / "m.gguf", token="t") as worker:
        worker.ready()

        def message(*messages: dict[str, Any], **fields: Any) -> Any:
            body = {"messages": messages, "tools": [TOOL], **fields}
            return json.loads(worker.request("POST", CHAT, body)[1])["choices"][0]["message"]

        for messages in ([user("Work.")], [system, user("Work."), *results, *results], [user(SUMMARY)]):
            [call] = message(*messages)["tool_calls"]
            expected = ("bash", "cat notes.txt")
            assert (call["function"]["name"], json.loads(call["function"]["arguments"])["command"]) == expected
        asks = [user("Work."), *results, user("Write a summary.")]
        assert message(*asks)["content"] == message(user("Work."), tools=None)["content"] == SUMMARY
        assert message(user(f"So far: {SUMMARY}"), *results)["content"] == DONE
        prompt = json.loads(worker.request("POST", "/apply-template", {"messages": [system], "tools": [TOOL]})[1])[
            "prompt"
        ]
        assert "You make a summary" in prompt
        assert '"required"' in prompt


def call(beginning: str = "", *messages: dict[str, Any], status: int = 200, tokens: int | None = 50) -> RecordedCall:
    """One that reached the engine."""
    return RecordedCall(CHAT, {"messages": messages}, status, tokens, beginning)


REFUSED = call('{"type":"exceed_context_size_error"}', RESULT, status=400, tokens=None)
SUMMED_UP = call(f"data: {SUMMARY}", RESULT, user("summary"))
TITLED = call(f"data: {SUMMARY}", user("A title?"))


@pytest.mark.parametrize(
    ("agent", "is_told", "calls", "run", "end", "failed"),
    [
        (CLAUDE, True, [TITLED, SUMMED_UP], AgentRun(0, DONE), "compacts and goes on to the end of its task", []),
        (CLAUDE, False, [REFUSED, SUMMED_UP], AgentRun(0, DONE), "compacts and goes on to the end of its task", []),
        (CLAUDE, True, [TITLED], AgentRun(0, DONE), "ends with code 0", ["ends with code 0"]),
        (CLAUDE, False, [SUMMED_UP], AgentRun(0, DONE), None, ["its context was never full"]),
        (CLAUDE, False, [REFUSED], AgentRun(1, "?"), "ends with code 1", ["ends with code 1"]),
        (
            CODEX,
            False,
            [REFUSED],
            AgentRun(1, '{"message":"It ran out of room in the context window."}'),
            "ends with code 1, saying: It ran out of room in the context window.",
            [],
        ),
        (
            CODEX,
            True,
            [REFUSED] * 9,
            AgentRun(None, ""),
            "had not ended when its time was over",
            ["had not ended when its time was over", "it had to be killed"],
        ),
    ],
)
def test_what_is_made_of_a_try(
    agent: Any, is_told: bool, calls: list[RecordedCall], run: AgentRun, end: str | None, failed: list[str]
) -> None:
    made = CompactionRun(agent, is_told, 100, 200, tuple(calls), run)
    assert end in (None, made.end)
    raised = {
        "the engine": {"LangChain, chat": "A ContextOverflowError B", "litellm, chat": "ContextWindowExceededError"}
    }
    failures = failures_of_agents(raised, [made])
    assert [failure.split(": ", 1)[1] for failure in failures] == failed
    assert [table.to_markdown() for table in tables_of_agents(raised, [made])]


def test_a_package_that_raises_another_error_fails() -> None:
    [failure] = failures_of_agents({"the gateway": {"litellm, chat": "BadRequestError"}}, [])
    assert failure == "litellm, chat, refused by the gateway: raises BadRequestError"


def test_all_but_held_is_a_failure() -> None:
    results = {"LangChain": {"one": "held", "two": "AssertionError: no\nmore"}}
    assert failures_of_clients(results) == ["LangChain, two: AssertionError: no\nmore"]
    rows = [tuple(row) for row in tables_of_clients(results)[0].rows]
    assert rows == [("LangChain", "one", "held"), ("LangChain", "two", "AssertionError: no")]


def test_the_docs_show_a_retriever_that_python_can_read() -> None:
    [block] = [block for block in BLOCK.findall(PAGE.read_text()) if "class RoundhouseRetriever" in block]
    assert "RoundhouseRetriever" in {node.name for node in ast.walk(ast.parse(block)) if isinstance(node, ast.ClassDef)}


async def test_each_check_is_run_whatever_the_others_do() -> None:
    async def hold() -> None:
        return

    async def break_off() -> None:
        raise AssertionError("no\nmore")

    results = {"processes": await run_checks({"one": break_off, "two": hold})}
    assert results == {"processes": {"one": "AssertionError: no\nmore", "two": HELD}}
    assert failures_of_servers(results) == ["processes, one: AssertionError: no\nmore"]
    rows = [tuple(row) for row in tables_of_servers(results)[0].rows]
    assert rows == [("processes", "one", "AssertionError: no"), ("processes", "two", "held")]


FOX = """# How the fox deletes files

The command removes a directory and creates another file with the same name. See `--fox-jump` and FOX_MODE.

## Notes for all readers
"""
DOG = """# Where the dog sleeps

The user changes a setting of the server and the program shows an error. See `--fox-jump` and `dog_sleep_s`.

## Notes for all readers
"""


def test_each_question_has_one_answer_that_no_other_document_gives() -> None:
    sets = make_question_sets({"fox": FOX, "dog": DOG}, seed=1, count=10)
    expected = {("How the fox deletes files", "fox"), ("Where the dog sleeps", "dog")}
    assert {(each.text, each.document) for each in sets[HEADINGS]} == expected
    asked = {each.document: each.text for each in sets[CODE_WORDS]}
    assert "FOX_MODE" in asked["fox"]
    assert "dog_sleep_s" in asked["dog"]
    assert len(sets[MIXED]) == 6
    assert make_question_sets({"fox": FOX, "dog": DOG}, seed=1, count=10) == sets


def test_a_paraphrase_has_words_that_its_document_does_not_have() -> None:
    sets = make_question_sets({"dog": DOG}, seed=1, count=10)
    [question] = sets[PARAPHRASES]
    words = set(question.text.split())
    assert not words & {"user", "changes", "setting", "shows", "error"}
    assert "the" in words


RANKING = ("a", "b", "c", "d")


@pytest.mark.parametrize(
    ("relevant", "depth", "value"), [("a", 1, 1.0), ("c", 2, 0.0), ("cx", 3, 0.5), ("abcd", 2, 0.5)]
)
def test_recall_is_the_share_found_within_a_depth(relevant: str, depth: int, value: float) -> None:
    assert recall(RANKING, relevant, depth) == value


@pytest.mark.parametrize(("relevant", "value"), [("a", 1.0), ("xd", 0.25), ("bc", 0.5), ("x", 0.0)])
def test_the_reciprocal_rank_is_of_the_first_relevant_item(relevant: str, value: float) -> None:
    assert reciprocal_rank(RANKING, relevant) == value


@pytest.mark.parametrize(
    ("relevant", "depth", "value"),
    [("a", 10, 1.0), ("c", 10, 0.5), ("c", 2, 0.0), ("ab", 10, 1.0), ("bx", 10, 0.38685), ("x", 10, 0.0)],
)
def test_ndcg_weighs_items_by_their_place(relevant: str, depth: int, value: float) -> None:
    assert ndcg(RANKING, relevant, depth) == pytest.approx(value, abs=1e-5)


ABSENT = "docker: no Docker Engine answers: [Errno 2]"


def test_three_lines_say_what_was_skipped_why_and_what_to_do() -> None:
    reasons = [ABSENT, "vllm: vLLM is not installed: run .ci/vllm once", ABSENT + " again", "this host has GPUs"]
    assert summarize_skips(reasons) == [
        "skipped: 4 tests (2 for docker, 1 for vllm, 1 for this host has GPUs)",
        f"why: {ABSENT}; vllm: vLLM is not installed: run .ci/vllm once; this host has GPUs",
        f"to run them: {COMMAND}",
    ]
    assert summarize_skips([]) == ["skipped: nothing"]
    assert summarize_skips(["docker: " + "x" * 200 + "\nmore"])[1] == f"why: docker: {'x' * 82}..."


def test_what_is_required_fails_in_place_of_a_skip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROUNDHOUSE_TEST_REQUIRE", "vllm, docker")
    require("docker", True, "it is there")
    with pytest.raises(pytest.fail.Exception, match="docker is required"):
        require("docker", False, "it is not there")
    with pytest.raises(pytest.skip.Exception, match="litertlm: not written"):
        require("litertlm", False, "not written")


def test_seconds_are_summed_by_folder_and_file() -> None:
    assert summarize_times({"tests/a/test_x.py": 1.0, "tests/b/test_y.py": 0.5, "tests/b/test_z.py": 2.0}) == [
        "      3.5 s in all, added up over processes",
        "      2.5 s tests/b",
        "           2.0 s test_z.py",
        "           0.5 s test_y.py",
        "      1.0 s tests/a",
        "           1.0 s test_x.py",
    ]
