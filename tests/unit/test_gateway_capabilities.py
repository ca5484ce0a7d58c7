"""What a request holds against what its model takes."""

from __future__ import annotations

from typing import Any

import pytest

from controller.schema.admin import Capabilities
from controller.schema.errors import RoundhouseError
from gateway.capabilities import check_capabilities

TEXT = Capabilities()
SEES = Capabilities(modalities=("text", "image"))
HEARS = Capabilities(modalities=("text", "audio"))
THINKS = Capabilities(thinking_modes=("default", "enabled", "disabled"))
ONE_TURN = Capabilities(multi_turn=False)

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
