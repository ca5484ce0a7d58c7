"""What a chat template is given; and TranslateGemma's structured request (seed 001, "TranslateGemma Request Notes")."""

from __future__ import annotations

import json
from typing import Any

import pytest

from worker.errors import RequestError
from worker.schema import ChatRequest, Message, parse_request
from worker.text.prompt_form import DETECT, RESERVED, build_variables, messages_for, plain_message, structure_messages

HELLO = [{"role": "user", "content": "hello"}]


def request(**fields: Any) -> ChatRequest:
    return parse_request(ChatRequest, json.dumps({"messages": HELLO, **fields}).encode())


@pytest.mark.parametrize(
    ("fields", "given"),
    [
        ({}, {}),
        ({"thinking": "default"}, {}),
        ({"thinking": "enabled"}, {"enable_thinking": True}),
        ({"thinking": "disabled", "chat_template_kwargs": {"enable_thinking": True}}, {"enable_thinking": False}),
        ({"chat_template_kwargs": {"enable_thinking": True, "x": [1]}}, {"enable_thinking": True, "x": [1]}),
        ({"reasoning_effort": "none"}, {"enable_thinking": False}),
        ({"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": True}}, {"enable_thinking": True}),
        ({"reasoning_effort": "none", "thinking": "enabled"}, {"enable_thinking": True}),
        ({"reasoning_effort": "high"}, {"reasoning_effort": "high"}),
    ],
)
def test_how_much_to_think(fields: dict[str, Any], given: dict[str, Any]) -> None:
    assert build_variables(request(**fields)) == given


@pytest.mark.parametrize("name", sorted(RESERVED))
def test_what_a_client_may_not_set(name: str) -> None:
    with pytest.raises(RequestError) as raised:
        build_variables(request(chat_template_kwargs={name: "x"}))
    assert raised.value.param == f"chat_template_kwargs.{name}"


@pytest.mark.parametrize(
    ("message", "given"),
    [
        ({"content": "a"}, {"content": "a"}),
        ({"content": None, "tool_calls": []}, {"content": "", "tool_calls": []}),
        ({"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}, {"content": "a\nb"}),
        ({"content": "a", "reasoning": "hm"}, {"content": "a", "reasoning_content": "hm"}),
        ({"content": "a", "reasoning_content": "hm", "reasoning": "hm"}, {"content": "a", "reasoning_content": "hm"}),
        ({"content": "a", "reasoning": None}, {"content": "a"}),
        ({"content": "a", "tool_call_id": "i", "name": "n"}, {"content": "a", "tool_call_id": "i", "name": "n"}),
    ],
)
def test_a_message_as_templates_know_it(message: dict[str, Any], given: dict[str, Any]) -> None:
    assert plain_message(Message(role="assistant", **message)) == {"role": "assistant", **given}


@pytest.mark.parametrize(
    ("sent", "given"), [('{"a": 1}', {"a": 1}), ("", {}), ("not JSON", "not JSON"), ({"a": 1}, {"a": 1})]
)
def test_arguments_of_earlier_calls_are_objects(sent: Any, given: Any) -> None:
    call = {"id": "i", "type": "function", "function": {"name": "f", "arguments": sent}}
    message = plain_message(Message(role="assistant", content="", tool_calls=[call]))
    assert message["tool_calls"] == [call | {"function": {"name": "f", "arguments": given}}]
    assert call["function"] == {"name": "f", "arguments": sent}, "the request stays as it is"


def test_an_image_is_refused_by_its_place() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "image_url"}]
    with pytest.raises(RequestError, match="reads text, not image_url") as raised:
        messages_for(request(messages=[*HELLO, {"role": "user", "content": parts}]), "")
    assert raised.value.param == "messages[1].content[1].type"


def test_a_developer_is_the_system_where_the_template_knows_none() -> None:
    asked = request(messages=[{"role": "developer", "content": "x"}, *HELLO])
    assert [each["role"] for each in messages_for(asked, "{{ messages }}")] == ["system", "user"]
    assert [each["role"] for each in messages_for(asked, "{% if role == 'developer' %}")] == ["developer", "user"]


CODES = {"source_lang_code": "de", "target_lang_code": "en"}
TEXT = {"type": "text", "text": "Guten Tag"}


def translation(content: Any = "Guten Tag", **fields: Any) -> ChatRequest:
    body = {"messages": [{"role": "user", "content": content}], **fields}
    return parse_request(ChatRequest, json.dumps(body).encode())


@pytest.mark.parametrize(
    ("content", "fields", "source", "target", "text"),
    [
        ("Guten Tag", CODES, "de", "en", "Guten Tag"),
        ([TEXT], CODES, "de", "en", "Guten Tag"),
        ([TEXT | CODES], {}, "de", "en", "Guten Tag"),
        ([TEXT | CODES], {"source_lang_code": "fr", "target_lang_code": "it"}, "de", "en", "Guten Tag"),
        ([TEXT | {"target_lang_code": "pt-BR"}], {"source_lang_code": "de_AT"}, "de_AT", "pt-BR", "Guten Tag"),
        ("Guten Tag", {"target_lang_code": "fr"}, "en", "fr", DETECT + "Guten Tag"),
        ("Guten Tag", {"target_lang_code": "en_US"}, "es", "en_US", DETECT + "Guten Tag"),
        ("Guten Tag", {"target_lang_code": "fr", "source_lang_code": "auto"}, "en", "fr", DETECT + "Guten Tag"),
        ("Guten Tag", {"target_lang_code": "fr", "source_lang_code": ""}, "en", "fr", DETECT + "Guten Tag"),
        ([TEXT | CODES | {"source_lang_code": "mixed"}], {}, "es", "en", DETECT + "Guten Tag"),
    ],
)
def test_one_part_has_both_languages(content: Any, fields: dict[str, Any], source: str, target: str, text: str) -> None:
    part = {"type": "text", "source_lang_code": source, "target_lang_code": target, "text": text}
    assert structure_messages(translation(content, **fields)) == [{"role": "user", "content": [part]}]


USER = {"role": "user", "content": "x"}
SYSTEM, ASSISTANT, RESULT = ({"role": role, "content": "x"} for role in ("system", "assistant", "tool"))
FUNCTION = {"type": "function", "function": {"name": "f"}}
TARGET, CONTENT, INVALID = "target_lang_code", "messages[0].content", "invalid_request"


def parts(*parts: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": parts}]}


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"messages": [USER]}, INVALID, TARGET),
        ({"messages": [USER], TARGET: ""}, INVALID, TARGET),
        ({"messages": [SYSTEM, USER]}, INVALID, "messages[0].role"),
        ({"messages": [USER, RESULT]}, INVALID, "messages[1].role"),
        ({"messages": [USER, ASSISTANT, USER]}, "multi_turn_unsupported", "messages[1]"),
        ({"messages": [ASSISTANT]}, INVALID, "messages[0].role"),
        *((fields, INVALID, CONTENT) for fields in ({"messages": [{"role": "user"}]}, parts(), parts(TEXT, TEXT))),
        (parts({"type": "image_url"}), INVALID, f"{CONTENT}[0].type"),
        (parts({"type": "text"}), INVALID, f"{CONTENT}[0].text"),
        (parts(TEXT | {TARGET: 5}), INVALID, f"{CONTENT}[0].{TARGET}"),
        ({"messages": [USER], "tools": [FUNCTION]}, "tools_unsupported", "tools"),
    ],
)
def test_what_it_does_not_take(fields: dict[str, Any], code: str, param: str) -> None:
    with pytest.raises(RequestError) as raised:
        structure_messages(parse_request(ChatRequest, json.dumps(fields).encode()))
    assert (raised.value.code, raised.value.param) == (code, param)
