"""Responses in rounds: one stream of them all, what each round asks, and where the response ends."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from gateway.protocols.common.conversation import Assistant, Call, Text, Tokens, ToolChoice, ToolResult, Turn, User
from gateway.protocols.responses.context import ResponseContext
from gateway.protocols.responses.mcp import REFUSED, failed_tool, mark_round, round_of
from gateway.protocols.responses.replayed_events import replay_events
from gateway.protocols.responses.tool_rounds import MOST_ROUNDS, ROUND_OVER, CallResult, RoundsWriter, RoundWriter
from tests.support.outcomes import error_of, present
from tests.support.responses import NOW, Fields, context, events_in, folded
from tests.support.tool_rounds import BONN, OWN, WEATHER, Played, play, servers_of
from tests.support.tool_rounds import Turn as Round

DONE = b"data: [DONE]\n\n"
ASKS = Round(calls=[("weather__get", BONN)])
SAYS = Round("Rain.")
ALWAYS: Fields = {"type": "mcp", "server_label": "weather"}


def kinds(played: Played) -> list[str]:
    """Types of the events, with that of the item where one begins or ends."""
    events = [(event["type"].removeprefix("response."), event.get("item")) for event in events_in(played.stream)]
    return [f"{kind} {item['type']}" if item else kind for kind, item in events]


def items(played: Played) -> list[tuple[str, str | None]]:
    return [(item["type"], item.get("status")) for item in played.response["output"]]


def test_one_call_and_the_answer_are_one_stream() -> None:
    played = play(Round("I look.", [("weather__get", BONN)], "Hm."), SAYS)
    assert kinds(played) == [
        *("created", "in_progress", "output_item.added mcp_list_tools", "mcp_list_tools.in_progress"),
        *("mcp_list_tools.completed", "output_item.done mcp_list_tools", "output_item.added reasoning"),
        *("content_part.added", "reasoning_summary_part.added", "reasoning_text.delta"),
        *("reasoning_summary_text.delta", "reasoning_text.done", "content_part.done"),
        *("reasoning_summary_text.done", "reasoning_summary_part.done"),
        *("output_item.done reasoning", "output_item.added message", "content_part.added", "output_text.delta"),
        *("output_text.done", "content_part.done", "output_item.done message", "output_item.added mcp_call"),
        *("mcp_call.in_progress", "mcp_call_arguments.delta", "mcp_call_arguments.delta", "mcp_call_arguments.done"),
        *("mcp_call.completed", "output_item.done mcp_call", "output_item.added message", "content_part.added"),
        *("output_text.delta", "output_text.done", "content_part.done", "output_item.done message", "completed"),
    ]
    assert folded(played.stream) == played.response
    call = played.response["output"][3]
    assert call == {
        "id": "mcp_0r1",
        "type": "mcp_call",
        "status": "completed",
        "approval_request_id": None,
        "server_label": "weather",
        "name": "get",
        "arguments": BONN,
        "output": "get: rain",
        "error": None,
    }
    assert played.response["usage"] == {
        "input_tokens": 20,
        "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 0},
        "output_tokens": 10,
        "output_tokens_details": {"reasoning_tokens": 2},
        "total_tokens": 30,
    }
    first, second = played.prompts
    assert (
        [tool.name for tool in first.tools] == [tool.name for tool in second.tools] == ["weather__get", "weather__set"]
    )
    assert first.turns == (User((Text("Weather?"),), place="input[0]"),)
    assert second.turns == (
        *first.turns,
        Assistant("I look.", "Hm.", (Call("c0", "weather__get", BONN),)),
        ToolResult("c0", (Text("get: rain"),)),
    )
    assert [(asked["stream"], asked["store"]) for asked in played.fields] == [(True, False)] * 2


def test_two_calls_at_once_and_a_second_round_of_calls() -> None:
    both = Round(calls=[("weather__get", BONN), ("weather__set", BONN)])
    played = play(both, Round("And again.", [("weather__get", "")]), SAYS)
    assert folded(played.stream) == played.response
    assert items(played)[1:] == [("mcp_call", "completed")] * 2 + [
        ("message", "completed"),
        ("mcp_call", "completed"),
        ("message", "completed"),
    ]
    assert [type(turn).__name__ for turn in played.prompts[-1].turns] == [
        *("User", "Assistant", "ToolResult", "ToolResult"),
        *("Assistant", "ToolResult"),
    ]
    assert played.ran == ["weather__get", "weather__set", "weather__get"]


@pytest.mark.parametrize(
    ("name", "arguments", "told"),
    [
        ("weather__nothing", BONN, "There is no tool 'weather__nothing'."),
        ("nothing", "{}", "There is no tool 'nothing'."),
        ("weather__get", "[1]", "The arguments are not a JSON object."),
        ("weather__get", '{"city', "The arguments are not a JSON object."),
    ],
)
def test_a_call_that_no_tool_takes_is_told_to_the_model(name: str, arguments: str, told: str) -> None:
    played = play(Round(calls=[(name, arguments)]), SAYS)
    assert folded(played.stream) == played.response
    assert not played.ran
    call = played.response["output"][1]
    assert (call["status"], call["server_label"], call["output"]) == ("failed", "weather", None)
    assert call["name"] == name.removeprefix("weather__")
    assert call["error"] == {"type": "mcp_protocol_error", "code": -32602, "message": told}
    assert call["arguments"] == arguments
    said, result = played.prompts[1].turns[1:]
    assert isinstance(said, Assistant)
    assert said.calls == (Call("c0", name, BONN if arguments == BONN else "{}"),)
    assert result == ToolResult("c0", (Text(told),))


def test_a_tool_that_failed_is_told_to_the_model() -> None:
    played = play(ASKS, SAYS, run=lambda _: CallResult("No such city.", failed_tool("No such city.")))
    assert folded(played.stream) == played.response
    assert "mcp_call.failed" in kinds(played)
    assert played.response["output"][1]["error"] == {
        "type": "mcp_tool_execution_error",
        "content": [{"type": "text", "text": "No such city."}],
    }
    assert played.prompts[1].turns[-1] == ToolResult("c0", (Text("No such city."),))


def test_an_approval_that_is_never_given_is_forgotten() -> None:
    played = play(SAYS, history=asked_before(), input="Never mind.", tools=[ALWAYS])
    assert not played.ran
    assert [type(turn).__name__ for turn in played.prompts[0].turns] == ["User", "User"]


def test_endless_calls_end_with_a_round_without_tools() -> None:
    played = play(ASKS)
    assert folded(played.stream) == played.response
    assert (played.response["status"], len(played.fields)) == ("completed", MOST_ROUNDS)
    assert len(played.ran) == MOST_ROUNDS - 1
    *_, call = played.response["output"]
    assert call["error"]["message"] == "The call was not run: a response has at most 16 rounds."
    assert [prompt.tool_choice for prompt in played.prompts] == [None] * 15 + [ToolChoice("none")]
    own = play(ASKS, tools=[OWN, WEATHER])
    assert [[tool.name for tool in prompt.tools] for prompt in own.prompts[-2:]] == [
        ["own", "weather__get", "weather__set"],
        ["own"],
    ]


def test_a_request_may_limit_its_calls() -> None:
    both = Round(calls=[("weather__get", BONN), ("weather__set", BONN)])
    played = play(both, SAYS, max_tool_calls=1)
    assert folded(played.stream) == played.response
    assert played.ran == ["weather__get"]
    assert [item.get("error") and item["error"]["message"] for item in played.response["output"][1:3]] == [
        None,
        "The call was not run: the response may have no more calls (`max_tool_calls`).",
    ]
    assert played.prompts[1].tool_choice == ToolChoice("none")


def test_tokens_count_over_all_rounds() -> None:
    played = play(ASKS, SAYS, max_output_tokens=7)
    assert [asked["max_output_tokens"] for asked in played.fields] == [7, 2]
    assert played.response["max_output_tokens"] == 7
    spent = play(ASKS, SAYS, max_output_tokens=5)
    assert folded(spent.stream) == spent.response
    assert (spent.response["status"], len(spent.fields), spent.ran) == ("incomplete", 1, ["weather__get"])
    assert spent.response["incomplete_details"] == {"reason": "max_output_tokens"}


def test_a_call_that_was_cut_off_is_not_run() -> None:
    played = play(Round(calls=[("weather__get", '{"city')], finish="length"))
    assert folded(played.stream) == played.response
    assert (played.response["status"], played.ran) == ("incomplete", [])
    assert items(played)[-1] == ("mcp_call", "incomplete")
    withheld = play(Round("Well", [("weather__get", '{"ci')], finish="length"), tools=[ALWAYS])
    assert withheld.response["output"][1:] == [
        {"id": "msg_1", "type": "message", "status": "incomplete", "role": "assistant",
         "content": [{"type": "output_text", "text": "Well", "annotations": [], "logprobs": []}]},
    ]  # fmt: skip


def test_a_call_of_the_clients_ends_the_response() -> None:
    played = play(Round(calls=[("own", "{}"), ("weather__get", BONN)]), tools=[WEATHER, OWN])
    assert folded(played.stream) == played.response
    assert items(played)[1:] == [("function_call", "completed"), ("mcp_call", "completed")]
    assert (len(played.fields), played.ran) == (1, ["weather__get"])
    # The client answers its own call, and goes on.
    output: Fields = {"type": "function_call_output", "call_id": "c0", "output": "ok"}
    went_on = play(SAYS, history=[{"role": "user", "content": "Hi"}, *played.response["output"]], input=[output],
                   tools=[WEATHER, OWN])  # fmt: skip
    assert "mcp_list_tools" not in [item["type"] for item in went_on.response["output"]], "it was listed before"
    _, said, *results = went_on.prompts[0].turns
    assert isinstance(said, Assistant)
    assert [call.name for call in said.calls] == ["own", "weather__get"]
    assert results == [ToolResult("mcp_0r1", (Text("get: rain"),)), ToolResult("c0", (Text("ok"),))]


MCP_CHOICE = {"type": "mcp", "server_label": "weather"}


@pytest.mark.parametrize(
    ("choice", "first", "later"),
    [
        ("required", ToolChoice("required"), ToolChoice("auto")),
        (MCP_CHOICE, ToolChoice("required"), ToolChoice("auto")),
        (MCP_CHOICE | {"name": "get"}, ToolChoice("named", "weather__get"), ToolChoice("auto")),
        (
            {"type": "allowed_tools", "mode": "required", "tools": [MCP_CHOICE]},
            ToolChoice("required"),
            ToolChoice("auto"),
        ),
        ("none", ToolChoice("none"), ToolChoice("none")),
    ],
)
def test_a_choice_forces_the_first_round_alone(choice: Any, first: ToolChoice, later: ToolChoice) -> None:
    played = play(ASKS, SAYS, tool_choice=choice)
    assert folded(played.stream) == played.response
    assert [prompt.tool_choice for prompt in played.prompts] == [first, later]
    assert played.response["tool_choice"] == choice


def test_a_server_that_is_down_is_told_and_the_others_serve() -> None:
    down = {"type": "mcp", "server_label": "down"}
    played = play(SAYS, tools=[down, WEATHER])
    assert folded(played.stream) == played.response
    first, second, _ = played.response["output"]
    assert first == {
        "id": "mcpl_0",
        "type": "mcp_list_tools",
        "server_label": "down",
        "tools": [],
        "error": "It cannot be reached.",
    }
    assert second["tools"] == [
        {"name": name, "description": told, "input_schema": schema, "annotations": {"readOnlyHint": name == "get"}}
        for name, told, schema in (
            ("get", "Says the weather.", second["tools"][0]["input_schema"]),
            ("set", "Makes the weather.", second["tools"][0]["input_schema"]),
        )
    ]


def test_a_call_that_needs_an_approval_ends_the_response() -> None:
    mixed: Fields = {**ALWAYS, "require_approval": {"never": {"tool_names": ["get"]}}}
    played = play(Round(calls=[("weather__get", BONN), ("weather__set", BONN)]), tools=[mixed])
    assert folded(played.stream) == played.response
    assert kinds(played)[-5:] == [
        *("output_item.added mcp_approval_request", "output_item.done mcp_approval_request", "mcp_call.completed"),
        *("output_item.done mcp_call", "completed"),
    ]
    assert (played.ran, len(played.fields)) == (["weather__get"], 1)
    assert played.response["output"][-1] == {
        "id": "mcpr_0r1",
        "type": "mcp_approval_request",
        "server_label": "weather",
        "name": "set",
        "arguments": BONN,
    }


def asked_before() -> list[Fields]:
    """The items of a response that asks for two approvals."""
    both = Round(calls=[("weather__get", BONN), ("weather__set", BONN)])
    return [{"role": "user", "content": "Hi"}, *play(both, tools=[ALWAYS]).response["output"]]


def answer(request_id: str, *, approve: bool, **more: Any) -> Fields:
    return {"type": "mcp_approval_response", "approval_request_id": request_id, "approve": approve, **more}


@pytest.mark.parametrize("in_input", [False, True])
def test_what_the_client_approves_is_run_and_what_it_refuses_is_told(in_input: bool) -> None:
    before, answers = (
        asked_before(),
        [answer("mcpr_0r1", approve=True), answer("mcpr_1r1", approve=False, reason="No.")],
    )
    history, value = ([], [*before, *answers]) if in_input else (before, answers)
    played = play(SAYS, history=history, input=value, tools=[ALWAYS])
    assert folded(played.stream) == played.response
    call, message = played.response["output"]
    assert (call["approval_request_id"], call["output"], call["name"]) == ("mcpr_0r1", "get: rain", "get")
    assert message["type"] == "message"
    assert played.ran == ["weather__get"]
    assert played.prompts[0].turns[1:] == (
        Assistant(calls=(Call("mcpr_1r1", "weather__set", BONN), Call("mcpr_0r1", "weather__get", BONN))),
        ToolResult("mcpr_1r1", (Text(f"{REFUSED} The user says: No."),)),
        ToolResult("mcpr_0r1", (Text("get: rain"),)),
    )

    # A later request continues: nothing is run again.
    items = [*before, *answers, *played.response["output"], {"role": "user", "content": "And?"}]
    later = play(SAYS, **({"input": items} if in_input else {"history": items, "input": "So?"}), tools=[ALWAYS])
    assert not later.ran
    calls = [turn.calls for turn in later.prompts[0].turns if isinstance(turn, Assistant)]
    assert [[call.name for call in each] for each in calls] == [["weather__set", "weather__get"], []]


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"input": [answer("other", approve=True)]}, "input[0].approval_request_id"),
        ({"input": [{"type": "mcp_approval_response", "approve": True}]}, "input[0].approval_request_id"),
        ({"input": [answer("mcpr_0r1", approve=True, reason=1) | {"approve": "yes"}]}, "input[0].approve"),
        ({"input": [answer("mcpr_0r1", approve=False, reason=1)]}, "input[0].reason"),
        (
            {"input": [answer("mcpr_0r1", approve=True)], "tools": [{**ALWAYS, "allowed_tools": ["set"]}]},
            "input[0].approval_request_id",
        ),
    ],
)
def test_answers_that_cannot_be(fields: Fields, place: str) -> None:
    error = error_of(lambda: play(SAYS, history=asked_before(), **{"tools": [ALWAYS], **fields}))
    assert (error.entry.code, error.param) == ("invalid_request", place)


def test_without_a_stream_nobody_is_told_before_the_end() -> None:
    mcp = servers_of(tools=[WEATHER])
    for background in (False, True):
        made = context(mcp=mcp)
        rounds = RoundsWriter({"model": "m", "tools": [WEATHER], "background": background}, made, is_stream=False)
        rounds.begin_answer("")
        assert (made.response is not None, made.cancel) == (background, None)


def test_an_error_in_a_round_is_kept_and_fails_the_response() -> None:
    mcp = present(servers_of(tools=[WEATHER]))
    made = context(mcp=mcp)
    rounds = RoundsWriter({"model": "m", "tools": [WEATHER]}, made, is_stream=True)
    writer = RoundWriter(rounds, mcp, ())
    error: Fields = {"message": "No.", "type": "server_error", "code": "engine_error", "param": None, "status": 502}
    stream = writer.begin_answer("") + writer.write_text("Well", None)
    assert (writer.fail_answer(error), writer.error) == (ROUND_OVER, error)
    stream += rounds.fail_answer(error)
    assert folded(stream) == made.response


def test_one_that_is_cancelled_in_the_middle_of_a_call() -> None:
    mcp = present(servers_of(tools=[WEATHER]))
    made = context(mcp=mcp)
    rounds = RoundsWriter({"model": "m", "tools": [WEATHER]}, made, is_stream=True)
    writer = RoundWriter(rounds, mcp, ())
    stream = writer.begin_answer("") + writer.write_tool_call(0, "c", "weather__get", BONN)
    stream += writer.write_tool_call(1, "d", "weather__set", BONN)
    stream += writer.end_answer("tool_calls", None, Tokens(1, 2))
    failed = present(writer.calls[0].item)
    stream += rounds.end_call(failed, None, failed_tool("No."))
    assert made.cancel is not None
    stream += made.cancel()
    assert made.response is not None
    assert folded(stream) == made.response
    assert [item["status"] for item in made.response["output"][1:]] == ["failed", "incomplete"]


@pytest.mark.parametrize(
    "turns",
    [
        [Round("I look.", [("weather__get", BONN), ("own", "{}")], "Hm.")],
        [ASKS, SAYS],
        [Round(calls=[("weather__set", BONN)])],
        [Round(calls=[("weather__get", '{"c')], finish="length")],
        [Round(calls=[("weather__get", "[]")]), SAYS],
    ],
)
def test_the_events_of_a_stored_response_are_made_again(turns: list[Round]) -> None:
    mixed: Fields = {**ALWAYS, "require_approval": {"never": {"tool_names": ["get"]}}}
    down: Fields = {"type": "mcp", "server_label": "down"}
    response = play(*turns, tools=[mixed, down, OWN]).response
    assert folded(replay_events(response, is_open_responses=False) + DONE) == response


ULM = '{"city": "Ulm"}'
RAINS = Round("Rain.")
BOTH = Round(calls=[("weather__get", BONN), ("weather__set", ULM)])
ONE = Round(calls=[("weather__get", BONN)])
OTHER = Round(calls=[("weather__set", ULM)])
USER: Fields = {"role": "user", "content": "Weather?"}


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


def respond(*rounds: Round, token: str = "a" * 48, history: tuple[Fields, ...] = (), **asked: Any) -> Played:
    """A response whose ids begin with `token`."""
    tools = asked.setdefault("tools", [WEATHER])
    context = made(token, mcp=servers_of(tools=tools), history=history, stores=True)
    return play(
        *rounds,
        history=history,
        run=lambda call: CallResult(f"{call.name} {call.arguments}"),
        response_context=context,
        **asked,
    )


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


GOT, SET = ("ToolResult", f"get {BONN}"), ("ToolResult", f"set {ULM}")
CALLS_GET, CALLS_SET = ("assistant", "", ("weather__get", BONN)), ("assistant", "", ("weather__set", ULM))
CALLS_BOTH = ("assistant", "", ("weather__get", BONN), ("weather__set", ULM))
MIXED: Fields = {**ALWAYS, "require_approval": {"never": {"tool_names": ["get"]}}}


@pytest.mark.parametrize(
    ("rounds", "expected"),
    [
        ((ONE, OTHER, RAINS), [CALLS_GET, GOT, CALLS_SET, SET]),
        ((BOTH, RAINS), [CALLS_BOTH, GOT, SET]),
        ((BOTH, ONE, RAINS), [CALLS_BOTH, GOT, SET, CALLS_GET, GOT]),
        ((ONE, BOTH, RAINS), [CALLS_GET, GOT, CALLS_BOTH, GOT, SET]),
    ],
)
def test_a_later_request_reads_the_rounds(rounds: tuple[Round, ...], expected: list[tuple[Any, ...]]) -> None:
    played = respond(*rounds)
    whole = [("User", "Weather?"), *expected]
    assert transcript(played.prompts[-1].turns) == whole
    later = respond(RAINS, token="b" * 48, history=(USER, *played.response["output"]), input="And?")
    assert transcript(later.prompts[0].turns) == [*whole, ("assistant", "Rain."), ("User", "And?")]


def test_the_ids_of_what_is_read_back_are_those_of_the_items() -> None:
    output = respond(ONE, OTHER, RAINS).response["output"]
    later = respond(RAINS, token="b" * 48, history=(USER, *output), input="And?")
    first, second = (item["id"] for item in output if item["type"] == "mcp_call")
    assert (first, second) == ("mcp_" + "a" * 48 + "0002r1", "mcp_" + "a" * 48 + "0003r2")
    assert later.prompts[0].turns[1:5] == (
        Assistant(calls=(Call(first, "weather__get", BONN),)),
        ToolResult(first, (Text(f"get {BONN}"),)),
        Assistant(calls=(Call(second, "weather__set", ULM),)),
        ToolResult(second, (Text(f"set {ULM}"),)),
    )


def test_results_are_told_in_the_order_of_their_calls() -> None:
    # Whichever call ends first, so that the engine's cache holds for what is read back.
    played = respond(BOTH, RAINS, ends_last_first=True)
    assert transcript(played.prompts[-1].turns)[2:] == [GOT, SET]


def test_the_mark_of_an_id_names_its_round() -> None:
    token = "0123456789abcdef" * 3
    ids = [mark_round(f"{prefix}_{token}{number}", 12) for prefix, number in (("mcp", "0001"), ("fc", "00ff"))]
    assert [round_of({"id": each}) for each in ids] == [f"{token}r12"] * 2
    other = {"id": mark_round(f"mcp_{token}0003", 2), "approval_request_id": mark_round(f"mcpr_{'f' * 48}0003", 3)}
    assert round_of(other) == "f" * 48 + "r3"
    for unmarked in (f"mcp_{token}0001", "", "r1", "mcp_", f"mcp_{token}0001r", 7, None, f"mcp_{token}0001r1x"):
        assert round_of({"id": unmarked}) is None
    assert round_of({}) is None


@pytest.mark.parametrize("keeps_ids", [True, False])
def test_the_clients_own_call_of_a_later_round_comes_after_the_results(keeps_ids: bool) -> None:
    tools = [WEATHER, OWN]
    output = respond(ONE, Round(calls=[("own", "{}")]), tools=tools).response["output"]
    if not keeps_ids:
        output = [{name: value for name, value in item.items() if name != "id"} if item["type"] == "function_call"
                  else item for item in output]  # fmt: skip
    result = {"type": "function_call_output", "call_id": "c0", "output": "mine"}
    later = respond(RAINS, token="b" * 48, history=(USER, *output), input=[result], tools=tools)
    assert transcript(later.prompts[0].turns)[1:] == [
        CALLS_GET,
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
    later = respond(RAINS, token="b" * 48, history=(USER, *output), input=[result], tools=tools)
    assert transcript(later.prompts[0].turns)[1:] == [("assistant", "", *calls), GOT, ("ToolResult", "mine")]


@pytest.mark.parametrize("approves", [True, False])
def test_a_call_that_waited_for_its_approval_is_of_the_round_that_made_it(approves: bool) -> None:
    asked = respond(ONE, BOTH, tools=[MIXED])
    request = asked.response["output"][-1]
    assert (request["type"], request["name"]) == ("mcp_approval_request", "set")
    answer = {"type": "mcp_approval_response", "approval_request_id": request["id"], "approve": approves}
    told = SET if approves else ("ToolResult", "The user did not approve this call, so it was not run.")
    whole = [("User", "Weather?"), CALLS_GET, GOT, CALLS_BOTH, GOT, told]
    before = (USER, *asked.response["output"])
    went_on = respond(ONE, RAINS, token="b" * 48, history=before, input=[answer], tools=[MIXED])
    assert transcript(went_on.prompts[0].turns) == whole
    items = (*before, answer, *went_on.response["output"])
    later = respond(RAINS, token="c" * 48, history=items, input="And?", tools=[MIXED])
    assert transcript(later.prompts[0].turns) == [*whole, CALLS_GET, GOT, ("assistant", "Rain."), ("User", "And?")]


def test_two_responses_have_no_round_in_common() -> None:
    """The second one continues the first, which was cut off in its tool, with a call at once."""
    first = respond(ONE, RAINS).response["output"][:2]
    second = respond(OTHER, RAINS, token="b" * 48, history=(USER, *first), input=[],
                     previous_response_id="resp_x").response["output"][:1]  # fmt: skip
    later = respond(RAINS, token="c" * 48, history=(USER, *first, *second), input="And?")
    assert transcript(later.prompts[0].turns)[1:5] == [CALLS_GET, GOT, CALLS_SET, SET]


def test_calls_without_a_mark_are_turns_of_their_own() -> None:
    """Of another service, or of a client that gave them ids of its own."""
    output = [
        {**item, "id": f"item_{number}"}
        for number, item in enumerate(respond(BOTH, RAINS).response["output"])
        if item["type"] == "mcp_call"
    ]
    later = respond(RAINS, token="b" * 48, history=(USER, *output), input="And?")
    assert transcript(later.prompts[0].turns)[1:5] == [CALLS_GET, GOT, CALLS_SET, SET]
