"""Calls of tools for Anthropic's clients, however an engine numbers and mixes them."""

from __future__ import annotations

import json

import pytest

from gateway.protocols.anthropic.via_chat import MESSAGES_VIA_CHAT
from tests.support.messages_schema import checked_events
from tests.support.messages_transcripts import (
    BEGUN,
    TEXT,
    Fields,
    call,
    chunk,
    ended,
    grew,
    lines,
    request_of,
    started,
    stopped,
    streamed,
)


def test_calls_that_overlap_come_one_after_the_other() -> None:
    out = streamed(
        chunk(call(0, "", "f")),
        chunk(call(1, "", "g")),
        chunk(call(0, '{"x"')),
        chunk(call(1, '{"y":')),
        chunk(call(2, "{}", "h")),
        chunk({"content": "So"}),
        chunk({"content": "."}),
        chunk(call(0, ":1}")),
        chunk(call(1, "2}")),
        chunk(call(0, "late")),
        chunk({}, "tool_calls"),
    )
    assert out == lines(
        BEGUN,
        started(0, type="tool_use", id="id0", name="f", input={}),
        grew(0, "input_json_delta", partial_json='{"x"'),
        grew(0, "input_json_delta", partial_json=":1}"),
        stopped(0),
        started(1, type="tool_use", id="id1", name="g", input={}),
        grew(1, "input_json_delta", partial_json='{"y":'),
        grew(1, "input_json_delta", partial_json="2}"),
        stopped(1),
        started(2, type="tool_use", id="id2", name="h", input={}),
        grew(2, "input_json_delta", partial_json="{}"),
        stopped(2),
        started(3, **TEXT),
        grew(3, "text_delta", text="So."),
        stopped(3),
        *ended("tool_use"),
    )


def test_what_waits_for_a_call_that_is_never_whole_comes_at_the_end() -> None:
    out = streamed(
        chunk(call(0, '{"cut', "f")), chunk(call(1, "", "g")), chunk(call(2, "[", "h")), chunk({}, "length"),
    )  # fmt: skip
    assert out == lines(
        BEGUN,
        started(0, type="tool_use", id="id0", name="f", input={}),
        grew(0, "input_json_delta", partial_json='{"cut'),
        stopped(0),
        started(1, type="tool_use", id="id1", name="g", input={}),
        stopped(1),
        started(2, type="tool_use", id="id2", name="h", input={}),
        grew(2, "input_json_delta", partial_json="["),
        stopped(2),
        *ended("max_tokens"),
    )


@pytest.mark.parametrize("place", [{"index": 0}, {}])
def test_calls_of_one_number_are_as_many_as_they_have_ids(place: Fields) -> None:
    # As Gemini's compatible endpoint and older versions of Ollama send them.
    parts: list[Fields] = [
        {"id": "a", "function": {"name": "f", "arguments": '{"x":1'}},
        {"id": "a", "function": {"arguments": "}"}},
        {"id": "b", "function": {"name": "g", "arguments": "{"}},
        {"id": "", "function": {"arguments": "}"}},
        {"id": "c", "function": {"name": "f", "arguments": "{}"}},
    ]
    chunks = [chunk({"tool_calls": [{**place, **part}]}) for part in parts]
    out = streamed(*chunks, chunk({}, "tool_calls"))
    blocks = [each["content_block"] for each in checked_events(out) if each["type"] == "content_block_start"]
    assert [(block["id"], block["name"]) for block in blocks] == [("a", "f"), ("b", "g"), ("c", "f")]
    made = MESSAGES_VIA_CHAT.open_collector(request_of())
    assert made is not None
    for each in (*chunks, chunk({}, "tool_calls"), b"data: [DONE]\n\n"):
        made.feed_data(each)
    result = made.build_result()
    assert result is not None
    told = [(block["id"], block["name"], block["input"]) for block in json.loads(result[1])["content"]]
    assert told == [("a", "f", {"x": 1}), ("b", "g", {}), ("c", "f", {})]
