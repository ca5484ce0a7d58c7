"""The model that coding agents are tried with, and what is made of a try."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.campaigns.campaign_compaction import failures_of, tables_of
from tests.support import llama_servers
from tests.support.agent_model import DONE, SUMMARY, ToolCall, make_agent_model
from tests.support.agent_programs import AGENTS, AgentRun
from tests.support.compaction import CHAT, CompactionRun
from tests.support.engine_recorder import RecordedCall

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
    llama_servers.needed("embedded")
    make_agent_model(tmp_path / "m.gguf", ToolCall("bash", '{"command": "cat notes.txt"}'), 4096)
    results: list[dict[str, Any]] = [{"role": "assistant", "content": None, "tool_calls": [CALLED]}, RESULT]
    system = {"role": "system", "content": "You make a summary where you are asked for one."}
    with llama_servers.started("embedded", tmp_path, "m", tmp_path / "m.gguf", token="t") as worker:
        worker.ready()

        def message(*messages: dict[str, Any], **fields: Any) -> Any:
            body = {"messages": messages, "tools": [TOOL], **fields}
            return json.loads(worker.request("POST", CHAT, body)[1])["choices"][0]["message"]

        for messages in ([user("Work.")], [system, user("Work."), *results, *results], [user(SUMMARY)]):
            [call] = message(*messages)["tool_calls"]
            assert (call["function"]["name"], json.loads(call["function"]["arguments"])["command"]) == (
                "bash",
                "cat notes.txt",
            )
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
    failures = failures_of(raised, [made])
    assert [failure.split(": ", 1)[1] for failure in failures] == failed
    assert [table.to_markdown() for table in tables_of(raised, [made])]


def test_a_package_that_raises_another_error_fails() -> None:
    [failure] = failures_of({"the gateway": {"litellm, chat": "BadRequestError"}}, [])
    assert failure == "litellm, chat, refused by the gateway: raises BadRequestError"
