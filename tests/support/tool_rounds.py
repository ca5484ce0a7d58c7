"""Responses in rounds without a gateway: what a scripted model does in each, and the stream and the prompts of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from gateway.protocols.common.conversation import Finish, Prompt, Tokens
from gateway.protocols.responses.context import ResponseContext
from gateway.protocols.responses.mcp import McpTools, OfferedServer, OfferedTool, read_mcp_tools
from gateway.protocols.responses.request import read_prompt
from gateway.protocols.responses.tool_rounds import (
    ROUND_OVER,
    CallResult,
    RoundsWriter,
    RunCall,
    ToolRounds,
    listed_labels,
    own_items,
)
from tests.support.responses import Fields, context

CITY: Fields = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
GET = OfferedTool("weather", "get", "Says the weather.", CITY, writes=False)
SET = OfferedTool("weather", "set", "Makes the weather.", CITY, writes=True)
TIME = OfferedTool("roundhouse", "current_time", "Says the time.", {"type": "object", "properties": {}}, writes=False)
OFFERED = {
    "weather": OfferedServer("weather", (GET, SET), urls=("https://weather.example/mcp", "http://127.0.0.1/mcp")),
    "roundhouse": OfferedServer("roundhouse", (TIME,)),
    "down": OfferedServer("down", (), "It cannot be reached."),
}
WEATHER: Fields = {"type": "mcp", "server_label": "weather", "require_approval": "never"}
OWN: Fields = {"type": "function", "name": "own"}
BONN = '{"city": "Bonn"}'


@dataclass(frozen=True)
class Turn:
    """What the model does in one round."""

    text: str = ""
    calls: Sequence[tuple[str, str]] = ()
    """Functions and their arguments."""
    thought: str = ""
    finish: Finish = "stop"
    tokens: Tokens | None = field(default_factory=lambda: Tokens(10, 5, 2, 1))


@dataclass
class Played:
    """What came of it."""

    stream: bytes
    response: Fields
    fields: list[Fields]
    """Of each round's request."""
    prompts: list[Prompt]
    """As each round's request was read."""
    ran: list[str]
    """The functions whose calls were run."""


def rained(call: RunCall) -> CallResult:
    """The result of every call."""
    return CallResult(f"{call.name}: rain")


def play(
    *turns: Turn,
    history: Sequence[Fields] = (),
    run: Callable[[RunCall], CallResult] = rained,
    response_context: ResponseContext | None = None,
    is_stream: bool = True,
    ends_last_first: bool = False,
    **request_fields: Any,
) -> Played:
    """Make a response: the last turn comes again and again. `ends_last_first`: of a round's calls, the last one ends
    first."""
    fields: Fields = {"model": "m", "input": "Weather?", "tools": [WEATHER], **request_fields}
    mcp = read_mcp_tools(fields, OFFERED)
    assert mcp is not None
    response_context = response_context or context(mcp=mcp, history=tuple(history), stores=True)
    read_prompt(fields, response_context)
    items = own_items(fields, response_context.referenced_items)
    labels = listed_labels([*history, *items])
    writer = RoundsWriter(fields, response_context, is_stream=is_stream, listed_labels=labels)
    rounds = ToolRounds(fields, history, items, writer, mcp)
    stream, played, ran = b"", Played(b"", {}, [], [], []), []

    def finish(calls: Sequence[RunCall]) -> None:
        nonlocal stream
        for call in reversed(calls) if ends_last_first else calls:
            result = rounds.refuse_call(call)
            if result is None:
                ran.append(call.function)
                result = run(call)
            stream += rounds.take_result(call, result)

    approved = rounds.take_approved()
    for each in approved:
        stream += rounds.begin_approved(each)
    finish([each.call for each in approved])
    left = list(turns)
    while not rounds.is_over:
        asked_fields, round_writer = rounds.next_round()
        played.fields.append(asked_fields)
        played.prompts.append(read_prompt(asked_fields, context(mcp=mcp, history=tuple(history), may_lack_input=True)))
        turn = left.pop(0) if len(left) > 1 else left[0]
        stream += round_writer.begin_answer("x")
        stream += round_writer.write_reasoning(turn.thought) if turn.thought else b""
        stream += round_writer.write_text(turn.text, None) if turn.text else b""
        for index, (name, arguments) in enumerate(turn.calls):
            stream += round_writer.write_tool_call(index, f"c{index}", name, arguments[:3])
            stream += round_writer.write_tool_call(index, None, None, arguments[3:])
        stream += round_writer.end_answer(turn.finish, None, turn.tokens).replace(ROUND_OVER, b"")
        events, calls = rounds.end_round(round_writer, turn.tokens.completion if turn.tokens is not None else 0)
        stream += events
        finish(calls)
    stream += rounds.end_rounds()
    assert response_context.response is not None
    played.stream, played.response, played.ran = stream, response_context.response, ran
    return played


def servers_of(**fields: Any) -> McpTools | None:
    """The servers that a request with these fields names."""
    return read_mcp_tools({"model": "m", **fields}, OFFERED)
