"""Anthropic's messages grounded in documents: citations of their text blocks, and their sources. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from controller.schema.errors import RoundhouseError
from gateway.protocols.anthropic.answer_stream import encode_event
from gateway.protocols.common.conversation import Fields
from gateway.protocols.common.dialect import EventStream, Usage
from gateway.protocols.common.errors import decode_json, encode_json
from gateway.protocols.common.passages import Citation, Passage, describe_source, describe_sources, find_citations
from gateway.protocols.common.sse import data_of, split_events


def annotate_body(body: bytes, passages: Sequence[Passage]) -> bytes:
    """Return the JSON of a whole message with `citations` of each text block, and `sources`. `passages`: what the model
    got, in the order of their numbers, from 1. A body that is no message, such as an error, is returned unchanged."""
    message = decode_json(body)
    if not isinstance(message, dict) or not isinstance(message.get("content"), list):
        return body
    for block in message["content"]:
        if isinstance(block, dict) and block.get("type") == "text" and isinstance(block.get("text"), str):
            block["citations"] = [_describe_citation(each) for each in find_citations(block["text"], passages)]
    return encode_json({**message, "sources": describe_sources(passages)})


class AnnotatedMessage:
    """An `EventStream` around that of a message (the inner stream): adds the sources to `message_start`, and before the
    end of each text block its citations, as deltas of the type `citations_delta`. One instance serves one answer."""

    __slots__ = ("_events", "_passages", "_texts")

    def __init__(self, events: EventStream, passages: Sequence[Passage]) -> None:
        """`events`: the stream of a message. `passages`: what the model got, in the order of their numbers, from 1."""
        self._events = events
        self._passages = passages
        self._texts: dict[object, list[str]] = {}
        """The text of each open block, by its index."""

    @property
    def usage(self) -> Usage | None:
        """Token counts that the inner stream has reported so far; None: none yet."""
        return self._events.usage

    @property
    def is_complete(self) -> bool:
        """Whether the inner stream ended as the API family demands, or with an error."""
        return self._events.is_complete

    def feed_data(self, chunk: bytes) -> bytes:
        """Return the inner stream's events for `chunk`, with sources and citations added. Raises EventTooLongError as
        the inner stream. See `dialect.EventStream`."""
        return self._annotate(self._events.feed_data(chunk))

    def finish_stream(self) -> bytes:
        """Return the inner stream's last events, with sources and citations added. See `dialect.EventStream`."""
        return self._annotate(self._events.finish_stream())

    def fail_stream(self, error: RoundhouseError, request_id: str) -> bytes:
        """Return the inner stream's last events for `error`, without citations. See `dialect.EventStream`."""
        return self._events.fail_stream(error, request_id)

    def _annotate(self, events: bytes) -> bytes:
        return b"".join([self._annotate_event(event) for event in split_events(events)])

    def _annotate_event(self, event: bytes) -> bytes:
        fields = decode_json(data_of(event))
        kind = fields.get("type") if isinstance(fields, dict) else None
        if kind == "message_start" and isinstance(fields.get("message"), dict):
            message = {**fields["message"], "sources": describe_sources(self._passages)}
            return encode_event("message_start", {**fields, "message": message})
        if kind == "content_block_start":
            self._add_text(fields.get("index"), fields.get("content_block"))
        elif kind == "content_block_delta":
            self._add_text(fields.get("index"), fields.get("delta"))
        elif kind == "content_block_stop":
            return self._cite(fields.get("index")) + event
        return event

    def _add_text(self, index: object, part: object) -> None:
        if isinstance(part, dict) and part.get("type") in ("text", "text_delta") and isinstance(part.get("text"), str):
            self._texts.setdefault(index, []).append(part["text"])

    def _cite(self, index: object) -> bytes:
        text = "".join(self._texts.pop(index, ()))
        deltas = [
            {"type": "citations_delta", "citation": _describe_citation(each)}
            for each in find_citations(text, self._passages)
        ]
        return b"".join([encode_event("content_block_delta", {"index": index, "delta": delta}) for delta in deltas])


def _describe_citation(citation: Citation) -> Fields:
    """Return a citation as Anthropic's of a search result, with our fields beside them."""
    passage = citation.passage
    return {
        "type": "search_result_location",
        "cited_text": passage.text,
        "source": passage.document_id,
        "title": passage.filename,
        "search_result_index": citation.number - 1,
        "start_block_index": 0,
        "end_block_index": 1,
        "start_index": citation.start,
        "end_index": citation.end,
        **describe_source(citation.number, passage),
    }
