"""Responses: what is read of a request, and what is refused, at which place."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from contract.admin import Capabilities
from contract.errors import RoundhouseError
from gateway.protocols.chat.dialect import CHAT
from gateway.protocols.common.conversation import (
    Assistant,
    Call,
    Prompt,
    System,
    Text,
    Tool,
    ToolChoice,
    ToolResult,
    User,
)
from gateway.protocols.common.request import InferenceRequest, parse_request
from gateway.protocols.responses.mcp import (
    echo_mcp,
    failed_server,
    failed_tool,
    invalid_call,
    object_text,
    read_arguments,
    text_of_error,
)
from gateway.protocols.responses.request import custom_names, echo_tools, read_prompt
from gateway.protocols.responses.via_chat import RESPONSES_VIA_CHAT
from gateway.protocols.via_chat import write_request
from tests.fakes.fake_controller import route
from tests.support.outcomes import error_of, present, refusal
from tests.support.responses import Fields, context
from tests.support.tool_rounds import CITY, OWN, WEATHER, servers_of

CALL: Fields = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
F: Fields = {"type": "function", "name": "f"}
G: Fields = {"type": "function", "name": "g"}


def prompt(made: Any = None, **fields: Any) -> Prompt:
    return read_prompt({"model": "m", "input": "Hi", **fields}, made or context())


def refused(**fields: Any) -> RoundhouseError:
    return error_of(lambda: prompt(**fields))


def test_a_text_is_the_users_and_what_came_before_comes_first() -> None:
    assert prompt() == Prompt(turns=(User((Text("Hi"),)),))
    assert prompt(instructions="Be brief.").turns == (System("Be brief."), User((Text("Hi"),)))
    before = ({"type": "message", "role": "developer", "content": "Old."}, {"role": "user", "content": "One"})
    asked = prompt(context(history=before), instructions="New.", previous_response_id="resp_0")
    assert asked.turns == (System("New."), System("Old."), User((Text("One"),)), User((Text("Hi"),)))
    assert [turn.place for turn in asked.turns] == ["instructions", *["previous_response_id"] * 2, "input"]
    empty: tuple[Any, ...] = ("", [], None)
    for nothing in empty:
        alone = prompt(context(history=before), input=nothing, previous_response_id="resp_0")
        assert alone.turns == (System("Old."), User((Text("One"),)))
    kept = ({"id": "msg_1", "type": "message", "role": "user", "content": "One"},)
    asked = prompt(context(history=kept, conversation_id="conv_1"), conversation="conv_1", input=[])
    assert asked.turns == (User((Text("One"),)),)
    assert [turn.place for turn in asked.turns] == ["conversation"]
    with pytest.raises(RoundhouseError, match="the conversation has no items yet"):
        prompt(context(conversation_id="conv_1"), conversation="conv_1", input=[])
    unset: Fields = {"conversation": None, "prompt": None, "n": 1, "tools": None, "tool_choice": None, "text": {}}
    assert prompt(**unset, reasoning=None, metadata=None, truncation=None).turns == (User((Text("Hi"),)),)


def test_what_the_model_said_in_a_row_is_one_turn() -> None:
    items: list[Fields] = [
        {"role": "user", "content": "Hi"},
        {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "hm"}], "encrypted_content": "x"},
        {"type": "message", "id": "m", "role": "assistant", "status": "completed", "phase": "commentary",
         "content": [{"type": "output_text", "text": "a", "annotations": []}, {"type": "output_text", "text": "b"}]},
        {"role": "assistant", "content": "c"},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "no"}],
         "content": [{"type": "reasoning_text", "text": "so"}]},
        CALL,
        {"type": "custom_tool_call", "call_id": "d", "name": "sh", "input": 'l"s'},
        {"type": "function_call_output", "call_id": "c", "output": "1"},
        {"type": "custom_tool_call_output", "call_id": "d", "output": [{"type": "input_text", "text": "2"}]},
        {"type": "reasoning", "summary": [], "encrypted_content": "nobody can read it"},
    ]  # fmt: skip
    calls = (Call("c", "f", "{}"), Call("d", "sh", '{"input": "l\\"s"}'))
    assert prompt(input=items).turns == (
        User((Text("Hi"),)),
        Assistant("ab\n\nc", "hm\n\nso", calls),
        ToolResult("c", (Text("1"),)),
        ToolResult("d", (Text("2"),)),
    )


def test_a_message_that_was_cut_off_is_continued_by_the_next_one() -> None:
    def said(text: str, status: str | None = None) -> Fields:
        return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}],
                "status": status}  # fmt: skip

    thought = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]}
    user = {"role": "user", "content": "Hi"}
    for items, turns in (
        ([said("a", "incomplete"), said("b", "completed"), said("c")], [Assistant("ab\n\nc")]),
        ([said("a", "incomplete"), thought, said("b", "incomplete"), said("c")], [Assistant("abc", "hm")]),
        ([said("a", "incomplete"), user, said("b")], [Assistant("a"), User((Text("Hi"),)), Assistant("b")]),
        ([said("", "incomplete"), said("b")], [Assistant("b")]),
    ):
        assert prompt(input=items).turns == tuple(turns)


def test_an_item_that_is_referred_to_and_a_file_are_read_in_their_places() -> None:
    stored = {"i": {"type": "message", "id": "i", "role": "user", "content": "Old"}}
    for reference in ({"type": "item_reference", "id": "i"}, {"id": "i"}, {"id": "i", "type": None}):
        made = context(referenced_items=stored, stores=True)
        assert prompt(made, input=[reference]).turns == (User((Text("Old"),)),)
        assert [item["id"] for item in made.input_items] == ["i"]
    error = refused(input=[{"type": "item_reference", "id": "other"}])
    assert (error.entry.code, error.param) == ("invalid_request", "input[0].id")
    plain = base64.b64encode("Grüße".encode()).decode()
    for data in (plain, f"data:text/plain;base64,{plain}", f"data:TEXT/markdown;charset=utf-8;base64,{plain}"):
        item = {"role": "user", "content": [{"type": "input_file", "filename": "a.txt", "file_data": data}]}
        assert prompt(input=[item]).turns == (User((Text("Grüße"),)),)


def test_what_runs_elsewhere_is_left_out_and_what_means_the_same_passes() -> None:
    agents = [{"type": "web_search", "external_web_access": False}, F, {"type": "namespace", "name": "x", "tools": []}]
    asked: Fields = {"model": "m", "input": "Hi", "tools": agents}
    assert [tool.name for tool in read_prompt(asked, context()).tools] == ["f"]
    tools, choice = echo_tools(asked, None)
    assert ([tool["name"] for tool in tools], choice) == (["f"], "auto")
    assert custom_names(asked) == frozenset()
    passed = {"temperature": 0.5, "top_p": 1, "user": "u", "safety_identifier": "s", "prompt_cache_key": "k",
              "service_tier": "flex", "seed": 3, "source_lang_code": "auto", "target_lang_code": "de",
              "thinking": {"type": "enabled"}, "presence_penalty": None}  # fmt: skip
    stays = {"metadata": {"a": "b"}, "store": False, "background": False, "truncation": "disabled", "max_tool_calls": 2,
             "stream": True, "stream_options": {"include_obfuscation": False}, "messages": []}  # fmt: skip
    assert prompt(**passed, **stays).passed_fields == passed


def test_custom_tools_are_functions_of_a_text() -> None:
    form = {"type": "grammar", "syntax": "lark", "definition": "start: WORD"}
    (tool,) = prompt(tools=[{"type": "custom", "name": "sh", "description": "d", "format": form}]).tools
    assert tool.description == "d\n\nThe input follows this lark grammar:\nstart: WORD"
    (tool,) = prompt(tools=[{"type": "custom", "name": "sh", "description": "d", "format": {"type": "text"}}]).tools
    assert (tool.name, tool.description) == ("sh", "d")
    assert tool.parameters is not None
    assert tool.parameters["properties"] == {"input": {"type": "string"}}
    named = prompt(tools=[{"type": "custom", "name": "sh"}], tool_choice={"type": "custom", "name": "sh"})
    assert named.tool_choice == ToolChoice("named", "sh")


@pytest.mark.parametrize(
    ("mode", "kind"), [({"mode": "required"}, "required"), ({"mode": "auto"}, "auto"), ({}, "auto")]
)
def test_only_allowed_tools_reach_the_model(mode: Fields, kind: Any) -> None:
    choice = {"type": "allowed_tools", "tools": [{"type": "function", "name": "g"}], **mode}
    asked = prompt(tools=[F, G], tool_choice=choice)
    assert asked.tools == (Tool("g"),)
    assert asked.tool_choice == ToolChoice(kind)


def test_what_a_chat_completion_calls_otherwise_is_written_so() -> None:
    asked = prompt(
        max_output_tokens=7,
        text={"verbosity": "low", "format": {"type": "text"}},
        reasoning={"effort": "minimal", "summary": "auto"},
        include=["message.output_text.logprobs", "reasoning.encrypted_content"],
        top_logprobs=3,
        parallel_tool_calls=False,
        tools=[F],
    )
    written = write_request(asked)
    expected = {"max_tokens": 7, "verbosity": "low", "reasoning_effort": "minimal", "logprobs": True}
    assert {**expected, "top_logprobs": 3, "parallel_tool_calls": False}.items() <= written.items()
    assert prompt(top_logprobs=2).passed_fields == {"logprobs": True, "top_logprobs": 2}
    assert prompt(top_logprobs=0).passed_fields == prompt(include=[]).passed_fields == {}


@pytest.mark.parametrize(("asked", "thinking"), [("enabled", "enabled"), ("disabled", "disabled"), ("default", None)])
def test_thinking_is_asked_for_by_a_word(asked: str, thinking: str | None) -> None:
    assert prompt(thinking=asked).thinking == thinking
    assert "thinking" not in prompt(thinking=asked).passed_fields


@pytest.mark.parametrize(("name", "value"), [("id", {"a": 1}), ("status", 7)])
def test_what_is_stored_of_an_item_must_be_listable(name: str, value: Any) -> None:
    with pytest.raises(RoundhouseError, match="a string") as caught:
        prompt(context(stores=True), input=[{"role": "user", "content": "Hi", name: value}])
    assert caught.value.param == f"input[0].{name}"


def user(*parts: Any) -> Fields:
    return {"input": [{"role": "user", "content": list(parts)}]}


PDF = "data:application/pdf;base64,JVBERi0="
REFUSED: list[tuple[Fields, str, str]] = [
    *(({"input": None}, "input", "missing"), ({"input": ""}, "input", "not empty")),
    *(({"input": []}, "input", "not empty"), ({"input": 3}, "input", "3")),
    ({"input": 3, "previous_response_id": "r"}, "input", "3"),
    ({"input": None, "messages": []}, "input", "/v1/chat/completions"),
    ({"input": ["Hi"]}, "input[0]", "an object"),
    ({"input": [{"content": "Hi"}]}, "input[0].type", "item_reference"),
    ({"input": [{"type": "web_search_call"}]}, "input[0].type", "'web_search_call'"),
    ({"input": [{"type": 3}]}, "input[0].type", "3"),
    ({"input": [{"type": ["message"]}]}, "input[0].type", "['message']"),
    ({"input": [{"type": "", "role": "user", "content": "x"}]}, "input[0].type", "''"),
    ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role", "developer"),
    ({"input": [{"role": "user"}]}, "input[0].content", "missing"),
    ({"input": [{"role": "system", "content": [{"type": "input_image"}]}]}, "input[0].content[0].type", "input_text"),
    ({"input": [{"role": "assistant", "content": [{"type": "x"}]}]}, "input[0].content[0].type", "refusal"),
    (user(), "input[0].content", "empty"),
    (user("x"), "input[0].content[0]", "an object"),
    (user({"type": "text_"}), "input[0].content[0].type", "input_audio"),
    (user({"type": "input_text"}), "input[0].content[0].text", "a string"),
    (user({"type": "input_image"}), "input[0].content[0].image_url", "missing"),
    (user({"type": "input_image", "file_id": "f"}), "input[0].content[0].file_id", "image_url"),
    (user({"type": "input_audio", "input_audio": {"data": "x"}}), "input[0].content[0].input_audio.format", "missing"),
    (user({"type": "input_file", "file_id": "f"}), "input[0].content[0].file_id", "file_data"),
    (user({"type": "input_file", "file_url": "f"}), "input[0].content[0].file_url", "file_data"),
    (user({"type": "input_file", "file_data": "%"}), "input[0].content[0].file_data", "base64"),
    ({"input": [{"type": "function_call", "call_id": "c", "name": "f"}]}, "input[0].arguments", "missing"),
    ({"input": [{**CALL, "call_id": ""}]}, "input[0].call_id", "not empty"),
    ({"input": [{"type": "function_call_output", "call_id": "c", "output": "1"}]}, "input[0].call_id", "'c'"),
    ({"input": [CALL, {"type": "function_call_output", "call_id": "c"}]}, "input[1].output", "an array"),
    ({"input": [{"type": "reasoning", "content": [{"type": "x"}]}]}, "input[0].content[0].type", "reasoning_text"),
    ({"instructions": ["x"]}, "instructions", "a string"),
    ({"prompt": {"id": "p"}}, "prompt", "instructions"),
    ({"n": 2}, "n", "2"),
    ({"tools": {}}, "tools", "an array"),
    ({"tools": [{"type": "web_search"}]}, "tools[0].type", "'web_search'"),
    ({"tools": [F, {"name": "x"}]}, "tools[1].type", "missing"),
    ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools[0].name", "missing"),
    ({"tools": [F, F]}, "tools[1].name", "'f'"),
    ({"tools": [{**F, "parameters": []}]}, "tools[0].parameters", "an object"),
    ({"tools": [{"type": "custom", "name": "x", "format": {"type": "regex"}}]}, "tools[0].format.type", "'regex'"),
    (
        {"tools": [{"type": "custom", "name": "x", "format": {"type": "grammar"}}]},
        "tools[0].format.definition",
        "missing",
    ),
    ({"tools": [F, {"type": "web"}]}, "tools[1].type", "'web'"),
    ({"tools": [F, {"type": "mcp"}], "tool_choice": {"type": "mcp"}}, "tool_choice.server_label", "one of `tools`"),
    ({"tool_choice": "any"}, "tool_choice", "'any'"),
    ({"tool_choice": "required"}, "tool_choice", "`tools`"),
    ({"tool_choice": {"type": "web_search"}}, "tool_choice.type", "'web_search'"),
    ({"tools": [F], "tool_choice": {"type": "function", "name": "g"}}, "tool_choice.name", "'g'"),
    ({"tools": [F], "tool_choice": {"type": "allowed_tools", "tools": []}}, "tool_choice.tools", "empty"),
    ({"tools": [F], "tool_choice": {"type": "allowed_tools", "tools": [G]}}, "tool_choice.tools[0].name", "'g'"),
    ({"tools": [F], "tool_choice": {"type": "allowed_tools", "tools": [F], "mode": "x"}}, "tool_choice.mode", "'x'"),
    ({"parallel_tool_calls": 1}, "parallel_tool_calls", "true or false"),
    ({"text": "json"}, "text", "an object"),
    ({"text": {"format": {"type": "xml"}}}, "text.format.type", "json_schema"),
    ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "text.format.schema", "missing"),
    ({"text": {"verbosity": "much"}}, "text.verbosity", "'much'"),
    ({"reasoning": {"effort": "some"}}, "reasoning.effort", "'some'"),
    ({"reasoning": {"summary": "some"}}, "reasoning.summary", "'some'"),
    ({"thinking": "yes"}, "thinking", "'yes'"),
    ({"max_output_tokens": 0}, "max_output_tokens", "from 1"),
    ({"max_output_tokens": True}, "max_output_tokens", "a whole number"),
    ({"max_tool_calls": 0}, "max_tool_calls", "from 1"),
    ({"top_logprobs": 21}, "top_logprobs", "from 0 to 20"),
    *(({"temperature": "hot"}, "temperature", "a number"), ({"include": "x"}, "include", "an array")),
    *(({"include": [3]}, "include[0]", "a string"), ({"truncation": "some"}, "truncation", "disabled")),
    *(({"truncation": "auto"}, "truncation", "disabled"), ({"user": 3}, "user", "a string")),
    ({"metadata": {"a": 3}}, "metadata.a", "a string"),
    ({"metadata": {"a": "x" * 513}}, "metadata.a", "512"),
    ({"metadata": {"a" * 65: "x"}}, f"metadata.{'a' * 64}", "64"),
    ({"metadata": {str(n): "x" for n in range(17)}}, "metadata", "16"),
]


@pytest.mark.parametrize(("fields", "place", "says"), REFUSED, ids=[place for _, place, _ in REFUSED])
def test_what_is_wrong_is_refused_at_its_place(fields: Fields, place: str, says: str) -> None:
    error = refused(**fields)
    assert (error.entry.code, error.param) == ("invalid_request", place)
    assert error.message.startswith(f"`{place}` ")
    assert says in error.message


@pytest.mark.parametrize("data", [PDF, base64.b64encode(b"\xff\xfe").decode()])
def test_files_that_are_no_texts_are_refused(data: str) -> None:
    error = refused(**user({"type": "input_text", "text": "x"}, {"type": "input_file", "file_data": data}))
    assert (error.entry.code, error.param) == ("modality_unsupported", "input[0].content[1].file_data")


def test_input_is_listed_with_ids_where_it_is_kept() -> None:
    items = [
        {"role": "user", "content": "Hi"},
        {"type": "message", "id": "mine", "role": "assistant", "content": "Yes", "status": "incomplete"},
        CALL,
        {"type": "function_call_output", "call_id": "c", "output": "1", "id": None},
    ]
    made = context(stores=True)
    prompt(made, input=items)
    assert made.input_items == (
        {"id": "msg_0", "type": "message", "role": "user", "status": "completed",
         "content": [{"type": "input_text", "text": "Hi"}]},
        {"id": "mine", "type": "message", "role": "assistant", "status": "incomplete",
         "content": [{"type": "output_text", "text": "Yes", "annotations": [], "logprobs": []}]},
        {**CALL, "id": "fc_0", "status": "completed"},
        {"type": "function_call_output", "call_id": "c", "output": "1", "id": "fco_0", "status": "completed"},
    )  # fmt: skip
    made = context()
    prompt(made, input=items)
    assert made.input_items == ()


@pytest.mark.parametrize("control", ["chat_template_kwargs", "thinking", "reasoning_effort", None])
@pytest.mark.parametrize("word", ["enabled", "disabled", "default", None])
@pytest.mark.parametrize("effort", ["none", "high", None])
def test_engines_are_asked_to_think_as_by_a_chat(control: Any, word: str | None, effort: str | None) -> None:
    model = route(
        "m", capabilities=Capabilities(thinking_modes=("default", "enabled", "disabled")), thinking_control=control
    )
    thinking = {} if word is None else {"thinking": word}
    said = {} if effort is None else {"reasoning_effort": effort}
    asked = {"model": "m", "input": "Hi", **thinking, "reasoning": {"effort": effort}}
    request = InferenceRequest(b"", asked, "m", stream=False, wants_usage=False, state=context())
    RESPONSES_VIA_CHAT.check_request(request, model)
    ours = json.loads(RESPONSES_VIA_CHAT.engine_body(request, model, as_stream=False))
    told = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], **thinking, **said}
    chat_request = parse_request(json.dumps(told).encode(), may_stream=True)
    assert ours == json.loads(CHAT.engine_body(chat_request, model, as_stream=False))


ELSEWHERE: Fields = {"type": "mcp", "server_label": "docs", "server_url": "https://example.org/mcp"}


DOWN: Fields = {"type": "mcp", "server_label": "down"}
TIME: Fields = {"type": "mcp", "server_label": "roundhouse"}


def functions(**asked: Any) -> list[str]:
    fields: Fields = {"model": "m", "input": "Hi", **asked}
    return [tool.name for tool in read_prompt(fields, context(mcp=servers_of(**fields))).tools]


def test_tools_of_a_server_are_functions_in_its_place() -> None:
    assert functions(tools=[TIME, OWN, WEATHER]) == ["roundhouse__current_time", "own", "weather__get", "weather__set"]
    mcp = present(servers_of(tools=[WEATHER, TIME]))
    prompt = read_prompt({"model": "m", "input": "Hi", "tools": [WEATHER]}, context(mcp=mcp))
    assert (prompt.tools[0].description, prompt.tools[0].parameters) == ("Says the weather.", CITY)
    full_names = [tool.full_name for server in mcp.servers for tool in server.tools]
    assert full_names == ["weather__get", "weather__set", "current_time"]
    assert [mcp.split_function(name) for name in ("roundhouse__x", "weather__a__b", "c")] == [
        ("roundhouse", "x"),
        ("weather", "a__b"),
        ("weather", "c"),
    ]


def test_a_choice_narrows_the_tools_to_one_server() -> None:
    assert functions(tools=[WEATHER, TIME], tool_choice=TIME) == ["roundhouse__current_time"]
    both = [{"type": "mcp", "server_label": "weather", "name": "set"}, {"type": "function", "name": "own"}]
    choice = {"type": "allowed_tools", "mode": "auto", "tools": both}
    assert functions(tools=[WEATHER, TIME, OWN], tool_choice=choice) == ["weather__set", "own"]


@pytest.mark.parametrize(
    "url",
    ["https://weather.example/mcp", "HTTPS://Weather.Example:443/mcp/", "http://localhost:80/mcp", "http://[::1]/mcp"],
)
def test_a_server_may_be_named_by_its_own_address_too(url: str) -> None:
    assert functions(tools=[{**WEATHER, "server_url": url}, TIME])[:2] == ["weather__get", "weather__set"]


@pytest.mark.parametrize(
    "url",
    [
        *("http://weather.example/mcp", "https://weather.example/", "https://weather.example/mcp?a=b", "mcp", ""),
        *("https://weather.example:8443/mcp", "https://a@weather.example/mcp", "https://weather.example:x/mcp"),
        *("https://weather.example.evil.example/mcp", "https://[weather.example/mcp", "file:///mcp"),
    ],
)
def test_no_other_address_is_taken_for_a_servers(url: str) -> None:
    assert refusal(lambda: functions(tools=[{**WEATHER, "server_url": url}])) == (
        "invalid_request",
        "tools[0].server_url",
    )


def test_a_server_elsewhere_is_ignored_beside_other_tools() -> None:
    for others in ([OWN], [WEATHER], [{"type": "file_search", "vector_store_ids": ["vs"]}]):
        assert "docs" not in str(functions(tools=[*others, ELSEWHERE]))
    assert servers_of(tools=[OWN, ELSEWHERE]) is None
    assert servers_of() is servers_of(tools=[OWN]) is None


@pytest.mark.parametrize(
    ("allowed", "names"),
    [
        *((None, ["weather__get", "weather__set"]), (["set", "other"], ["weather__set"]), ([], [])),
        *(({"tool_names": ["get"]}, ["weather__get"]), ({"read_only": True}, ["weather__get"])),
        ({"read_only": False, "tool_names": ["get"]}, []),
        ({}, ["weather__get", "weather__set"]),
    ],
)
def test_a_request_may_allow_some_tools(allowed: Any, names: list[str]) -> None:
    assert functions(tools=[{**WEATHER, "allowed_tools": allowed}]) == names


@pytest.mark.parametrize(
    ("approval", "unapproved"),
    [
        *((..., ["weather__get", "weather__set"]), (None, ["weather__get", "weather__set"])),
        *(("always", ["weather__get", "weather__set"]), ("never", [])),
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
    mcp = present(servers_of(tools=[tool]))
    assert [name for name in ("weather__get", "weather__set") if mcp.needs_approval(name)] == unapproved


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
def test_tools_that_no_server_has_are_refused(tools: list[Fields], place: str, says: str) -> None:
    error = error_of(lambda: functions(tools=tools))
    assert error.entry.code == "invalid_request"
    assert (error.param or "").startswith(place)
    assert says in error.message


@pytest.mark.parametrize(
    ("tools", "choice", "place"),
    [
        ([WEATHER], {"type": "mcp", "server_label": "down"}, "tool_choice.server_label"),
        ([WEATHER], {"type": "mcp", "server_label": "weather", "name": "other"}, "tool_choice.name"),
        ([WEATHER], {"type": "allowed_tools", "mode": "auto", "tools": [DOWN]}, "tool_choice.tools[0].server_label"),
        ([DOWN], DOWN, "tool_choice.server_label"),
    ],
)
def test_choices_of_what_there_is_not(tools: list[Fields], choice: Fields, place: str) -> None:
    assert refusal(lambda: functions(tools=tools, tool_choice=choice)) == ("invalid_request", place)


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


def test_arguments_that_are_no_object_are_none() -> None:
    assert [read_arguments(text) for text in ("", " ", '{"a": 1}', "[]", '{"a"', "[" * 100_000)] == [
        *({}, {}, {"a": 1}),
        *(None, None, None),
    ]
    assert [object_text(text) for text in ('{"a": 1}', "[]", "", "\ud800")] == ['{"a": 1}', "{}", "{}", "{}"]
