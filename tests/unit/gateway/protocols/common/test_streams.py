"""Errors in streams that are decoded event by event."""

from __future__ import annotations

import json

import pytest

from gateway.protocols.chat.dialect import ChatCollector


@pytest.mark.parametrize(
    ("event", "error"),
    [
        (b"event: error\ndata: out of memory\n\n", {"message": "out of memory"}),
        (b"event: error\ndata:\n\n", {"message": "The engine failed."}),
        (b"error: out of memory\n\n", {"message": "out of memory"}),
        (b'error: {"error": {"message": "m"}}\n\n', {"message": "m"}),
        (b'data: {"error": {"message": "m"}}\n\n', {"message": "m"}),
        (b'data: {"error": "m"}\n\n', {"message": "m"}),
    ],
)
def test_an_error_event_is_the_answer_of_a_stream_that_is_collected(event: bytes, error: dict[str, str]) -> None:
    collector = ChatCollector(is_chat=True)
    collector.feed_data(b'data: {"choices": [{"index": 0, "delta": {"content": "The"}}]}\n\n' + event)
    result = collector.build_result()
    assert result is not None
    status, body = result
    assert (status >= 400, json.loads(body)) == (True, {"error": error})


def test_an_event_that_is_no_json_is_an_error_of_the_server() -> None:
    """It said something, and nobody knows what."""
    collector = ChatCollector(is_chat=True)
    collector.feed_data(b"data: what is an error:\n\n")
    result = collector.build_result()
    assert result is not None
    assert result[0] == 502
    assert b"no JSON" in result[1]
