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
SYSTEM, ASSISTANT, RESULT = ({"role": role, "content": "x"} for role in ("system", "assistant", "tool"))
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
        ({"messages": [{"role": "user"}]}, INVALID, CONTENT),
        (parts(), INVALID, CONTENT),
        (parts(TEXT, TEXT), INVALID, CONTENT),
        (parts({"type": "image_url"}), INVALID, f"{CONTENT}[0].type"),
        (parts({"type": "text"}), INVALID, f"{CONTENT}[0].text"),
        (parts(TEXT | {TARGET: 5}), INVALID, f"{CONTENT}[0].{TARGET}"),
        (
            {"messages": [USER], "tools": [{"type": "function", "function": {"name": "f"}}]},
            "tools_unsupported",
            "tools",
        ),
    ],
)
def test_what_it_does_not_take(fields: dict[str, Any], code: str, param: str) -> None:
    with pytest.raises(RequestError) as raised:
        structure_messages(parse_request(ChatRequest, json.dumps(fields).encode()))
    assert (raised.value.code, raised.value.param) == (code, param)
