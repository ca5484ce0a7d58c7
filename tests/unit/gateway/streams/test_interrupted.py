"""Streams whose process ended without a word: what of them is whole, and how they are ended."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.streams.errors import gateway_restarted
from gateway.streams.interrupted import cut_torn_event, end_events, is_complete

CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
RESPONSE: dict[str, Any] = {
    "id": "resp_1",
    "created_at": 7,
    "status": "in_progress",
    "output": [],
    "error": None,
    "metadata": {"sequence_number": "9"},
}


def _event(number: int, kind: str, **fields: Any) -> bytes:
    data = json.dumps({"type": kind, "sequence_number": number, **fields}, separators=(",", ":"))
    return f"event: {kind}\ndata: {data}\n\n".encode()


def _data_of(events: bytes) -> list[Any]:
    lines = [line for line in events.decode().split("\n") if line.startswith("data: {")]
    return [json.loads(line.removeprefix("data: ")) for line in lines]


@pytest.mark.parametrize("torn", [b"", b"d", b"data: x", b"data: x\n"])
def test_a_torn_event_is_cut_off(torn: bytes) -> None:
    assert cut_torn_event(b"data: a\n\n: ka\n\n" + torn) == b"data: a\n\n: ka\n\n"


@pytest.mark.parametrize(
    ("path", "last", "is_last"),
    [
        (CHAT, b"data: [DONE]\n\n", True),
        (CHAT, b"data:[DONE]\r\n\r\n", True),
        (CHAT, b'data: {"choices":[]}\n\n', False),
        (CHAT, b'data: {"choices":[{"text":"data: [DONE]"}]}\n\n', False),
        (CHAT, b": ka\n\n", False),
        (RESPONSES, b"data: [DONE]\n\n", True),
        (MESSAGES, b'event: message_stop\ndata: {"type": "message_stop"}\n\n', True),
        (MESSAGES, b'event: error\ndata: {"type":"error","error":{}}\n\n', True),
        (MESSAGES, b'event: ping\ndata: {"type": "ping"}\n\n', False),
    ],
)
def test_a_complete_stream_is_known_by_its_last_event(path: str, last: bytes, is_last: bool) -> None:
    assert is_complete(path, b"data: x\n\n" + last) is is_last


def test_a_chat_ends_with_an_error_and_done() -> None:
    events = end_events(CHAT, b"data: {}\n\n", gateway_restarted(), "req-1")
    assert events.endswith(b"\n\ndata: [DONE]\n\n")
    [data] = _data_of(events)
    assert (data["error"]["code"], data["error"]["request_id"]) == ("gateway_restarted", "req-1")


def test_a_message_ends_with_an_error_event() -> None:
    events = end_events(MESSAGES, b"", gateway_restarted(), "req-1")
    assert events.startswith(b"event: error\n")
    [data] = _data_of(events)
    assert (data["type"], data["error"]["code"]) == ("error", "gateway_restarted")


def test_a_response_ends_with_the_next_numbers() -> None:
    sent = _event(0, "response.created", response=RESPONSE) + _event(1, "response.output_text.delta", delta="x")
    events = end_events(RESPONSES, sent + b": ka\n\n", gateway_restarted(), "req-1")
    error, failed = _data_of(events)
    assert (error["type"], error["sequence_number"], error["code"]) == ("error", 2, "gateway_restarted")
    assert (failed["type"], failed["sequence_number"]) == ("response.failed", 3)
    assert failed["response"]["id"] == "resp_1"
    assert failed["response"]["error"]["reason"] == "gateway_restarted"
    assert is_complete(RESPONSES, events)


def test_a_response_whose_beginning_is_gone_ends_with_the_error_alone() -> None:
    [error] = _data_of(end_events(RESPONSES, _event(41, "response.output_text.delta"), gateway_restarted(), "req-1"))
    assert error["sequence_number"] == 42
    [error] = _data_of(end_events(RESPONSES, b"", gateway_restarted(), "req-1"))
    assert error["sequence_number"] == 0
