"""What a request holds against what its model takes."""

from __future__ import annotations

from typing import Any, get_args, get_type_hints

import pytest

from controller.schema.admin import Capabilities
from controller.schema.errors import RoundhouseError
from gateway.protocols.common.capabilities import check_capabilities, check_prompt
from gateway.protocols.common.conversation import (
    Assistant,
    Audio,
    Image,
    OutputFormat,
    Prompt,
    System,
    Text,
    Tool,
    ToolChoice,
    ToolResult,
    Turn,
    User,
)

TEXT = Capabilities()
SEES = Capabilities(modalities=("text", "image"))
HEARS = Capabilities(modalities=("text", "audio"))
THINKS = Capabilities(thinking_modes=("default", "enabled", "disabled"))
ONE_TURN = Capabilities(multi_turn=False)
CALLS_FREELY = Capabilities(forced_tools=False)
CALLS_NOTHING = Capabilities(tools=False)
FREE_ONLY = Capabilities(structured_output=False)

IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
AUDIO = {"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}}
SAYS = {"type": "text", "text": "What is this?"}


def refused(fields: dict[str, Any], capabilities: Capabilities) -> tuple[str, str | None] | None:
    """Code and param of the refusal; None if the request passes."""
    try:
        check_capabilities(fields, capabilities, "m")
    except RoundhouseError as error:
        return error.entry.code, error.param
    return None


def asks(*contents: Any) -> dict[str, Any]:
    """A request with one user message of each content."""
    return {"messages": [{"role": "user", "content": content} for content in contents]}


def turns(*roles: str) -> dict[str, Any]:
    """A request with one message of each role."""
    return {"messages": [{"role": role, "content": "x"} for role in roles]}


@pytest.mark.parametrize(
    ("thinking", "capabilities", "code"),
    [
        ("default", TEXT, None),
        ("enabled", TEXT, "thinking_unsupported"),
        ("disabled", TEXT, "thinking_unsupported"),
        ("enabled", THINKS, None),
        ("disabled", THINKS, None),
        ("disabled", Capabilities(thinking_modes=("default", "enabled")), "thinking_unsupported"),
        ("default", Capabilities(thinking_modes=()), None),
        ("on", THINKS, "invalid_request"),
        ("", THINKS, "invalid_request"),
        ({"type": "enabled", "budget_tokens": 1024}, TEXT, None),
        (True, TEXT, None),
        (None, TEXT, None),
    ],
)
def test_thinking(thinking: Any, capabilities: Capabilities, code: str | None) -> None:
    expected = None if code is None else (code, "thinking")
    assert refused({"thinking": thinking}, capabilities) == expected
    assert refused({"thinking": thinking} | asks("Hi"), capabilities) == expected


@pytest.mark.parametrize("kind", ["image_url", "input_image", "image"])
def test_images_only_for_models_that_take_them(kind: str) -> None:
    request = asks("Hi", [SAYS, IMAGE | {"type": kind}])
    assert refused(request, TEXT) == ("modality_unsupported", "messages[1].content[1]")
    assert refused(request, HEARS) == ("modality_unsupported", "messages[1].content[1]")
    assert refused(request, SEES) is None


@pytest.mark.parametrize("kind", ["input_audio", "audio", "audio_url"])
def test_audio_only_for_models_that_take_it(kind: str) -> None:
    request = asks([AUDIO | {"type": kind}])
    assert refused(request, SEES) == ("modality_unsupported", "messages[0].content[0]")
    assert refused(request, HEARS) is None


def test_a_part_without_a_type_is_what_it_holds() -> None:
    assert refused(asks([{"image_url": IMAGE["image_url"]}]), TEXT) == (
        "modality_unsupported",
        "messages[0].content[0]",
    )


def test_the_refusal_names_what_the_model_takes() -> None:
    with pytest.raises(RoundhouseError, match="takes no audio; it takes text, image"):
        check_capabilities(asks([AUDIO]), SEES, "m")


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"prompt": "Hi"},
        {"messages": "Hi"},
        {"messages": [None, 1, "x", []]},
        {"messages": [{"role": "user"}, {"content": None}]},
        asks([None, 1, "x", {"type": 5}, {"type": "file"}, {}, SAYS]),
    ],
)
def test_what_is_not_of_the_known_shape_is_the_engines_to_refuse(fields: dict[str, Any]) -> None:
    assert refused(fields, Capabilities(multi_turn=True)) is None


@pytest.mark.parametrize(
    ("roles", "param"),
    [
        (("user",), None),
        (("system", "user"), None),
        (("developer", "system", "user"), None),
        (("user", "assistant"), None),
        (("assistant",), None),
        (("user", "system"), None),
        (("user", "user"), "messages[1]"),
        (("assistant", "user"), "messages[1]"),
        (("system", "user", "assistant", "user"), "messages[3]"),
        (("user", "assistant", "tool"), "messages[2]"),
        (("user", "assistant", "function"), "messages[2]"),
        (("assistant", "tool"), "messages[1]"),
        (("user", "tool"), "messages[1]"),
    ],
)
def test_a_conversation_only_for_models_that_take_it(roles: tuple[str, ...], param: str | None) -> None:
    assert refused(turns(*roles), ONE_TURN) == (None if param is None else ("multi_turn_unsupported", param))
    assert refused(turns(*roles), TEXT) is None


def test_a_role_that_is_no_text_is_left_to_the_engine() -> None:
    messages = [{"role": "user", "content": "x"}, {"role": ["user"], "content": "x"}, {"role": {}, "content": "x"}]
    assert refused({"messages": messages}, ONE_TURN) is None


TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [TOOL]}, "tools"),
        ({"tools": [TOOL], "tool_choice": "auto"}, "tools"),
        ({"tools": [TOOL], "tool_choice": {"type": "auto"}}, "tools"),
        ({"tools": [TOOL], "tool_choice": "none"}, None),
        ({"tools": [TOOL], "tool_choice": {"type": "none"}}, None),
        ({"functions": [TOOL["function"]]}, "functions"),
        ({"functions": [TOOL["function"]], "function_call": "none"}, None),
        ({"tools": []}, None),
        ({"tools": None}, None),
        ({"tool_choice": "required"}, None),
        ({}, None),
    ],
)
def test_tools_only_for_models_that_call_them(fields: dict[str, Any], param: str | None) -> None:
    expected = None if param is None else ("tools_unsupported", param)
    assert refused(fields | asks("Hi"), CALLS_NOTHING) == expected
    assert refused(fields | {"input": "Hi"}, CALLS_NOTHING) == expected
    assert refused(fields | asks("Hi"), TEXT) is None


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}}, "response_format"),
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": None}, None),
        ({"text": {"format": {"type": "json_schema", "schema": {}}}}, "text.format"),
        ({"text": {"format": {"type": "text"}, "verbosity": "low"}}, None),
        ({"text": {"verbosity": "low"}}, None),
        ({"output_config": {"format": {"type": "json_schema", "schema": {}}}}, "output_config.format"),
        ({"output_config": {"effort": "low"}}, None),
        ({"output_format": {"type": "json_schema", "schema": {}}}, "output_format"),
        ({"grammar": "root ::= [0-9]"}, "grammar"),
        ({"grammar": ""}, None),
        ({"json_schema": {}}, "json_schema"),
        ({"json_schema": None}, None),
        ({"guided_json": {"type": "object"}}, "guided_json"),
        ({"guided_regex": "a+"}, "guided_regex"),
        ({"guided_choice": ["a", "b"]}, "guided_choice"),
        ({"guided_grammar": "root ::= [0-9]"}, "guided_grammar"),
        ({"guided_json_object": True}, "guided_json_object"),
        ({"guided_json_object": False}, None),
        ({"structured_outputs": {"regex": "a+"}}, "structured_outputs"),
    ],
)
def test_a_form_only_for_models_that_can_be_held_to_one(fields: dict[str, Any], param: str | None) -> None:
    expected = None if param is None else ("structured_output_unsupported", param)
    assert refused(fields | asks("Hi"), FREE_ONLY) == expected
    assert refused(fields | {"prompt": "Hi"}, FREE_ONLY) == expected
    assert refused(fields | asks("Hi"), TEXT) is None


SOURCE = {"type": "base64", "media_type": "image/png", "data": "AA=="}
PICTURE = {"type": "image", "source": SOURCE}


@pytest.mark.parametrize(
    ("block", "param"),
    [
        (PICTURE, ""),
        ({"type": "document", "source": {**SOURCE, "media_type": "application/pdf"}}, ""),
        ({"type": "document", "source": {"type": "url", "url": "https://x/y.pdf"}}, ""),
        ({"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "x"}}, None),
        ({"type": "document", "source": {"type": "content", "content": [SAYS, PICTURE]}}, ".source.content[1]"),
        ({"type": "document", "source": {"type": "content", "content": "x"}}, None),
        ({"type": "document"}, None),
        ({"type": "tool_result", "tool_use_id": "t", "content": [SAYS, PICTURE]}, ".content[1]"),
        ({"type": "tool_result", "tool_use_id": "t", "content": "x"}, None),
        ({"type": "tool_result", "tool_use_id": "t", "content": [SAYS]}, None),
        ({"type": "tool_use", "id": "t", "name": "f", "input": {"content": [PICTURE]}}, None),
    ],
)
def test_images_in_blocks_of_anthropics(block: dict[str, Any], param: str | None) -> None:
    request = asks([SAYS, block])
    expected = None if param is None else ("modality_unsupported", f"messages[0].content[1]{param}")
    assert refused(request, TEXT) == expected
    assert refused(request, SEES.model_copy(update={"media_urls": True})) is None


def refused_prompt(prompt: Prompt, capabilities: Capabilities) -> tuple[str, str | None] | None:
    """The same of a request that was read."""
    try:
        check_prompt(prompt, capabilities, "m")
    except RoundhouseError as error:
        return error.entry.code, error.param
    return None


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [TOOL]}, None),
        ({"tools": [TOOL], "tool_choice": "auto"}, None),
        ({"tools": [TOOL], "tool_choice": "none"}, None),
        ({"tools": [TOOL], "tool_choice": {"type": "auto"}}, None),
        ({"tools": [TOOL], "tool_choice": {"type": "none"}}, None),
        ({"tools": [TOOL], "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto"}}}, None),
        ({"tools": [TOOL], "tool_choice": {"type": "allowed_tools", "mode": "auto"}}, None),
        ({"tool_choice": "required"}, None),
        ({"tools": [TOOL], "tool_choice": "required"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "allowed_tools", "mode": "required"}}, "tool_choice"),
        (
            {"tools": [TOOL], "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "required"}}},
            "tool_choice",
        ),
        ({"tools": [TOOL], "tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "f"}}, "tool_choice"),
        ({"functions": [TOOL["function"]], "function_call": {"name": "f"}}, "function_call"),
        ({"functions": [TOOL["function"]], "function_call": "auto"}, None),
    ],
)
def test_a_call_is_forced_only_where_the_engine_can(fields: dict[str, Any], param: str | None) -> None:
    expected = None if param is None else ("tools_unsupported", param)
    assert refused(fields | asks("Hi"), CALLS_FREELY) == expected
    assert refused(fields | {"input": "Hi"}, CALLS_FREELY) == expected
    assert refused(fields | asks("Hi"), TEXT) is None


SAID = User((Text("Hi"),), place="input[0]")


@pytest.mark.parametrize(
    ("prompt", "capabilities", "expected"),
    [
        (Prompt(turns=(SAID,), thinking="enabled"), TEXT, ("thinking_unsupported", "thinking")),
        (Prompt(turns=(SAID,), thinking="disabled"), TEXT, ("thinking_unsupported", "thinking")),
        (Prompt(turns=(SAID,), thinking="disabled"), THINKS, None),
        (Prompt(turns=(SAID,)), TEXT, None),
        (Prompt(turns=(SAID,), tools=(Tool("f"),)), CALLS_NOTHING, ("tools_unsupported", "tools")),
        (Prompt(turns=(SAID,), tools=(Tool("f"),), tool_choice=ToolChoice("none")), CALLS_NOTHING, None),
        (
            Prompt(turns=(SAID,), tools=(Tool("f"),), tool_choice=ToolChoice("auto")),
            CALLS_NOTHING,
            ("tools_unsupported", "tools"),
        ),
        (Prompt(turns=(SAID,), tools=(Tool("f"),)), TEXT, None),
        *(
            (
                Prompt(turns=(SAID,), tools=(Tool("f"),), tool_choice=ToolChoice(kind, "f")),
                CALLS_FREELY,
                None if kind in ("auto", "none") else ("tools_unsupported", "tool_choice"),
            )
            for kind in get_args(get_type_hints(ToolChoice)["kind"])
        ),
        (
            Prompt(turns=(SAID,), output_format=OutputFormat(place="text.format")),
            FREE_ONLY,
            ("structured_output_unsupported", "text.format"),
        ),
        (Prompt(turns=(SAID,), output_format=OutputFormat()), TEXT, None),
    ],
)
def test_a_request_that_was_read(prompt: Prompt, capabilities: Capabilities, expected: tuple[str, str] | None) -> None:
    assert refused_prompt(prompt, capabilities) == expected


@pytest.mark.parametrize(
    ("turn", "param"),
    [
        (User((Text("x"), Image("data:", place="input[1].content[1]")), place="input[1]"), "input[1].content[1]"),
        (User((Image("data:"),), place="input[1]"), "input[1]"),
        (ToolResult("c", (Image("data:"),), place="input[1]"), "input[1]"),
        (ToolResult("c", (Text("x"),), place="input[1]"), None),
    ],
)
def test_images_of_a_request_that_was_read(turn: Turn, param: str | None) -> None:
    expected = None if param is None else ("modality_unsupported", param)
    assert refused_prompt(Prompt(turns=(SAID, turn)), TEXT) == expected
    assert refused_prompt(Prompt(turns=(SAID, turn)), SEES) is None


def test_audio_of_a_request_that_was_read() -> None:
    prompt = Prompt(turns=(User((Audio("AA==", "wav"),), place="messages[0]"),))
    assert refused_prompt(prompt, SEES) == ("modality_unsupported", "messages[0]")
    assert refused_prompt(prompt, HEARS) is None


SYSTEM, ANSWER = System("be nice", place="p"), Assistant("Hello", place="p")
AGAIN = User((Text("And?"),), place="input[2]")


@pytest.mark.parametrize(
    ("turns_", "param"),
    [
        ((SAID,), None),
        ((SYSTEM, SAID), None),
        ((SAID, ANSWER), None),
        ((ANSWER,), None),
        ((SAID, SYSTEM), None),
        ((SAID, AGAIN), "input[2]"),
        ((ANSWER, AGAIN), "input[2]"),
        ((SYSTEM, SAID, ANSWER, AGAIN), "input[2]"),
        ((SAID, ToolResult("c", (Text("x"),), place="input[2]")), "input[2]"),
    ],
)
def test_a_conversation_that_was_read(turns_: tuple[Turn, ...], param: str | None) -> None:
    expected = None if param is None else ("multi_turn_unsupported", param)
    assert refused_prompt(Prompt(turns=turns_), ONE_TURN) == expected
    assert refused_prompt(Prompt(turns=turns_), TEXT) is None
