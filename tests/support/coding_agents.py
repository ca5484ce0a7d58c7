"""Conversations in the shapes in which coding agents send them, as recorded of the programs from npm on 2026-11-22:
Claude Code 2.1.197 by /v1/messages, Codex 0.169 by /v1/responses. The texts are others, of the same length.

An agent sends the whole conversation with each request. What changes from one to the next beside its end: the place of
`cache_control`, and what says who asks.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from tests.fakes.gateway_harness import GatewayHarness
from worker.clockwork import SENTENCE

Fields = dict[str, Any]
CACHED: Final = {"type": "ephemeral"}


def write_text(name: str, length: int) -> str:
    """A text of about so many characters, another one for each name; a token for each four of them."""
    return "\n".join(f"{name} {number}: {SENTENCE}" for number in range(max(1, length // len(SENTENCE))))


def write_schema(name: str, length: int) -> Fields:
    command = {"type": "string", "description": write_text(name, length)}
    return {
        "type": "object",
        "properties": {"command": command},
        "required": ["command"],
        "additionalProperties": False,
    }


class CodingAgent(Protocol):
    path: str

    def build_request(self, model: str, answers: Sequence[str]) -> Fields:
        """The request after these answers, each of which was text and, by what the agent sends back, a call."""

    def read_answer(self, stream: str) -> tuple[str, int, int]:
        """Of a stream: the answer's text, the prompt's tokens and how many of them the engine had in its cache."""


@dataclass
class ClaudeCode:
    """`claude -p` with a tool call in every turn. `scale` 1: texts as long as its own."""

    scale: float = 1.0
    path: str = "/v1/messages?beta=true"

    def build_request(self, model: str, answers: Sequence[str]) -> Fields:
        """See CodingAgent."""
        turn = len(answers)
        session = {"device_id": "bb599e50", "account_uuid": "", "session_id": f"5480477f-{turn}"}
        messages: list[Fields] = [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "<system-reminder>\nToday's date is 2026-11-22.\n</system-reminder>\n\n"},
                    {"type": "text", "text": "Do sixteen steps."},
                ],
            },
            {"role": "system", "content": write_text("agents", int(6000 * self.scale))},
        ]
        for number, answer in enumerate(answers):
            call = {"command": f"echo step {number}", "description": "Echo"}
            messages += [
                {
                    "role": "assistant",
                    "content": [
                        {"type": "text", "text": answer},
                        {"type": "tool_use", "id": f"toolu_{number:04}", "name": "tool0", "input": call},
                    ],
                },
                {
                    "role": "user",
                    "content": [
                        {
                            "tool_use_id": f"toolu_{number:04}",
                            "type": "tool_result",
                            "content": f"step {number}",
                            "is_error": False,
                        }
                    ],
                },
            ]
            if number % 2:
                messages.append({"role": "system", "content": "The task tools haven't been used recently."})
        last_user = next(message for message in reversed(messages) if message["role"] == "user")
        last_user["content"][-1]["cache_control"] = CACHED
        return {
            "model": model,
            "max_tokens": 64,
            "messages": messages,
            "system": [
                {
                    "type": "text",
                    "text": f"x-anthropic-billing-header: cc_version=2.1.197.d{turn:02}; cc_entrypoint=cli;",
                },
                {"type": "text", "text": "You are a Claude agent.", "cache_control": CACHED},
                {"type": "text", "text": write_text("system", int(6100 * self.scale)), "cache_control": CACHED},
            ],
            "tools": [
                {
                    "name": f"tool{number}",
                    "description": write_text(f"tool {number}", int(1300 * self.scale)),
                    "input_schema": write_schema(f"schema {number}", int(1300 * self.scale)),
                }
                for number in range(24)
            ],
            "metadata": {"user_id": json.dumps(session)},
            "thinking": {"type": "adaptive"},
            "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
            "output_config": {"effort": "high"},
            "stream": True,
        }

    def read_answer(self, stream: str) -> tuple[str, int, int]:
        """See CodingAgent."""
        events = _events_of(stream)
        deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
        usage = next(event["usage"] for event in events if event["type"] == "message_delta")
        cached_tokens = usage["cache_read_input_tokens"]
        return (
            "".join(delta.get("text", "") for delta in deltas),
            usage["input_tokens"] + cached_tokens,
            cached_tokens,
        )


@dataclass
class Codex:
    """`codex exec` with a tool call in every turn. `scale` 1: texts as long as its own."""

    scale: float = 1.0
    path: str = "/v1/responses"

    def build_request(self, model: str, answers: Sequence[str]) -> Fields:
        """See CodingAgent."""
        items = [
            _message("developer", write_text("codex", int(17_500 * self.scale)), "msg_a"),
            _message("developer", write_text("skills", int(2_600 * self.scale)), "msg_b"),
            _message("user", "<environment_context>\n  <cwd>/work</cwd>\n</environment_context>", "msg_c"),
            _message("user", "Do sixteen steps.", "msg_d"),
        ]
        for number, answer in enumerate(answers):
            thought = {"type": "reasoning_text", "text": f"Step {number} is next."}
            part = {"type": "output_text", "text": answer, "annotations": []}
            arguments = json.dumps({"cmd": f"echo step {number}"})
            call_id = f"call_{number}"
            items += [
                {
                    "type": "reasoning",
                    "id": f"rs_{number}",
                    "summary": [],
                    "content": [thought],
                    "encrypted_content": None,
                },
                {"type": "message", "status": "completed", "id": f"m_{number}", "role": "assistant", "content": [part]},
                {
                    "type": "function_call",
                    "status": "completed",
                    "id": f"fc_{number}",
                    "name": "tool0",
                    "arguments": arguments,
                    "call_id": call_id,
                },
                {
                    "type": "function_call_output",
                    "id": f"fco_{number}",
                    "call_id": call_id,
                    "output": f"step {number}\n",
                },
            ]
            if number % 2:
                items.append(_message("developer", "The sandbox is off now.", f"msg_{number}"))
        turn_metadata = {"session_id": "01a204af", "turn_id": f"01a204af-{len(answers)}", "workspaces": {"/work": {}}}
        return {
            "model": model,
            "input": items,
            "tools": [
                {
                    "type": "function",
                    "name": f"tool{number}",
                    "description": write_text(f"tool {number}", int(1100 * self.scale)),
                    "strict": False,
                    "parameters": write_schema(f"schema {number}", int(1100 * self.scale)),
                }
                for number in range(8)
            ]
            + [{"type": "web_search", "external_web_access": False}],
            "tool_choice": "auto",
            "parallel_tool_calls": True,
            "reasoning": {"summary": "auto"},
            "include": ["reasoning.encrypted_content"],
            "prompt_cache_key": "01a204af",
            "store": False,
            "stream": True,
            "client_metadata": {
                "x-codex-installation-id": "6d702d3f",
                "x-codex-turn-metadata": json.dumps(turn_metadata),
            },
        }

    def read_answer(self, stream: str) -> tuple[str, int, int]:
        """See CodingAgent."""
        response = next(event["response"] for event in _events_of(stream) if event["type"] == "response.completed")
        parts = [part for item in response["output"] if item["type"] == "message" for part in item["content"]]
        usage = response["usage"]
        return (
            "".join(part["text"] for part in parts),
            usage["input_tokens"],
            usage["input_tokens_details"]["cached_tokens"],
        )


AGENTS: Final[dict[str, type[ClaudeCode] | type[Codex]]] = {"claude-code": ClaudeCode, "codex": Codex}


@dataclass(frozen=True)
class Session:
    prompt_tokens: list[int] = field(default_factory=list)
    """By turn."""
    cached_tokens: list[int] = field(default_factory=list)

    @property
    def shares(self) -> list[float]:
        """The cached part of each prompt, by turn."""
        return [cached / total for cached, total in zip(self.cached_tokens, self.prompt_tokens, strict=True)]

    def __str__(self) -> str:
        shares = self.shares[1:]
        counts = f"{self.prompt_tokens[0]} to {self.prompt_tokens[-1]} tokens in {len(self.prompt_tokens)} turns"
        return f"{counts}; cached from the second turn on: {min(shares):.1%} to {max(shares):.1%}"


async def play_session(gateway: GatewayHarness, agent: CodingAgent, model: str, turns: int) -> Session:
    """Ask so many times, each time with what was answered before."""
    session = Session()
    answers: list[str] = []
    for _ in range(turns):
        async with gateway.post(agent.path, agent.build_request(model, answers)) as answer:
            stream = await answer.text()
            assert answer.status == 200, stream
        text, prompt_tokens, cached_tokens = agent.read_answer(stream)
        assert text
        answers.append(text)
        session.prompt_tokens.append(prompt_tokens)
        session.cached_tokens.append(cached_tokens)
    return session


def _message(role: str, text: str, message_id: str) -> Fields:
    return {"type": "message", "id": message_id, "role": role, "content": [{"type": "input_text", "text": text}]}


def _events_of(stream: str) -> list[Fields]:
    lines = [line.removeprefix("data: ") for line in stream.splitlines() if line.startswith("data: {")]
    return [json.loads(line) for line in lines]
