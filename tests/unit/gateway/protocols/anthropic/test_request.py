"""What Anthropic's requests become for an engine that speaks chat completions: the fields, to the letter."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest

from contract.admin import Capabilities
from contract.routing import ModelRoute
from gateway.protocols.anthropic.via_chat import MESSAGES_COUNTED_VIA_CHAT, MESSAGES_VIA_CHAT
from gateway.protocols.common.request import parse_request
from tests.fakes.fake_controller import route
from tests.support.outcomes import error_of, refusal

Fields = dict[str, Any]

HI: list[Fields] = [{"role": "user", "content": "Hi"}]
ASKED: Fields = {"model": "m", "max_tokens": 9, "messages": HI}
SAID: Fields = {"model": "inner", "max_tokens": 9, "messages": HI}
SCHEMA: Fields = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL: Fields = {"name": "get_weather", "description": "Now.", "input_schema": SCHEMA}
CALLED: Fields = {"type": "function", "function": {"name": "get_weather", "description": "Now.", "parameters": SCHEMA}}
PNG: Fields = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}
ANYTHING = Capabilities(
    modalities=("text", "image"),
    media_urls=True,
    thinking_modes=("default", "enabled", "disabled"),
    tools=True,
    structured_output=True,
)


def read(fields: Fields, to: ModelRoute, *, counts: bool = False, as_stream: bool = False) -> Fields:
    """What the engine is asked for."""
    dialect = MESSAGES_COUNTED_VIA_CHAT if counts else MESSAGES_VIA_CHAT
    request = parse_request(json.dumps(fields).encode(), may_stream=not counts)
    dialect.check_request(request, to)
    made: Fields = json.loads(dialect.engine_body(request, to, as_stream=as_stream))
    return made


def chat_fields(fields: Fields, *, counts: bool = False, capabilities: Capabilities = ANYTHING, **model: Any) -> Fields:
    return read(fields, route("m", served_name="inner", capabilities=capabilities, **model), counts=counts)


def user(*content: Any) -> Fields:
    return {**ASKED, "messages": [{"role": "user", "content": list(content)}]}


CALL: Fields = {"type": "tool_use", "id": "toolu_3", "name": "get_time", "input": {"at": None}}
CONVERSATION: Fields = {
    **ASKED,
    "system": [
        {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.101.e51; cc_entrypoint=cli; cch=a5145;"},
        {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}},
        {"type": "text", "text": "Be kind."},
    ],
    "messages": [
        {"role": "user", "content": "What is the weather"},
        {"role": "user", "content": [{"type": "text", "text": "in Paris?"}, PNG]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "I must look.", "signature": ""},
                {"type": "redacted_thinking", "data": "xyz"},
                {"type": "text", "text": "Let me see."},
                {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"city": "Paris ü"}},
                {"type": "tool_use", "id": "toolu_2", "name": "get_time", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "Here:"},
                {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "Rain"}, PNG]},
                {"type": "tool_result", "tool_use_id": "toolu_2", "content": "no clock", "is_error": True},
            ],
        },
        {"role": "system", "content": "One more word."},
        {"role": "assistant", "content": "It"},
        {"role": "assistant", "content": [{"type": "text", "text": "rains"}, CALL]},
    ],
}
URL: Fields = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}


def test_a_whole_conversation_becomes_a_chat() -> None:
    thought = "I must look."
    made = {"id": "toolu_3", "type": "function", "function": {"name": "get_time", "arguments": '{"at":null}'}}
    weather = {"name": "get_weather", "arguments": '{"city":"Paris ü"}'}
    assert chat_fields(CONVERSATION) == {
        **SAID,
        "messages": [
            {"role": "system", "content": "Be brief.\n\nBe kind."},
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "What is the weather"},
                    {"type": "text", "text": "in Paris?"},
                    URL,
                ],
            },
            {
                "role": "assistant",
                "content": "Let me see.",
                "reasoning_content": thought,
                "reasoning": thought,
                "tool_calls": [
                    {"id": "toolu_1", "type": "function", "function": weather},
                    {"id": "toolu_2", "type": "function", "function": {"name": "get_time", "arguments": "{}"}},
                ],
            },
            {"role": "tool", "tool_call_id": "toolu_1", "content": [{"type": "text", "text": "Rain"}, URL]},
            {"role": "tool", "tool_call_id": "toolu_2", "content": "no clock"},
            {"role": "user", "content": "Here:"},
            {"role": "system", "content": "One more word."},
            {"role": "assistant", "content": "It\n\nrains", "tool_calls": [made]},
        ],
    }


DOCUMENT: Fields = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "Rain."}}
AUTO_STREAM = {"include_usage": True, "continuous_usage_stats": True}
STRICT_CALLED = {**CALLED, "function": {**CALLED["function"], "strict": True}}
NAMED_CHOICE = {"type": "tool", "name": "get_weather", "disable_parallel_tool_use": True}
NAMED = {"type": "function", "function": {"name": "get_weather"}}
FORMAT = {"type": "json_schema", "schema": SCHEMA}
CHAT_FORMAT = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}
CONTENT: Fields = {"type": "document", "source": {"type": "content", "content": [{"type": "text", "text": "Sun."}]}}
URL_IMAGE: Fields = {"type": "image", "source": {"type": "url", "url": "https://x/y.png"}}


def users(content: Any) -> Fields:
    return {"messages": [{"role": "user", "content": content}]}


SAME: list[tuple[Fields, Fields]] = [
    ({}, {}),
    ({"max_tokens": 0}, {"max_tokens": 0}),
    *(({name: value}, {name: value}) for name, value in (("temperature", 0.5), ("top_p", 0.9), ("top_k", 4))),
    ({"stop_sequences": ["a", "b"]}, {"stop": ["a", "b"]}),
    ({"min_p": 0.1, "seed": 7, "tools": []}, {"min_p": 0.1, "seed": 7}),
    ({"metadata": {"user_id": "u1"}}, {"user": "u1"}),
    ({"service_tier": "auto", "context_management": {"edits": []}, "container": None, "mcp_servers": []}, {}),
    ({"betas": ["x"], "anthropic_version": "bedrock-2023-05-31", "speed": "fast"}, {}),
    ({"system": "Be brief."}, {"messages": [{"role": "system", "content": "Be brief."}, *HI]}),
    ({"system": []}, {}),
    ({"stream": True}, {"stream": True, "stream_options": AUTO_STREAM}),
    ({"tools": [TOOL]}, {"tools": [CALLED]}),
    ({"tools": [{**TOOL, "type": "custom", "strict": True, "cache_control": None}]}, {"tools": [STRICT_CALLED]}),
    *(
        ({"tools": [TOOL], "tool_choice": {"type": kind}}, {"tools": [CALLED], "tool_choice": word})
        for kind, word in (("auto", "auto"), ("any", "required"), ("none", "none"))
    ),
    (
        {"tools": [TOOL], "tool_choice": NAMED_CHOICE},
        {"tools": [CALLED], "tool_choice": NAMED, "parallel_tool_calls": False},
    ),
    (
        {"output_config": {"effort": "max", "format": FORMAT}},
        {"reasoning_effort": "xhigh", "response_format": CHAT_FORMAT},
    ),
    ({"output_format": FORMAT}, {"response_format": CHAT_FORMAT}),
    (users([URL_IMAGE]), users([{"type": "image_url", "image_url": {"url": "https://x/y.png"}}])),
    (
        users([{**DOCUMENT, "title": "News", "context": "Of today", "citations": {"enabled": True}}]),
        users("News\nOf today\nRain."),
    ),
    (users([CONTENT]), users("Sun.")),
    (
        users([{"type": "tool_result", "tool_use_id": "t"}]),
        {"messages": [{"role": "tool", "tool_call_id": "t", "content": ""}]},
    ),
    ({"messages": [*HI, {"role": "assistant", "content": []}]}, {}),
]


@pytest.mark.parametrize(("fields", "chat"), SAME)
def test_what_becomes_of_each_field(fields: Fields, chat: Fields) -> None:
    assert chat_fields(ASKED | fields) == SAID | chat


@pytest.mark.parametrize(("backend", "more"), [("llama_server", {"return_progress": True}), ("openai_remote", {})])
def test_how_an_engine_is_asked_to_count_the_prompt_first(backend: str, more: Fields) -> None:
    to = route("m", served_name="inner").model_copy(update={"backend": backend})
    stream = {"stream": True, "stream_options": {"include_usage": True}}
    assert read({**ASKED, "stream": True}, to) == {**SAID, **stream, **more}
    assert "return_progress" not in read(ASKED, to, as_stream=True)


SWITCHED = {is_on: {"chat_template_kwargs": {"enable_thinking": is_on}} for is_on in (True, False)}


@pytest.mark.parametrize(
    ("thinking", "more"),
    [
        *((value, SWITCHED[True]) for value in ({"type": "enabled", "budget_tokens": 2048}, "enabled")),
        *((value, SWITCHED[False]) for value in ({"type": "disabled"}, "disabled")),
        *((value, {}) for value in ({"type": "adaptive"}, "default", None)),
    ],
)
def test_thinking_of_messages_becomes_the_chats_switch(thinking: Any, more: Fields) -> None:
    switch: Fields = {"thinking_control": "chat_template_kwargs"}
    assert chat_fields({**ASKED, "thinking": thinking}, **switch) == {**SAID, **more}


def test_a_thinking_object_is_a_wish_and_the_word_is_an_order() -> None:
    for thinking in ({"type": "enabled", "budget_tokens": 2048}, {"type": "disabled"}):
        assert chat_fields({**ASKED, "thinking": thinking}, capabilities=Capabilities()) == SAID
    for word in ("enabled", "disabled"):
        told = refusal(partial(chat_fields, {**ASKED, "thinking": word}, capabilities=Capabilities()))
        assert told == ("thinking_unsupported", "thinking")


def test_llama_server_is_told_stops_and_the_budget_of_thinking() -> None:
    fields = {**ASKED, "stop_sequences": ["x"], "thinking": {"type": "enabled", "budget_tokens": 2048}}
    to = route("m", served_name="inner", capabilities=ANYTHING).model_copy(update={"backend": "llama_server"})
    assert read(fields, to) == {**SAID, "stop": ["x"], "verbose": True, "thinking_budget_tokens": 2048}


def test_counting_needs_no_limit() -> None:
    assert chat_fields({"model": "m", "messages": HI}, counts=True) == {"model": "inner", "messages": HI}
    assert error_of(lambda: chat_fields({"model": "m", "messages": HI})).param == "max_tokens"


def block(**fields: Any) -> Fields:
    return user(fields)


def reply(**fields: Any) -> Fields:
    return {**ASKED, "messages": [*HI, {"role": "assistant", "content": [fields]}]}


FIRST = "messages[0].content[0]"
REFUSED: list[tuple[Fields, str]] = [
    ({"model": "m", "messages": HI}, "max_tokens"),
    *(({**ASKED, "max_tokens": -1}, "max_tokens"), ({**ASKED, "max_tokens": "9"}, "max_tokens")),
    *(({**ASKED, "max_tokens": True}, "max_tokens"), ({"model": "m", "max_tokens": 9}, "messages")),
    *(({**ASKED, "messages": []}, "messages"), ({**ASKED, "messages": "Hi"}, "messages")),
    ({**ASKED, "messages": ["Hi"]}, "messages[0]"),
    ({**ASKED, "messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
    ({**ASKED, "messages": [{"role": "user"}]}, "messages[0].content"),
    ({**ASKED, "messages": [{"role": "user", "content": []}]}, "messages[0].content"),
    *((user("Hi"), FIRST), (block(text="Hi"), FIRST + ".type"), (block(type="text"), FIRST + ".text")),
    (block(type="search_result"), FIRST + ".type"),
    (block(type="tool_use", id="t", name="f", input={}), FIRST + ".type"),
    (block(type="image"), FIRST + ".source"),
    (block(type="image", source={"type": "file", "file_id": "f"}), FIRST + ".source.type"),
    (block(type="image", source={"type": "base64", "data": "x"}), FIRST + ".source.media_type"),
    (block(type="tool_result"), FIRST + ".tool_use_id"),
    (
        block(type="tool_result", tool_use_id="t", content=[{"type": "tool_reference"}]),
        FIRST + ".content[0].type",
    ),
    (reply(type="tool_use", id="t", name="f"), "messages[1].content[0].input"),
    (reply(type="tool_use", name="f", input={}), "messages[1].content[0].id"),
    (reply(type="server_tool_use"), "messages[1].content[0].type"),
    ({**ASKED, "system": 3}, "system"),
    ({**ASKED, "system": [{"type": "image"}]}, "system[0].type"),
    ({**ASKED, "tools": [{"type": "web_search_20260318", "name": "web_search"}]}, "tools[0].type"),
    ({**ASKED, "tools": [TOOL, {"type": "bash_20250124", "name": "bash"}]}, "tools[1].type"),
    ({**ASKED, "tools": [{"name": "f"}]}, "tools[0].input_schema"),
    ({**ASKED, "tools": [{"input_schema": {}}]}, "tools[0].name"),
    ({**ASKED, "tools": [TOOL], "tool_choice": "auto"}, "tool_choice"),
    ({**ASKED, "tools": [TOOL], "tool_choice": {"type": "all"}}, "tool_choice.type"),
    ({**ASKED, "tools": [TOOL], "tool_choice": {"type": "tool", "name": "x"}}, "tool_choice.name"),
    ({**ASKED, "thinking": "often"}, "thinking"),
    ({**ASKED, "thinking": True}, "thinking"),
    ({**ASKED, "thinking": {}}, "thinking.type"),
    ({**ASKED, "thinking": {"type": "enabled", "budget_tokens": 0}}, "thinking.budget_tokens"),
    ({**ASKED, "stop_sequences": "x"}, "stop_sequences"),
    ({**ASKED, "stop_sequences": ["x", ""]}, "stop_sequences[1]"),
    ({**ASKED, "output_config": {"effort": "huge"}}, "output_config.effort"),
    ({**ASKED, "output_config": {"format": {"type": "text"}}}, "output_config.format.type"),
    ({**ASKED, "output_format": {"type": "json_schema"}}, "output_format.schema"),
    ({**ASKED, "container": "c1"}, "container"),
    ({**ASKED, "mcp_servers": [{"name": "x"}]}, "mcp_servers"),
    ({**ASKED, "thread": {"type": "create"}}, "thread"),
    ({**ASKED, "metadata": "me"}, "metadata"),
]  # fmt: skip


@pytest.mark.parametrize(("asked", "param"), REFUSED)
def test_what_cannot_be_done_is_refused_by_its_place(asked: Fields, param: str) -> None:
    error = error_of(lambda: chat_fields(asked))
    assert (error.entry.code, error.param) == ("invalid_request", param)
    assert f"`{param}`" in str(error)


UNFIT: list[tuple[Fields, Fields, str, str]] = [
    (CONVERSATION, {}, "modality_unsupported", "messages[1].content[1]"),
    (block(type="tool_result", tool_use_id="t", content=[PNG]), {}, "modality_unsupported", FIRST + ".content[0]"),
    (block(type="document", source={"type": "base64", "data": "x"}), {}, "modality_unsupported", FIRST + ".source"),
    (block(type="document", source={"type": "file"}), {}, "modality_unsupported", FIRST + ".source"),
    ({**ASKED, "tools": [TOOL]}, {"tools": False}, "tools_unsupported", "tools"),
    (
        {**ASKED, "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
        {"structured_output": False},
        "structured_output_unsupported",
        "output_config.format",
    ),
    (
        {**ASKED, "messages": [*HI, {"role": "assistant", "content": "x"}, *HI]},
        {"multi_turn": False},
        "multi_turn_unsupported",
        "messages[2]",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("asked", "lacks", "code", "param"), UNFIT)
def test_what_the_model_does_not_take_is_refused(asked: Fields, lacks: Fields, code: str, param: str) -> None:
    assert refusal(lambda: chat_fields(asked, capabilities=Capabilities(**lacks))) == (code, param)
