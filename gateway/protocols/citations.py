"""Citations in answers that are grounded in documents, and their sources: in chat completions and in messages. Pure."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Final

from gateway.protocols.anthropic.answer_stream import encode_event
from gateway.protocols.chat.dialect import ChatCollector
from gateway.protocols.common.conversation import Fields
from gateway.protocols.common.dialect import EventStream, WrappedStream
from gateway.protocols.common.errors import decode_json, encode_json
from gateway.protocols.common.grounding import Citation, Passage, describe_source, describe_sources, find_citations
from gateway.protocols.common.streams import data_of, split_events

_DONE: Final = b"data: [DONE]"


class _AnnotatedStream(WrappedStream, ABC):
    """Base of the `EventStream`s that add citations and sources to the events of the inner stream."""

    __slots__ = ("_events", "_notice", "_passages")

    def __init__(self, events: EventStream, passages: Sequence[Passage], notice: str | None = None) -> None:
        """`passages`: what the model got, in the order of their numbers, from 1. `notice`: the search's."""
        self._events = events
        self._passages = passages
        self._notice = notice

    def feed_data(self, chunk: bytes) -> bytes:
        return self._annotate(self._events.feed_data(chunk))

    def finish_stream(self) -> bytes:
        return self._annotate(self._events.finish_stream())

    @abstractmethod
    def _annotate(self, events: bytes) -> bytes:
        """Return whole events with what is due by now."""


def annotate_completion_body(body: bytes, passages: Sequence[Passage], notice: str | None = None) -> bytes:
    """Return the JSON of a whole chat completion with `annotations` of each message, and `describe_sources`.
    `passages`: what the model got, in the order of their numbers, from 1. `notice`: the search's. A body that is no
    completion, such as an error, is returned unchanged."""
    fields = decode_json(body)
    if not isinstance(fields, dict) or not isinstance(fields.get("choices"), list):
        return body
    _annotate_completion(fields, passages)
    return encode_json(fields | describe_sources(passages, notice))


class AnnotatedChat(_AnnotatedStream):
    """An `EventStream` around that of a chat completion (the inner stream): adds one event before `[DONE]`, with the
    citations of the whole answer and the sources. An answer that fails gets none. One instance serves one answer."""

    __slots__ = ("_collector", "_is_annotated")

    def __init__(self, events: EventStream, passages: Sequence[Passage], notice: str | None = None) -> None:
        super().__init__(events, passages, notice)
        self._collector = ChatCollector(is_chat=True)
        self._is_annotated = False

    def _annotate(self, events: bytes) -> bytes:
        self._collector.feed_data(events)
        position = -1 if self._is_annotated else events.rfind(_DONE)
        if position < 0 or not self._collector.is_done:
            return events
        self._is_annotated = True
        result = self._collector.build_result()
        completion = None if result is None or result[0] >= 400 else decode_json(result[1])
        if not isinstance(completion, dict):
            return events
        last = _build_last_chunk(completion, self._passages) | describe_sources(self._passages, self._notice)
        chunk = json.dumps(last, ensure_ascii=False).encode()
        return events[:position] + b"data: " + chunk + b"\n\n" + events[position:]


def _annotate_completion(completion: Fields, passages: Sequence[Passage]) -> None:
    for choice in completion.get("choices", ()):
        message = choice.get("message") if isinstance(choice, dict) else None
        if isinstance(message, dict):
            content = message.get("content")
            message["annotations"] = _annotations(content if isinstance(content, str) else "", passages)


def _annotations(text: str, passages: Sequence[Passage]) -> list[Fields]:
    return [
        {
            "type": "file_citation",
            "start_index": each.start,
            "end_index": each.end,
            **describe_source(each.number, each.passage),
        }
        for each in find_citations(text, passages)
    ]


def _build_last_chunk(completion: Fields, passages: Sequence[Passage]) -> Fields:
    """Return the chunk that a stream ends with. `completion`: the whole completion that the stream amounts to."""
    _annotate_completion(completion, passages)
    choices = [
        {
            "index": choice.get("index", 0),
            "delta": {"annotations": choice["message"]["annotations"]},
            "finish_reason": None,
        }
        for choice in completion["choices"]
    ]
    chunk: Fields = {name: completion[name] for name in ("id", "created", "model") if name in completion}
    return {**chunk, "object": "chat.completion.chunk", "choices": choices}


def annotate_message_body(body: bytes, passages: Sequence[Passage], notice: str | None = None) -> bytes:
    """Return the JSON of a whole message with `citations` of each text block, and `describe_sources`. `passages`: what
    the model got, in the order of their numbers, from 1. `notice`: the search's. A body that is no message, such as an
    error, is returned unchanged."""
    message = decode_json(body)
    if not isinstance(message, dict) or not isinstance(message.get("content"), list):
        return body
    for block in message["content"]:
        if isinstance(block, dict) and block.get("type") == "text" and isinstance(block.get("text"), str):
            block["citations"] = [_describe_citation(each) for each in find_citations(block["text"], passages)]
    return encode_json({**message, **describe_sources(passages, notice)})


class AnnotatedMessage(_AnnotatedStream):
    """An `EventStream` around that of a message (the inner stream): adds the sources to `message_start`, and before the
    end of each text block its citations, as deltas of the type `citations_delta`. One instance serves one answer."""

    __slots__ = ("_texts",)

    def __init__(self, events: EventStream, passages: Sequence[Passage], notice: str | None = None) -> None:
        super().__init__(events, passages, notice)
        self._texts: dict[object, list[str]] = {}
        """The text of each open block, by its index."""

    def _annotate(self, events: bytes) -> bytes:
        return b"".join([self._annotate_event(event) for event in split_events(events)])

    def _annotate_event(self, event: bytes) -> bytes:
        fields = decode_json(data_of(event))
        kind = fields.get("type") if isinstance(fields, dict) else None
        if kind == "message_start" and isinstance(fields.get("message"), dict):
            message = {**fields["message"], **describe_sources(self._passages, self._notice)}
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
