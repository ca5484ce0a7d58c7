"""Which media a request may give: data, and addresses only where the model declares that they are fetched."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from controller.schema.admin import Capabilities
from controller.schema.errors import RoundhouseError
from gateway.protocols.common.capabilities import check_capabilities, check_prompt
from gateway.protocols.common.conversation import Audio, Image, Part, Prompt, Text, ToolResult, User
from gateway.protocols.common.large_body import BLOCK_BYTES, LargeBody

SEES = Capabilities(modalities=("text", "image", "audio"))
TEXT = {"type": "text", "text": "http://127.0.0.1/is only text"}
DATA = (
    "data:image/png;base64,iVBORw0KGgo=",
    "DATA:image/png,%00",
    "iVBORw0KGgo=",
    "_-8=",
    "aGkA" * 16 + "\r\naGk=",
    "/9j/4AAQSkZJRg==",
    "",
)
ADDRESSES = (
    "http://127.0.0.1:8080/x.png",
    "https://x/y.png",
    "HTTP://x",
    "httpx",
    "file:///etc/passwd",
    "ftp://x",
    " http://x",
    "\n" * 70 + "http://x",
    "h" + "\n" * 70 + "ttp://x",
    "\x01http://x",
    "\\u0068ttp",
    "s3://bucket/x",
    "//x/y.png?",
    "x.png",
)


def refused(check: Callable[[], None]) -> str | None:
    """The `param` of the refusal, after its code where that is another; None: nothing is refused."""
    try:
        check()
    except RoundhouseError as error:
        return f"{error.entry.code} {error.param}".removeprefix("invalid_request ")
    return None


def found(*parts: Any, capabilities: Capabilities = SEES) -> str | None:
    """The same of a user's message with these parts, passed through."""
    fields = {"messages": [{"role": "user", "content": [TEXT, *parts]}]}
    return refused(lambda: check_capabilities(fields, capabilities, "m"))


@pytest.mark.parametrize("value", DATA)
def test_data_passes_in_every_form(value: str) -> None:
    assert [found(part) for part in parts_with(value)] == [None] * len(parts_with(value))


@pytest.mark.parametrize("value", ADDRESSES)
def test_an_address_is_refused_in_every_form(value: str) -> None:
    places = [found(part) for part in parts_with(value)]
    assert places == ["messages[0].content[1]"] * (len(places) - 2) + [
        "messages[0].content[1].content[1]",
        "messages[0].content[1].source.content[0]",
    ]
    declared = SEES.model_copy(update={"media_urls": True})
    assert {found(part, capabilities=declared) for part in parts_with(value)} == {None}


def parts_with(value: str) -> list[Any]:
    image = {"type": "image_url", "image_url": {"url": value}}
    return [
        image,
        {"type": "image_url", "image_url": value},
        {"image_url": {"url": value}},
        {"type": "input_image", "image_url": value},
        {"type": "image", "source": {"type": "url", "url": value}},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": value}},
        {"type": "input_audio", "input_audio": {"data": value, "format": "wav"}},
        {"type": "input_audio", "input_audio": {"url": value}},
        {"type": "audio_url", "audio_url": {"url": value}},
        {"type": "input_video", "input_video": {"data": value}},
        {"type": "video_url", "video_url": {"url": value}},
        {"type": "tool_result", "tool_use_id": "t", "content": [TEXT, image]},
        {"type": "document", "source": {"type": "content", "content": [image]}},
    ]


@pytest.mark.parametrize(
    "part",
    [
        {"type": "tool_use", "id": "t", "name": "open", "input": {"url": "http://x"}, "source": "http://x"},
        {"type": "search_result", "source": "https://x/page", "title": "x", "content": [TEXT]},
        {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "http://x is down"}},
        {"type": "tool_result", "tool_use_id": "t", "content": "http://x"},
        {"type": "image_url", "image_url": 7},
        {"type": "image_url"},
        {"type": "image_url", "image_url": {"url": None}},
        "http://x",
        None,
    ],
    ids=str,
)
def test_what_is_no_medium_passes(part: Any) -> None:
    assert found(part) is None


def test_a_model_that_takes_text_alone_is_left_to_its_engine() -> None:
    part = {"type": "video_url", "video_url": {"url": "http://x"}}
    assert found(part, capabilities=Capabilities()) is None
    assert found(part, capabilities=Capabilities(modalities=("image",))) == "messages[0].content[1]"


@pytest.mark.parametrize("value", ADDRESSES)
@pytest.mark.parametrize("medium", [Image, lambda value, place: Audio(value, "wav", place)], ids=["image", "audio"])
def test_a_translated_request_is_held_to_the_same(medium: Any, value: str) -> None:
    def place_of(turn: User | ToolResult, capabilities: Capabilities = SEES) -> str | None:
        return refused(lambda: check_prompt(Prompt(turns=(turn,)), capabilities, "m"))

    def parts(value: str, place: str) -> tuple[Part, ...]:
        part: Part = Image(value, place=place) if medium is Image else medium(value, place)
        return Text("http://x"), part

    assert place_of(User(parts(value, "input[0].content[1]"))) == "input[0].content[1]"
    assert place_of(User(parts(value, ""), place="input[0]")) == "input[0]"
    assert place_of(ToolResult("t", parts(value, "input[3].output[1]"))) == "input[3].output[1]"
    assert place_of(User(parts(value, "")), SEES.model_copy(update={"media_urls": True})) is None
    assert {place_of(User(parts(each, ""))) for each in DATA} == {None}


@pytest.mark.parametrize("at", [0, 4090, *range(4094, 4098), BLOCK_BYTES - 1])
@pytest.mark.parametrize(
    ("value", "place"),
    [
        ("data:image/png;base64," + "iVBORw0KGgo" * 40_000, None),
        ("iVBORw0KGgo" * 40_000, None),
        ("http://x/" + "b" * 400_000, "messages[0].content[1]"),
        ("http:\\u002f\\u002fx/" + "b" * 400_000, "messages[0].content[1]"),
        ("\\u0068ttp://x/" + "b" * 400_000, "messages[0].content[1]"),
        ("h\\u0074tp://x/" + "b" * 400_000, "messages[0].content[1]"),
        ("      http://x/" + "b" * 400_000, "messages[0].content[1]"),
    ],
    ids=["data", "base64", "address", "escapes", "first escaped", "second escaped", "spaces"],
)
def test_a_large_body_s_outline_tells_the_same(value: str, place: str | None, at: int) -> None:
    head = '{"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}, {"image_url": {"url": "'
    tail = '"}}]}]}'
    body = LargeBody()
    body.add_part((" " * max(0, at - len(head)) + head + value + tail).encode())
    body.finish()
    assert len(body.outline) < 20_000 + at
    assert refused(lambda: check_capabilities(json.loads(body.outline), SEES, "m")) == place
