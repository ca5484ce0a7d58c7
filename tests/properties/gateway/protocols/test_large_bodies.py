"""Whatever a large body holds: what is sent on is what came, and nothing in it ends the string that it stands in."""

from __future__ import annotations

import json
import re
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.protocols.common.large_body import LargeBody
from tests.support.campaign import campaign_count

PIECES = ['"', "\\", '\\"', "\n", "\x00", "u0041", "{", '":"', "},", "ä", "敏", "😀", "true", "0", " ", "\ud83d"]
PIECES += ["plain text, and more of it ", "aGVsbG8gd29ybGQ", "\x01roundhouse-left-out-000000;", "\\u0001", "}]"]
patterns = st.lists(st.sampled_from(PIECES) | st.text(max_size=4), min_size=1, max_size=6).map("".join).filter(bool)
long_texts = st.builds(lambda pattern, size: pattern * (size // len(pattern) + 1), patterns, st.integers(0, 40_000))
leaves = long_texts | st.integers() | st.booleans() | st.none() | st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(patterns, inner, max_size=3), max_leaves=5
)
part_sizes = st.sampled_from([1 << 10, 50_001, 1 << 20])


def body_of(raw: bytes, part_bytes: int) -> LargeBody:
    """In parts of this size."""
    body = LargeBody()
    for start in range(0, len(raw), part_bytes):
        body.add_part(raw[start : start + part_bytes])
    body.finish()
    return body


@settings(max_examples=campaign_count(60, 5_000), deadline=None)
@given(values, st.booleans(), part_sizes)
def test_valid_bodies_come_back_whole(value: Any, is_ascii: bool, part_bytes: int) -> None:
    fields = {"model": "m", "value": value}
    raw = json.dumps(fields, ensure_ascii=is_ascii).encode("utf-8", "surrogatepass")
    body = body_of(raw, part_bytes)
    assert b"".join(body.fill(body.outline)) == body.join() == raw
    try:
        raw.decode()
    except UnicodeDecodeError:
        return  # half a pair of surrogates, as bytes: no JSON
    outline = json.loads(body.outline)
    nested = json.dumps({"arguments": json.dumps(outline)}).encode()
    assert json.loads(json.loads(b"".join(body.fill(nested)))["arguments"]) == json.loads(raw)
    body.fill_fields(outline, kept_names=())
    assert outline == json.loads(raw)


@settings(max_examples=campaign_count(60, 5_000), deadline=None)
@given(st.lists(patterns | long_texts, min_size=1, max_size=6), part_sizes)
def test_of_invalid_bodies_nothing_ends_the_string_that_it_is_put_into(pieces: list[str], part_bytes: int) -> None:
    raw = b'{"model":"m","value":' + "".join(pieces).encode("utf-8", "surrogatepass")
    body = body_of(raw, part_bytes)
    assert b"".join(body.fill(body.outline)) == raw
    # Of what cannot be read, nothing is sent on; but what is left out could be put into another string all the same.
    for mark in {each.split(b";")[0] + b";" for each in body.outline.split(b"\\u0001roundhouse")[1:]}:
        filled = b"".join(body.fill(b'{"a":"\\u0001roundhouse%b","b":1}' % mark))
        inside = filled.removeprefix(b'{"a":"').removesuffix(b'","b":1}')
        rest = re.sub(rb"\\.", b"", inside, flags=re.DOTALL)
        assert b'"' not in rest
        assert b"\\" not in rest, "it ends with half an escape"
