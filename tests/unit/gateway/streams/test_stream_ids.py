"""Ids of streams: what the header may say, and which model it names."""

from __future__ import annotations

import pytest

from controller.schema.errors import RoundhouseError
from gateway.streams.stream_ids import LONGEST_ID, find_stream_id, list_prefixes, name_model

HEADER = b"x-conversation-id"


def test_an_id_is_the_headers_text() -> None:
    assert find_stream_id([(b"host", b"h"), (HEADER, b" conv/1::m \t")]) == "conv/1::m"
    assert find_stream_id([(HEADER, "häuser".encode())]) == "häuser"
    assert find_stream_id([(HEADER, b"  ")]) is None
    assert find_stream_id([(b"host", b"h")]) is None


@pytest.mark.parametrize("value", [b"\xff", b"a\x01b", b"x" * (LONGEST_ID + 1)])
def test_what_cannot_be_an_id_is_refused(value: bytes) -> None:
    with pytest.raises(RoundhouseError) as caught:
        find_stream_id([(HEADER, value)])
    assert caught.value.entry.code == "invalid_request"
    assert caught.value.param == "X-Conversation-Id"


def test_an_id_names_a_model_after_the_separator() -> None:
    assert name_model([(HEADER, b"conv::org/m:Q8_0")]) == "org/m:Q8_0"
    assert name_model([(HEADER, b"conv::")]) is None
    assert name_model([(HEADER, b"conv")]) is None
    assert name_model([]) is None


def test_an_id_is_looked_up_by_what_stands_before_each_separator() -> None:
    assert list_prefixes("a::b::c") == ["a", "a::b"]
    assert list_prefixes("a:b") == []
    assert list_prefixes("::b") == []
