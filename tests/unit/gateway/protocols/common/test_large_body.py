"""Large bodies: what is read of them is small, and what is sent on is what came."""

from __future__ import annotations

import json
from typing import Any

import pytest

from controller.schema.errors import RoundhouseError
from gateway.protocols.common.large_body import BLOCK_BYTES, LARGE_BYTES, LargeBody
from gateway.protocols.common.request import parse_request

CODE = 'def f(x):\n\treturn "a\\n%s" % x  # comment \\\n'
IMAGE = "iVBORw0KGgo+/" * 80_000
TEXTS = {
    "base64": IMAGE,
    "prose": "The quick brown fox jumps over a lazy dog. " * 25_000,
    "code": CODE * 25_000,
    "code within JSON": json.dumps({"file": CODE * 25_000}),
    "Chinese": "敏捷的棕色狐狸" * 50_000,
    "pairs of surrogates": "😀🦊" * 50_000,
    "lines": "x\n" * 500_000,
}


def large_body(raw: bytes, part_bytes: int = 100_000) -> LargeBody:
    """As it comes in parts."""
    body = LargeBody()
    for start in range(0, len(raw), part_bytes):
        body.add_part(raw[start : start + part_bytes])
    body.finish()
    return body


def chat(text: str) -> dict[str, Any]:
    """A request with a text between others."""
    return {"model": "m", "messages": [{"role": "user", "content": f"See: {text} What is it?"}], "max_tokens": 4}


@pytest.mark.parametrize("is_ascii", [True, False], ids=["escaped", "UTF-8"])
@pytest.mark.parametrize("kind", TEXTS)
def test_a_long_string_is_left_out_and_put_back(kind: str, is_ascii: bool) -> None:
    fields = chat(TEXTS[kind])
    raw = json.dumps(fields, ensure_ascii=is_ascii).encode()
    body = large_body(raw)
    assert len(body.outline) < max(32 * 1024, len(raw) // 8)
    assert b"".join(body.fill(body.outline)) == body.join() == raw
    outline_fields = json.loads(body.outline)
    text = outline_fields["messages"][0]["content"]
    assert (text[:5], text[-11:]) == ("See: ", "What is it?")
    assert body.fill_text(text) == fields["messages"][0]["content"]
    body.fill_fields(outline_fields, kept_names=())
    assert outline_fields == fields


@pytest.mark.parametrize("kind", TEXTS)
def test_what_was_left_out_may_move_into_json_within_json(kind: str) -> None:
    fields = chat(TEXTS[kind])
    body = large_body(json.dumps(fields).encode())
    outline = json.loads(body.outline)
    for depth in range(1, 4):
        text = json.dumps(outline)
        for _ in range(depth - 1):
            text = json.dumps({"arguments": text})
        filled = json.loads(b"".join(body.fill(text.encode())))
        for _ in range(depth - 1):
            filled = json.loads(filled["arguments"])
        assert filled == fields, depth


def test_media_are_counted_apart_from_text() -> None:
    image, text = (large_body(json.dumps(chat(TEXTS[kind])).encode()) for kind in ("base64", "prose"))
    assert image.text_bytes < 32 * 1024
    assert image.text_bytes + image.media_bytes == image.size
    assert text.text_bytes == text.size


@pytest.mark.parametrize(
    "fields",
    [
        {"model": "m", "prompt": list(range(100_000))},
        {"model": "m", "messages": [{"role": "user", "content": "hello"}] * 20_000},
        {"model": "m", "spaces": " " * 600_000},
        {"model": "m", "backslashes": "\\" * 300_000},
        {"model": "m", "quotes": '"' * 300_000},
    ],
    ids=lambda fields: str(list(fields)[1]),
)
def test_what_is_no_long_text_stays(fields: dict[str, Any]) -> None:
    raw = json.dumps(fields).encode()
    body = large_body(raw)
    assert json.loads(b"".join(body.fill(body.outline))) == fields
    body.fill_fields(outline := json.loads(body.outline), kept_names=())
    assert outline == fields


def test_keys_of_objects_are_filled_in_their_order() -> None:
    key = TEXTS["prose"]
    fields: dict[str, Any] = {"model": "m", "tools": [{"a": 1, key: {"x": 1, key * 2: key}, "data": key, "b": 2}]}
    body = large_body(json.dumps(fields).encode())
    outline = json.loads(body.outline)
    assert outline != fields
    tool = outline["tools"][0]
    body.fill_fields(outline, kept_names=("data",))
    assert outline["tools"][0] is tool
    assert body.fill_text(tool["data"]) == key != tool["data"]
    assert json.dumps(outline) == json.dumps({"model": "m", "tools": [{**fields["tools"][0], "data": tool["data"]}]})


def test_equal_beginnings_have_equal_outlines_however_they_came() -> None:
    raw = json.dumps(chat(TEXTS["code"])).encode()
    outlines = {large_body(raw, part_bytes).outline for part_bytes in (999, 65536, 262144, len(raw))}
    assert len(outlines) == 1


def test_a_body_that_holds_what_looks_like_a_mark_is_read_whole() -> None:
    text = "\x01roundhouse-left-out-000000; and \\u0001roundhouse-left-out-000000;"
    raw = json.dumps(chat(text + TEXTS["prose"])).encode()
    body = large_body(raw)
    assert body.outline == raw
    assert b"".join(body.fill(raw)) == raw


def test_whoever_asks_for_the_whole_body_gets_it() -> None:
    fields = chat(TEXTS["code"])
    raw = json.dumps(fields).encode()
    request = parse_request(large_body(raw), may_stream=True)
    assert request.outline_fields != fields
    assert (request.raw, request.fields, request.size) == (raw, fields, len(raw))
    assert (request.model, len(raw) > LARGE_BYTES) == ("m", True)


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (json.dumps(chat(IMAGE)).encode()[:-1] + b",}", f"byte {len(json.dumps(chat(IMAGE)))}"),
        (json.dumps(chat(IMAGE)).encode()[:-1] + b"\xff}", f"byte {len(json.dumps(chat(IMAGE))) - 1} is wrong"),
    ],
    ids=["not JSON", "not UTF-8"],
)
def test_the_place_of_what_is_wrong_is_the_bodys(raw: bytes, words: str) -> None:
    with pytest.raises(RoundhouseError, match=words) as caught:
        parse_request(large_body(raw), may_stream=True)
    assert caught.value.entry.code == "invalid_json"


def test_text_that_turns_out_to_be_no_utf_8_is_refused_where_it_is_read() -> None:
    raw = json.dumps(chat(TEXTS["prose"])).encode()
    middle = BLOCK_BYTES // 2
    body = large_body(raw[:middle] + b"\xff" + raw[middle + 1 :])
    with pytest.raises(RoundhouseError, match="not JSON's") as caught:
        body.fill_fields(json.loads(body.outline), kept_names=())
    assert caught.value.entry.code == "invalid_json"


def test_its_memory_goes_back_once() -> None:
    freed: list[bool] = []
    body = LargeBody(lambda: freed.append(True))
    body.add_part(b"x" * BLOCK_BYTES)
    body.finish()
    body.free()
    body.free()
    assert freed == [True]
    with pytest.raises(RuntimeError, match="freed"):
        body.join()  # not the outline in its place
