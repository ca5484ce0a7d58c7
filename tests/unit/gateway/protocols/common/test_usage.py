"""Token counts, as the families write them and as engines get them wrong."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.protocols.common.dialect import TokenEventCounter, Usage, UsageTally, usage_of

COUNTS = {"prompt_tokens": 7, "completion_tokens": 3}
NO_OBJECTS: list[Any] = [None, 7, "7", [7], True]


@pytest.mark.parametrize("value", NO_OBJECTS)
def test_what_is_no_object_tells_no_usage_and_changes_none(value: Any) -> None:
    assert usage_of(value) is None
    tally, told = UsageTally(), []
    for before in (None, COUNTS, COUNTS | {"completion_tokens": 4}):
        tally.note_usage(before, [])
        tally.note_usage(value, [])
        tally.note_usage(value, [{"finish_reason": "stop"}])
        told.append(tally.usage)
    assert told == [None, Usage(7, 3), Usage(7, 7)], "llama-server tells it of each choice"


def event(fields: Any) -> bytes:
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


def delta(finish: str | None = None, **fields: Any) -> bytes:
    return event({"choices": [{"index": 0, "delta": fields, "finish_reason": finish}]})


ROLE = delta(role="assistant", content=None)
EMPTY_ROLE = delta(role="assistant", content="")
TOKENS = [delta(content=f" word{number}") for number in range(9)]
END = delta(finish="stop")


def count(stream: bytes, size: int) -> int:
    counter = TokenEventCounter()
    for start in range(0, len(stream), size):
        counter.take_data(stream[start : start + size])
    return counter.count_tokens()


@pytest.mark.parametrize("size", [1, 2, 3, 7, 50, 100, 101, 102, 103, 400, 10_000])
def test_reads_may_be_cut_anywhere(size: int) -> None:
    stream = ROLE + b"".join(TOKENS)
    counter = TokenEventCounter()
    for start in range(0, len(stream), size):
        counter.take_data(stream[start : start + size])
    assert counter.events == 10
    assert counter.count_tokens() == 9


@pytest.mark.parametrize(
    ("stream", "tokens"),
    [
        *((b"", 0), (ROLE, 0), (EMPTY_ROLE + TOKENS[0], 1), (TOKENS[0], 1), (ROLE + b"".join(TOKENS) + END, 9)),
        (ROLE + b"".join(TOKENS) + TOKENS[0][:-5], 9),
        (b": waiting\n\n" * 5 + ROLE + b"".join(TOKENS), 9),
        (event({"choices": [], "prompt_progress": {"total": 100, "processed": 10}}) * 4 + TOKENS[0], 1),
        (delta(reasoning_content="hm") + delta(content="a"), 2),
        (delta(tool_calls=[{"function": {"name": "f", "arguments": ""}}]) + delta(tool_calls=[{"a": 1}]), 1),
        (event({"choices": [{"text": " a"}]}) * 3, 3),
        (event({"type": "message_start"}) + event({"delta": {"type": "text_delta", "text": "a"}}) * 2, 2),
        (event({"content": "a", "stop": False}) * 2, 2),
        (ROLE + event({"choices": [{"delta": {"content": "ab"}}], "timings": {"prompt_n": 5, "predicted_n": 7}}), 7),
    ],
)
def test_events_with_text_are_tokens(stream: bytes, tokens: int) -> None:
    assert count(stream, 10_000) == tokens


def test_text_of_the_model_is_no_key_and_a_long_beginning_is_not_kept() -> None:
    stream = ROLE + delta(content='"content": "x" and "predicted_n": 900') + TOKENS[0]
    assert count(stream, 10_000) == 2
    counter = TokenEventCounter()
    for _ in range(300):
        counter.take_data(b": " + b"x" * 1022 + b"\n\n")
    counter.take_data(TOKENS[0])
    assert counter.count_tokens() <= 301
