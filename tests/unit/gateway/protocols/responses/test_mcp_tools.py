"""The tools `mcp` of a request: which servers it names, which calls need an approval, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from controller.schema.errors import RoundhouseError
from gateway.protocols.responses.mcp_items import (
    failed_server,
    failed_tool,
    invalid_call,
    object_text,
    read_arguments,
    text_of_error,
)
from gateway.protocols.responses.mcp_tools import echo_mcp
from gateway.protocols.responses.request import read_prompt
from tests.support.responses import Fields, context
from tests.support.tool_rounds import CITY, OWN, WEATHER, servers_of

ELSEWHERE: Fields = {"type": "mcp", "server_label": "docs", "server_url": "https://example.org/mcp"}


def functions(**asked: Any) -> list[str]:
    """Names of the functions that the model gets."""
    fields: Fields = {"model": "m", "input": "Hi", **asked}
    return [tool.name for tool in read_prompt(fields, context(mcp=servers_of(**fields))).tools]


def test_tools_of_a_server_are_functions_in_its_place() -> None:
    time: Fields = {"type": "mcp", "server_label": "roundhouse"}
    assert functions(tools=[time, OWN, WEATHER]) == [
        *("roundhouse__current_time", "own", "weather__get", "weather__set")
    ]
    mcp = servers_of(tools=[WEATHER, time])
    assert mcp is not None
    prompt = read_prompt({"model": "m", "input": "Hi", "tools": [WEATHER]}, context(mcp=mcp))
    assert (prompt.tools[0].description, prompt.tools[0].parameters) == ("Says the weather.", CITY)
    full_names = [tool.full_name for server in mcp.servers for tool in server.tools]
    assert full_names == ["weather__get", "weather__set", "current_time"]
    assert [mcp.split_function(name) for name in ("roundhouse__x", "weather__a__b", "c")] == [
        *(("roundhouse", "x"), ("weather", "a__b"), ("weather", "c"))
    ]


@pytest.mark.parametrize(
    ("allowed", "names"),
    [
        (None, ["weather__get", "weather__set"]),
        (["set", "other"], ["weather__set"]),
        ([], []),
        ({"tool_names": ["get"]}, ["weather__get"]),
        ({"read_only": True}, ["weather__get"]),
        ({"read_only": False, "tool_names": ["get"]}, []),
        ({}, ["weather__get", "weather__set"]),
    ],
)
def test_a_request_may_allow_some_tools(allowed: Any, names: list[str]) -> None:
    assert functions(tools=[{**WEATHER, "allowed_tools": allowed}]) == names


@pytest.mark.parametrize(
    ("approval", "unapproved"),
    [
        (..., ["weather__get", "weather__set"]),
        (None, ["weather__get", "weather__set"]),
        ("always", ["weather__get", "weather__set"]),
        ("never", []),
        ({"never": {"tool_names": ["get"]}}, ["weather__set"]),
        ({"never": {"read_only": True}}, ["weather__set"]),
        ({"always": {"tool_names": ["set"]}}, ["weather__set"]),
        ({"always": {"tool_names": ["get"]}, "never": {"tool_names": ["get"]}}, ["weather__get", "weather__set"]),
        ({"always": {"tool_names": []}, "never": {"tool_names": ["get"]}}, ["weather__set"]),
        ({}, ["weather__get", "weather__set"]),
    ],
)
def test_calls_need_an_approval_unless_the_request_says_never(approval: Any, unapproved: list[str]) -> None:
    tool = {**WEATHER, "require_approval": approval}
    if approval is ...:
        del tool["require_approval"]
    mcp = servers_of(tools=[tool])
    assert mcp is not None
    assert [name for name in ("weather__get", "weather__set") if mcp.needs_approval(name)] == unapproved


def test_a_server_elsewhere_is_ignored_beside_other_tools() -> None:
    for others in ([OWN], [WEATHER], [{"type": "file_search", "vector_store_ids": ["vs"]}]):
        assert "docs" not in str(functions(tools=[*others, ELSEWHERE]))
    assert servers_of(tools=[OWN, ELSEWHERE]) is None
    assert servers_of() is servers_of(tools=[OWN]) is None


@pytest.mark.parametrize(
    ("tools", "place", "says"),
    [
        ([ELSEWHERE], "tools[0].server_label", "(weather, roundhouse, down); it is 'docs'"),
        ([OWN, {"type": "mcp", "server_label": "docs"}], "tools[1].server_label", "it is 'docs'"),
        ([OWN, {"type": "mcp"}], "tools[1].server_label", "it is missing"),
        ([{"type": "mcp", "server_label": 1}], "tools[0].server_label", "it is 1"),
        ([{**WEATHER, "server_url": "https://x.org"}], "tools[0].server_url", "must be left out"),
        ([{**WEATHER, "connector_id": "connector_gmail"}], "tools[0].connector_id", "must be left out"),
        ([{**WEATHER, "authorization": "x"}], "tools[0].authorization", "must be left out"),
        ([{**WEATHER, "headers": {"a": "b"}}], "tools[0].headers", "must be left out"),
        ([{**WEATHER, "require_approval": "sometimes"}], "tools[0].require_approval", "'always' or 'never'"),
        ([{**WEATHER, "allowed_tools": [1]}], "tools[0].allowed_tools", "string"),
        ([{**WEATHER, "colour": 1}], "tools[0].colour", "Extra inputs"),
        ([WEATHER, WEATHER], "tools[1].server_label", "no other tool's"),
        ([WEATHER, {"type": "function", "name": "weather__get"}], "tools[1].name", "no other tool's"),
    ],
)  # fmt: skip
def test_what_is_refused(tools: list[Fields], place: str, says: str) -> None:
    with pytest.raises(RoundhouseError) as caught:
        functions(tools=tools)
    assert caught.value.entry.code == "invalid_request"
    assert (caught.value.param or "").startswith(place)
    assert says in caught.value.message


@pytest.mark.parametrize(
    ("choice", "place"),
    [
        ({"type": "mcp", "server_label": "down"}, "tool_choice.server_label"),
        ({"type": "mcp", "server_label": "weather", "name": "other"}, "tool_choice.name"),
        (
            {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "mcp", "server_label": "down"}]},
            "tool_choice.tools[0].server_label",
        ),
    ],
)
def test_choices_of_what_there_is_not(choice: Fields, place: str) -> None:
    with pytest.raises(RoundhouseError) as caught:
        functions(tools=[WEATHER], tool_choice=choice)
    assert (caught.value.entry.code, caught.value.param) == ("invalid_request", place)
    with pytest.raises(RoundhouseError) as caught:
        functions(tools=[{"type": "mcp", "server_label": "down"}], tool_choice={"type": "mcp", "server_label": "down"})
    assert caught.value.param == "tool_choice.server_label"


def test_a_choice_narrows_the_tools_to_one_server() -> None:
    time: Fields = {"type": "mcp", "server_label": "roundhouse"}
    assert functions(tools=[WEATHER, time], tool_choice={"type": "mcp", "server_label": "roundhouse"}) == [
        "roundhouse__current_time"
    ]
    both = [{"type": "mcp", "server_label": "weather", "name": "set"}, {"type": "function", "name": "own"}]
    choice = {"type": "allowed_tools", "mode": "auto", "tools": both}
    assert functions(tools=[WEATHER, time, OWN], tool_choice=choice) == ["weather__set", "own"]


def test_the_response_repeats_no_more_than_what_was_asked_for() -> None:
    asked: Fields = {**WEATHER, "server_url": None, "allowed_tools": ["get"], "server_description": "Weather."}
    assert echo_mcp(asked) == {
        "type": "mcp",
        "server_label": "weather",
        "server_description": "Weather.",
        "allowed_tools": ["get"],
        "require_approval": "never",
    }


def test_what_a_model_is_told_of_errors() -> None:
    assert text_of_error(invalid_call("No.")) == text_of_error(failed_server(502, "No.")) == "No."
    assert text_of_error(failed_tool("No.")) == text_of_error("No.") == "No."
    assert text_of_error(None) == text_of_error({"content": [{"type": "image"}]}) == "The call was not run."


def test_arguments() -> None:
    assert [read_arguments(text) for text in ("", " ", '{"a": 1}', "[]", '{"a"', "[" * 100_000)] == [
        *({}, {}, {"a": 1}),
        *(None, None, None),
    ]
    assert [object_text(text) for text in ('{"a": 1}', "[]", "", "\ud800")] == ['{"a": 1}', "{}", "{}", "{}"]
