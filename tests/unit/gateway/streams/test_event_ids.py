"""`id:` lines: one in each event, with the offset after it; without them the bytes are the stream's."""

from __future__ import annotations

import re

import pytest

from gateway.streams.event_ids import add_ids

STREAM = b'data: {"a":1}\n\n: ka\n\nevent: x\ndata: y\n\ndata: [DONE]\n\n'


def test_each_event_gets_the_offset_after_it() -> None:
    assert add_ids(b"data: a\n\n: ka\n\n", 100) == b"data: a\nid: 109\n\n: ka\nid: 115\n\n"
    assert add_ids(b"data: a\r\n\r\n", 0) == b"data: a\r\nid: 11\n\r\n"
    assert add_ids(b"", 5) == b""


@pytest.mark.parametrize("offset", range(len(STREAM) + 1))
def test_without_the_lines_the_bytes_are_the_streams(offset: int) -> None:
    numbered = add_ids(STREAM[offset:], offset)
    assert re.sub(rb"id: \d+\n", b"", numbered) == STREAM[offset:]
    for number in map(int, re.findall(rb"id: (\d+)\n", numbered)):
        assert STREAM[:number].endswith(b"\n\n")
