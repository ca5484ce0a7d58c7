"""What lists and searches need of items: texts, hits in them, and items without their media."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.storage.conversations.item_outline import Hit, find_hit, fold_text, fold_words, text_of, without_media

PNG = "data:image/png;base64,aGVsbG8="


def message(*parts: Any) -> dict[str, Any]:
    return {"type": "message", "role": "user", "id": "i", "content": list(parts)}


@pytest.mark.parametrize(
    ("item", "text"),
    [
        (message({"type": "input_text", "text": "a"}, {"type": "input_image", "image_url": PNG}), "a"),
        (message({"type": "output_text", "text": "a"}, {"type": "refusal", "refusal": "no"}), "a\nno"),
        (message({"type": "input_file", "filename": "f.txt", "file_data": "eA=="}), "f.txt"),
        (message({"type": "input_text", "text": 7}, "x", None), ""),
        ({"type": "function_call", "name": "f", "arguments": "{}", "call_id": "c"}, "f\n{}"),
        ({"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "o"}]}, "o"),
        ({"type": "custom_tool_call", "name": "f", "input": "i"}, "f\ni"),
        ({"type": "mcp_call", "name": "f", "arguments": "{}", "output": None}, "f\n{}"),
        ({"type": "reasoning", "summary": [{"text": "x"}], "content": "y"}, ""),
        ({"type": ["message"], "content": "x"}, ""),
    ],
)  # fmt: skip
def test_what_is_searched_of_an_item(item: dict[str, Any], text: str) -> None:
    assert text_of(item) == text


def test_media_are_left_out_and_the_rest_stays() -> None:
    text = {"type": "input_text", "text": "data:,x"}
    elsewhere = {"type": "input_image", "image_url": "https://example.org/a.png"}
    item = message(
        text,
        {"type": "input_image", "image_url": PNG, "detail": "low"},
        elsewhere,
        {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
        {"type": "input_file", "filename": "f.txt", "file_data": "data:text/plain;charset=utf-8;base64,eA=="},
        {"type": "input_file", "filename": "g.txt", "file_data": "eA=="},
    )
    before = repr(item)
    outline = without_media(item)
    assert outline == {
        **item,
        "content": [
            text,
            {"type": "input_image", "detail": "low", "omitted": {"media_type": "image/png", "bytes": 8}},
            elsewhere,
            {"type": "input_audio", "input_audio": {"format": "wav"},
             "omitted": {"media_type": "audio/wav", "bytes": 4}},
            {"type": "input_file", "filename": "f.txt", "omitted": {"media_type": "text/plain", "bytes": 4}},
            {"type": "input_file", "filename": "g.txt", "omitted": {"media_type": None, "bytes": 4}},
        ],
    }  # fmt: skip
    assert repr(item) == before
    result = {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_image", "image_url": PNG}]}
    assert without_media(result) == {
        **result,
        "output": [{"type": "input_image", "omitted": {"media_type": "image/png", "bytes": 8}}],
    }


@pytest.mark.parametrize(
    "item",
    [
        message({"type": "input_text", "text": PNG}),
        message({"type": "input_image", "file_id": "f"}, {"type": "input_image", "image_url": 7}),
        message({"type": "input_audio", "input_audio": None}, {"type": "input_audio", "input_audio": {"data": 7}}),
        message("x", None, {"type": ["input_image"], "image_url": PNG}),
        {"type": "function_call_output", "output": PNG},
    ],
)
def test_without_media_there_is_nothing_to_leave_out(item: dict[str, Any]) -> None:
    assert without_media(item) is None


@pytest.mark.parametrize(
    ("text", "words", "hit"),
    [
        ("one two three", "two", Hit("one ", "two", " three")),
        ("one two three", "three one", Hit("one two ", "three", "")),
        ("one two three", "four one", None),
        ("One\n\t TWO", "two", Hit("One ", "TWO", "")),
        ("ßß ß", "s", Hit("", "ß", "ß ß")),
        ("xßy", "sy", Hit("x", "ßy", "")),
        ("ﬁne ﬁn", "n", Hit("fi", "n", "e fin")),
        ("İstanbul", "stanbul", Hit("İ", "stanbul", "")),
        ("e\u0301té", "ÉTÉ", Hit("", "été", "")),
    ],
)
def test_where_a_text_has_what_is_searched(text: str, words: str, hit: Hit | None) -> None:
    assert find_hit(text, fold_words(words)) == hit


def test_a_hit_shows_a_part_of_a_long_text() -> None:
    text = "a" * 1000 + "needle" + "b" * 1000
    assert find_hit(text, fold_words("NEEDLE")) == Hit("a" * 80, "needle", "b" * 80)


def test_words_are_folded_and_counted_once() -> None:
    assert fold_words(" A  b\u3000a\tB\n") == (b"a", b"b")
    assert fold_words(" \n") == ()
    assert fold_text("\ud800") == b"\xed\xa0\x80"
