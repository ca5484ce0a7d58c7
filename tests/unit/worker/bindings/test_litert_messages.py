"""OpenAI's messages in LiteRT-LM's form."""

from __future__ import annotations

import json
from typing import Any

import litert_lm
import pytest

from worker.engine import Piece
from worker.engines.litert_lm import answer_of, messages_for, piece_of
from worker.errors import RequestError
from worker.schema import ChatRequest, parse_request

PNG = "iVBORw0KGgo="


def rendered(*messages: dict[str, Any], images: bool = True, audio: bool = False) -> list[dict[str, Any]]:
    request = parse_request(ChatRequest, json.dumps({"messages": messages}).encode())
    return messages_for(request.messages, images=images, audio=audio)


def picture(url: Any) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}


def sound(**audio: Any) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "input_audio", "input_audio": audio}]}


def call(arguments: Any, name: str = "f", number: str = "1") -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    calls = [{"id": number, "type": "function", "function": function}]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def test_parts_are_as_the_library_writes_them() -> None:
    content = litert_lm.Content
    parts = [
        {"type": "text", "text": "look"},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}},
    ]
    wanted = litert_lm.Contents([content.Text("look"), content.ImageBytes(b"\x89PNG\r\n\x1a\n")]).to_json()
    assert rendered({"role": "user", "content": parts}) == [{"role": "user", "content": wanted}]
    answer = {"role": "tool", "tool_call_id": "1", "content": '{"a": 1}'}
    wanted = [content.ToolResponse("g", {"a": 1}).to_json()]
    assert rendered(call("{}", "f", "0"), call("{}", "g"), answer)[2] == {"role": "tool", "content": wanted}
    wanted = litert_lm.ToolCall("f", {"a": [1]}).to_json()
    assert rendered(call('{"a": [1]}'))[0]["tool_calls"] == rendered(call({"a": [1]}))[0]["tool_calls"] == [wanted]


def test_audio_is_as_the_library_writes_it() -> None:
    wanted = litert_lm.Contents([litert_lm.Content.AudioBytes(b"RIFF")]).to_json()
    assert rendered(sound(data="UklGRg==", format="wav"), audio=True) == [{"role": "user", "content": wanted}]


def test_texts_of_all_roles_are_rendered() -> None:
    content = [{"type": "text", "text": "be"}]
    assert rendered({"role": "developer", "content": "be"})[0] == {"role": "system", "content": content}
    for empty in ("", None):
        assert rendered({"role": "user", "content": empty})[0]["content"] == []
    result = rendered(call(""), {"role": "tool", "tool_call_id": "1", "content": "no JSON"})[1]
    assert result["content"][0]["response"] == "no JSON"


PART = "messages[0].content[0]"
ARGUMENTS = "messages[0].tool_calls[0].function.arguments"
TOOL = {"role": "tool", "tool_call_id": "1"}
IMAGE = picture(f"data:image/png;base64,{PNG}")


@pytest.mark.parametrize(
    ("message", "media", "place", "words"),
    [
        (picture("https://x/a.png"), "images", f"{PART}.image_url", "data URL"),
        (picture("data:image/png,abc"), "images", f"{PART}.image_url", "data URL"),
        (picture("data:text/plain;base64,AA=="), "images", f"{PART}.image_url", "data URL"),
        (picture(None), "images", f"{PART}.image_url", "data URL"),
        (picture("data:image/png;base64,A!"), "images", f"{PART}.image_url", "not base64"),
        (IMAGE, "", f"{PART}.type", "reads text, not image_url"),
        (IMAGE | TOOL, "images", f"{PART}.type", "reads text in a tool's result, not image_url"),
        (sound(data="A!", format="wav"), "images audio", f"{PART}.input_audio", "The audio is not base64"),
        (sound(format="wav"), "images audio", f"{PART}.input_audio", "as base64 in `data`"),
        (sound(data=""), "images audio", f"{PART}.input_audio", "as base64 in `data`"),
        (sound(data=5), "images audio", f"{PART}.input_audio", "as base64 in `data`"),
        (sound(data="UklGRg=="), "images", f"{PART}.type", "reads text and images, not input_audio"),
        (sound(data="UklGRg==") | TOOL, "images audio", f"{PART}.type", "text in a tool's result"),
        (call("{"), "images", ARGUMENTS, "not JSON"),
        *((message, "images", ARGUMENTS, "not a JSON object") for message in (call("[1]"), call('"a"'), call([1]))),
        ({"role": "assistant", "tool_calls": ["x"]}, "images", "messages[0].tool_calls[0]", "`function` with a `name`"),
    ],
)
def test_messages_that_litert_cannot_take_are_refused(
    message: dict[str, Any], media: str, place: str, words: str
) -> None:
    with pytest.raises(RequestError, match=words) as raised:
        rendered(message, images="images" in media, audio="audio" in media)
    assert raised.value.param == place


def test_answers_are_read_with_thoughts_and_calls() -> None:
    assert piece_of({"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}, 0) == Piece("ab")
    assert piece_of({"content": "a", "channels": {"thought": "t"}}, 0) == Piece("a", "t")
    said = {"tool_calls": [litert_lm.ToolCall("f", {"ä": 1}).to_json(), litert_lm.ToolCall("g", {}).to_json()]}
    calls = piece_of(said, 3).tool_calls
    expected = [(3, {"name": "f", "arguments": '{"ä": 1}'}), (4, {"name": "g", "arguments": "{}"})]
    assert [(each["index"], each["function"]) for each in calls] == expected
    assert len({each["id"] for each in calls}) == 2
    assert [len(piece_of(said, before, 1).tool_calls) for before in (0, 1)] == [1, 0]


def test_an_answer_that_comes_back_is_the_one_that_was_given() -> None:
    given = [
        Piece("Let "),
        Piece("me see", tool_calls=piece_of({"tool_calls": [litert_lm.ToolCall("f", {}).to_json()]}, 0).tool_calls),
    ]
    [call] = given[1].tool_calls
    back = {"role": "assistant", "content": "Let me see", "tool_calls": [call]}
    assert rendered(back) == [answer_of(given)]
    assert rendered({"role": "assistant", "content": "a"}) == [answer_of([Piece("a"), Piece(finish_reason="stop")])]
