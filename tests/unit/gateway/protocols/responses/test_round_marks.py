"""Calls of a stored response, read back: those of one round as parallel calls, those of several as turns of their own,
exactly as the rounds themselves were asked."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from gateway.protocols.common.conversation import Assistant, Call, Text, ToolResult, Turn, User
from gateway.protocols.responses.context import ResponseContext
from gateway.protocols.responses.mcp_items import mark_round, round_of
from gateway.protocols.responses.rounds_writer import RunCall
from gateway.protocols.responses.tool_rounds import CallResult
from tests.support.responses import NOW, Fields
from tests.support.tool_rounds import BONN, OWN, WEATHER, Played, play, servers_of
from tests.support.tool_rounds import Turn as Round

ULM = '{"city": "Ulm"}'
SAYS = Round("Rain.")
BOTH = Round(calls=[("weather__get", BONN), ("weather__set", ULM)])
ONE = Round(calls=[("weather__get", BONN)])
OTHER = Round(calls=[("weather__set", ULM)])
USER: Fields = {"role": "user", "content": "Weather?"}
APPROVES_SET: Fields = {
    "type": "mcp",
    "server_label": "weather",
    "require_approval": {"never": {"tool_names": ["get"]}},
}


def made(token: str, **fields: Any) -> ResponseContext:
    """The context of a response of its own, whose ids are as the store's: a token and a number."""
    numbers = itertools.count()
    return ResponseContext(
        id=f"resp_{token}",
        created_at=int(NOW),
        clock=lambda: NOW,
        new_id=lambda prefix: f"{prefix}_{token}{next(numbers):04x}",
        **fields,
    )


def answered(call: RunCall) -> CallResult:
    return CallResult(f"{call.name} {call.arguments}")


def respond(*rounds: Round, token: str = "a" * 48, history: tuple[Fields, ...] = (), **asked: Any) -> Played:
    """A response whose ids begin with `token`."""
    tools = asked.setdefault("tools", [WEATHER])
    context = made(token, mcp=servers_of(tools=tools), history=history, stores=True)
    return play(*rounds, history=history, run=answered, made=context, **asked)


def transcript(turns: tuple[Turn, ...]) -> list[tuple[Any, ...]]:
    """What the turns say, without ids, which differ between a round and what is read back."""
    said: list[tuple[Any, ...]] = []
    for turn in turns:
        if isinstance(turn, Assistant):
            said.append(("assistant", turn.text, *((call.name, call.arguments) for call in turn.calls)))
        else:
            assert isinstance(turn, User | ToolResult)
            [part] = turn.parts
            assert isinstance(part, Text)
            said.append((type(turn).__name__, part.text))
    return said


GOT = ("ToolResult", f"get {BONN}")
SET = ("ToolResult", f"set {ULM}")


@pytest.mark.parametrize(
    ("rounds", "expected"),
    [
        (
            (ONE, OTHER, SAYS),
            [("assistant", "", ("weather__get", BONN)), GOT, ("assistant", "", ("weather__set", ULM)), SET],
        ),
        ((BOTH, SAYS), [("assistant", "", ("weather__get", BONN), ("weather__set", ULM)), GOT, SET]),
        (
            (BOTH, ONE, SAYS),
            [
                ("assistant", "", ("weather__get", BONN), ("weather__set", ULM)),
                GOT,
                SET,
                ("assistant", "", ("weather__get", BONN)),
                GOT,
            ],
        ),
        (
            (ONE, BOTH, SAYS),
            [
                ("assistant", "", ("weather__get", BONN)),
                GOT,
                ("assistant", "", ("weather__get", BONN), ("weather__set", ULM)),
                GOT,
                SET,
            ],
        ),
    ],
)
def test_a_later_request_reads_what_the_last_round_was_asked(
    rounds: tuple[Round, ...], expected: list[tuple[Any, ...]]
) -> None:
    played = respond(*rounds)
    whole = [("User", "Weather?"), *expected]
    assert transcript(played.prompts[-1].turns) == whole
    later = respond(SAYS, token="b" * 48, history=(USER, *played.response["output"]), input="And?")
    assert transcript(later.prompts[0].turns) == [*whole, ("assistant", "Rain."), ("User", "And?")]


def test_the_ids_of_what_is_read_back_are_those_of_the_items() -> None:
    output = respond(ONE, OTHER, SAYS).response["output"]
    later = respond(SAYS, token="b" * 48, history=(USER, *output), input="And?")
    first, second = (item["id"] for item in output if item["type"] == "mcp_call")
    assert (first, second) == ("mcp_" + "a" * 48 + "0002r1", "mcp_" + "a" * 48 + "0003r2")
    assert later.prompts[0].turns[1:5] == (
        Assistant(calls=(Call(first, "weather__get", BONN),)),
        ToolResult(first, (Text(f"get {BONN}"),)),
        Assistant(calls=(Call(second, "weather__set", ULM),)),
        ToolResult(second, (Text(f"set {ULM}"),)),
    )


def test_results_are_told_in_the_order_of_their_calls() -> None:
    """Whichever call ends first, so that the engine's cache holds for what is read back."""
    played = respond(BOTH, SAYS, ends_last_first=True)
    assert transcript(played.prompts[-1].turns)[2:] == [GOT, SET]


@pytest.mark.parametrize("keeps_ids", [True, False])
def test_the_clients_own_call_of_a_later_round_comes_after_the_results(keeps_ids: bool) -> None:
    tools = [WEATHER, OWN]
    output = respond(ONE, Round(calls=[("own", "{}")]), tools=tools).response["output"]
    if not keeps_ids:
        output = [{name: value for name, value in item.items() if name != "id"} if item["type"] == "function_call"
                  else item for item in output]  # fmt: skip
    result = {"type": "function_call_output", "call_id": "c0", "output": "mine"}
    later = respond(SAYS, token="b" * 48, history=(USER, *output), input=[result], tools=tools)
    assert transcript(later.prompts[0].turns)[1:] == [
        ("assistant", "", ("weather__get", BONN)),
        GOT,
        ("assistant", "", ("own", "{}")),
        ("ToolResult", "mine"),
    ]


@pytest.mark.parametrize("calls", [[("own", "{}"), ("weather__get", BONN)], [("weather__get", BONN), ("own", "{}")]])
def test_the_clients_own_call_of_the_same_round_is_parallel(calls: list[tuple[str, str]]) -> None:
    tools = [WEATHER, OWN]
    output = respond(Round(calls=calls), tools=tools).response["output"]
    own = next(item["call_id"] for item in output if item["type"] == "function_call")
    result = {"type": "function_call_output", "call_id": own, "output": "mine"}
    later = respond(SAYS, token="b" * 48, history=(USER, *output), input=[result], tools=tools)
    assert transcript(later.prompts[0].turns)[1:] == [("assistant", "", *calls), GOT, ("ToolResult", "mine")]


@pytest.mark.parametrize("approves", [True, False])
def test_a_call_that_waited_for_its_approval_is_of_the_round_that_made_it(approves: bool) -> None:
    asked = respond(ONE, BOTH, tools=[APPROVES_SET])
    request = asked.response["output"][-1]
    assert (request["type"], request["name"]) == ("mcp_approval_request", "set")
    answer = {"type": "mcp_approval_response", "approval_request_id": request["id"], "approve": approves}
    told = SET if approves else ("ToolResult", "The user did not approve this call, so it was not run.")
    whole = [
        ("User", "Weather?"),
        ("assistant", "", ("weather__get", BONN)),
        GOT,
        ("assistant", "", ("weather__get", BONN), ("weather__set", ULM)),
        GOT,
        told,
    ]
    before = (USER, *asked.response["output"])
    went_on = respond(ONE, SAYS, token="b" * 48, history=before, input=[answer], tools=[APPROVES_SET])
    assert transcript(went_on.prompts[0].turns) == whole
    items = (*before, answer, *went_on.response["output"])
    later = respond(SAYS, token="c" * 48, history=items, input="And?", tools=[APPROVES_SET])
    assert transcript(later.prompts[0].turns) == [
        *whole,
        ("assistant", "", ("weather__get", BONN)),
        GOT,
        ("assistant", "Rain."),
        ("User", "And?"),
    ]


def test_two_responses_have_no_round_in_common() -> None:
    """The second one continues the first, which was cut off in its tool, with a call at once."""
    first = respond(ONE, SAYS).response["output"][:2]
    second = respond(OTHER, SAYS, token="b" * 48, history=(USER, *first), input=[],
                     previous_response_id="resp_x").response["output"][:1]  # fmt: skip
    later = respond(SAYS, token="c" * 48, history=(USER, *first, *second), input="And?")
    assert transcript(later.prompts[0].turns)[1:5] == [
        ("assistant", "", ("weather__get", BONN)),
        GOT,
        ("assistant", "", ("weather__set", ULM)),
        SET,
    ]


def test_calls_without_a_mark_are_turns_of_their_own() -> None:
    """Of another service, or of a client that gave them ids of its own."""
    output = [
        {**item, "id": f"item_{number}"}
        for number, item in enumerate(respond(BOTH, SAYS).response["output"])
        if item["type"] == "mcp_call"
    ]
    later = respond(SAYS, token="b" * 48, history=(USER, *output), input="And?")
    assert transcript(later.prompts[0].turns)[1:5] == [
        ("assistant", "", ("weather__get", BONN)),
        GOT,
        ("assistant", "", ("weather__set", ULM)),
        SET,
    ]


def test_the_mark_of_an_id() -> None:
    token = "0123456789abcdef" * 3
    ids = [mark_round(f"{prefix}_{token}{number}", 12) for prefix, number in (("mcp", "0001"), ("fc", "00ff"))]
    assert [round_of({"id": each}) for each in ids] == [f"{token}r12"] * 2
    other = {"id": mark_round(f"mcp_{token}0003", 2), "approval_request_id": mark_round(f"mcpr_{'f' * 48}0003", 3)}
    assert round_of(other) == "f" * 48 + "r3"
    for unmarked in (f"mcp_{token}0001", "", "r1", "mcp_", f"mcp_{token}0001r", 7, None, f"mcp_{token}0001r1x"):
        assert round_of({"id": unmarked}) is None
    assert round_of({}) is None
