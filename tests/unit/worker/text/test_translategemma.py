"""TranslateGemma's structured request (seed 001, "TranslateGemma Request Notes")."""

from __future__ import annotations

import json
from typing import Any

import pytest

from worker.errors import RequestError
from worker.schema import ChatRequest, parse_request
from worker.text.translategemma import DETECT, structure_messages

CODES = {"source_lang_code": "de", "target_lang_code": "en"}
TEXT = {"type": "text", "text": "Guten Tag"}


def request(content: Any = "Guten Tag", **fields: Any) -> ChatRequest:
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
def test_one_part_names_both_languages(
    content: Any, fields: dict[str, Any], source: str, target: str, text: str
) -> None:
    part = {"type": "text", "source_lang_code": source, "target_lang_code": target, "text": text}
    assert structure_messages(request(content, **fields)) == [{"role": "user", "content": [part]}]


USER = {"role": "user", "content": "x"}


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"messages": [USER]}, "invalid_request", "target_lang_code"),
        ({"messages": [USER], "target_lang_code": ""}, "invalid_request", "target_lang_code"),
        ({"messages": [{"role": "system", "content": "x"}, USER]}, "invalid_request", "messages[0].role"),
        ({"messages": [USER, {"role": "tool", "content": "x"}]}, "invalid_request", "messages[1].role"),
        ({"messages": [USER, {"role": "assistant", "content": "x"}, USER]}, "multi_turn_unsupported", "messages[1]"),
        ({"messages": [{"role": "assistant", "content": "x"}]}, "invalid_request", "messages[0].role"),
        ({"messages": [{"role": "user", "content": []}]}, "invalid_request", "messages[0].content"),
        ({"messages": [{"role": "user"}]}, "invalid_request", "messages[0].content"),
        ({"messages": [{"role": "user", "content": [TEXT, TEXT]}]}, "invalid_request", "messages[0].content"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "invalid_request",
            "messages[0].content[0].type",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
            "invalid_request",
            "messages[0].content[0].text",
        ),
        (
            {"messages": [{"role": "user", "content": [TEXT | {"target_lang_code": 5}]}]},
            "invalid_request",
            "messages[0].content[0].target_lang_code",
        ),
        (
            {"messages": [USER], "tools": [{"type": "function", "function": {"name": "f"}}]},
            "tools_unsupported",
            "tools",
        ),
    ],
)
def test_what_it_does_not_take(fields: dict[str, Any], code: str, param: str) -> None:
    asked = parse_request(ChatRequest, json.dumps(fields).encode())
    with pytest.raises(RequestError) as raised:
        structure_messages(asked)
    assert (raised.value.code, raised.value.param) == (code, param)
