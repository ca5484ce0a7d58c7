"""Citations in a stream of Anthropic's events, however it is cut."""

from __future__ import annotations

import json

import pytest

from gateway.protocols.anthropic.answer_stream import encode_event
from gateway.protocols.anthropic.dialect import MessagesStream
from gateway.protocols.anthropic.grounding import AnnotatedMessage, annotate_body
from gateway.protocols.common.passages import Passage

PASSAGES = [
    Passage("d1", "a.md", chunk=0, start=0, end=4, page=None, score=1.0, text="Coal"),
    Passage("d2", None, chunk=3, start=9, end=12, page=2, score=0.5, text="Tea"),
]
STREAM = b"".join(
    [
        encode_event("message_start", {"message": {"id": "msg_1", "content": []}}),
        encode_event("content_block_start", {"index": 0, "content_block": {"type": "thinking", "thinking": ""}}),
        encode_event("content_block_delta", {"index": 0, "delta": {"type": "thinking_delta", "thinking": "see [1]"}}),
        encode_event("content_block_stop", {"index": 0}),
        encode_event("content_block_start", {"index": 1, "content_block": {"type": "text", "text": "Tea "}}),
        encode_event("content_block_delta", {"index": 1, "delta": {"type": "text_delta", "text": "is there ["}}),
        encode_event("content_block_delta", {"index": 1, "delta": {"type": "text_delta", "text": "2], not [7]."}}),
        encode_event("content_block_stop", {"index": 1}),
        encode_event("message_stop", {}),
    ]
)


def told(stream: bytes) -> list[dict[str, object]]:
    return [json.loads(line[6:]) for line in stream.splitlines() if line.startswith(b"data: ")]


@pytest.mark.parametrize("size", [1, 7, 40, len(STREAM)])
def test_citations_come_before_the_end_of_their_block(size: int) -> None:
    stream = AnnotatedMessage(MessagesStream("r"), PASSAGES)
    parts = [stream.feed_data(STREAM[start : start + size]) for start in range(0, len(STREAM), size)]
    events = told(b"".join(parts) + stream.finish_stream())
    assert stream.is_complete
    assert [source["document_id"] for source in events[0]["message"]["sources"]] == ["d1", "d2"]  # type: ignore[index]
    added = [event for event in events if "citations_delta" in json.dumps(event)]
    [delta] = added
    assert events.index(delta) == [event["type"] for event in events].index("message_stop") - 2
    citation = delta["delta"]["citation"]  # type: ignore[index]
    text = "Tea is there [2], not [7]."
    assert text[citation["start_index"] : citation["end_index"]] == "[2]"
    assert (citation["source"], citation["cited_text"], citation["page"], delta["index"]) == ("d2", "Tea", 2, 1)
    rest = [event for event in events[1:] if event is not delta]
    assert rest == told(STREAM)[1:], "everything else passes"


def test_a_body_that_is_no_message_passes() -> None:
    for body in (b"[]", b"no", b'{"content": "x"}'):
        assert annotate_body(body, PASSAGES) == body
