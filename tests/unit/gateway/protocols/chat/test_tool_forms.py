"""Tools of chat completions in other forms than engines know: what is refused, and which requests are looked at."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.protocols.api_matrix import serving_option
from gateway.protocols.chat.dialect import CHAT
from gateway.protocols.chat.tool_forms import CUSTOM_TOOLS, FUNCTIONS
from gateway.protocols.common.request import InferenceRequest, parse_request
from tests.fakes.fake_controller import route
from tests.support.outcomes import error_of

PATH = "/v1/chat/completions"
HI: list[Any] = [{"role": "user", "content": "Hi"}]
WEATHER: dict[str, Any] = {"name": "weather", "parameters": {"type": "object"}}
ASKED: dict[str, Any] = {"functions": [WEATHER]}
FUNCTION: dict[str, Any] = {"type": "function", "function": WEATHER}
SHELL: dict[str, Any] = {"type": "custom", "custom": {"name": "shell"}}
MODEL = route("m", backend="llama_server")


def request_of(fields: dict[str, Any]) -> InferenceRequest:
    return parse_request(json.dumps({"model": "m", "messages": HI, **fields}).encode(), may_stream=True)


NO_LISTS: list[Any] = [False, 5, "x", {}]
NO_TOOLS: list[Any] = [None, 5, []]
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"functions": 5}, "functions"),
    ({"functions": ["x"]}, "functions[0]"),
    ({"functions": [WEATHER, {}]}, "functions[1].name"),
    ({"functions": [{"name": "f", "parameters": 5}]}, "functions[0].parameters"),
    ({**ASKED, "tools": [FUNCTION]}, "functions"),
    ({**ASKED, "function_call": {"name": "other"}}, "function_call.name"),
    ({**ASKED, "function_call": "required"}, "function_call"),
    ({**ASKED, "function_call": 5}, "function_call"),
    ({"function_call": {"name": "f"}}, "function_call.name"),
    ({"messages": [*HI, {"role": "assistant", "function_call": {"name": "f"}}]}, "messages[1].function_call.arguments"),
    ({"messages": [*HI, {"role": "function", "content": "x"}]}, "messages[1].name"),
    *(({"tools": value}, "tools") for value in NO_LISTS),
    *(({"tools": [FUNCTION, value]}, "tools[1]") for value in NO_TOOLS),
    *(({"tools": [{"type": "function", **more}]}, "tools[0].function") for more in ({}, {"function": 5})),
    ({"tools": [{"function": {"name": 5}}]}, "tools[0].function.name"),
    ({"tools": [{"type": "custom"}]}, "tools[0].custom"),
    ({"tools": [FUNCTION, {"type": "custom", "custom": {"name": ""}}]}, "tools[1].custom.name"),
    ({"tools": [{"type": "custom", "custom": {"name": "x", "format": {"type": "y"}}}]}, "tools[0].custom.format.type"),
    ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
    ({"tools": [FUNCTION, {"type": 5}]}, "tools[1].type"),
    ({"tools": [SHELL], "tool_choice": {"type": "custom", "custom": {}}}, "tool_choice.custom.name"),
    ({"tools": [SHELL], "tool_choice": {"type": "custom", "custom": {"name": "other"}}}, "tool_choice"),
    ({"messages": [{"role": "assistant", "tool_calls": [{"type": "custom"}]}]}, "messages[0].tool_calls[0].custom"),
]


@pytest.mark.parametrize(("fields", "param"), REFUSED)
def test_a_wrong_form_is_refused_at_its_place(fields: dict[str, Any], param: str) -> None:
    request = request_of(fields)
    dialect = serving_option(PATH, request, MODEL).dialect

    def ask() -> None:
        dialect.check_request(request, MODEL)
        dialect.engine_body(request, MODEL, as_stream=False)

    error = error_of(ask)
    assert (error.entry.status, error.param) == (400, param)
    assert f"`{param}" in error.message


@pytest.mark.parametrize(
    ("fields", "dialect"),
    [
        ({}, CHAT),
        ({"tools": [FUNCTION], "tool_choice": {"type": "function", "function": {"name": "weather"}}}, CHAT),
        ({"tools": [], "messages": [5, {"role": "tool", "content": "function_call"}]}, CHAT),
        ({"tools": [{"function": WEATHER}]}, CUSTOM_TOOLS),
        ({"tools": False}, CUSTOM_TOOLS),
        ({"tools": None}, CHAT),
        ({"messages": [{"role": "user", "content": '"function_call" and "custom"'}]}, CHAT),
        ({"functions": None, "function_call": None}, CHAT),
        ({"functions": []}, CUSTOM_TOOLS),
        (ASKED, FUNCTIONS),
        ({**ASKED, "tools": [SHELL]}, CUSTOM_TOOLS),
        ({"function_call": "auto"}, CUSTOM_TOOLS),
        ({"messages": [{"role": "assistant", "content": "", "function_call": None}]}, CHAT),
        ({"messages": [{"role": "function", "name": "f", "content": "x"}]}, CUSTOM_TOOLS),
        ({"messages": [{"role": "assistant", "function_call": {"name": "f", "arguments": "{}"}}]}, CUSTOM_TOOLS),
        ({"messages": [{"role": "assistant", "tool_calls": [SHELL]}]}, CUSTOM_TOOLS),
        ({"tools": [FUNCTION, SHELL]}, CUSTOM_TOOLS),
        ({"tools": [{"type": "web_search"}]}, CUSTOM_TOOLS),
    ],
)
def test_other_forms_are_found_and_nothing_else(fields: dict[str, Any], dialect: object) -> None:
    assert serving_option(PATH, request_of(fields), MODEL).dialect is dialect


def test_a_function_without_a_type_gets_one() -> None:
    request = request_of({"tools": [{"function": WEATHER}]})
    CUSTOM_TOOLS.check_request(request, MODEL)
    sent = json.loads(CUSTOM_TOOLS.engine_body(request, MODEL, as_stream=False))
    assert sent["tools"] == [{"type": "function", "function": WEATHER}]
