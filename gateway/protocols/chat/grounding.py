"""Chat completions grounded in documents: annotations of their citations, and their sources. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

from controller.schema.errors import RoundhouseError
from gateway.protocols.chat.dialect import ChatCollector
from gateway.protocols.common.conversation import Fields
from gateway.protocols.common.dialect import EventStream, Usage
from gateway.protocols.common.errors import decode_json, encode_json
from gateway.protocols.common.passages import Passage, describe_source, describe_sources, find_citations

_DONE: Final = b"data: [DONE]"


def annotate_body(body: bytes, passages: Sequence[Passage]) -> bytes:
    """Return the JSON of a whole chat completion with `annotations` of each message, and `sources`. `passages`: what
    the model got, in the order of their numbers, from 1. A body that is no completion, such as an error, is returned
    unchanged."""
    fields = decode_json(body)
    if not isinstance(fields, dict) or not isinstance(fields.get("choices"), list):
        return body
    _annotate_completion(fields, passages)
    return encode_json(fields)


class AnnotatedChat:
    """An `EventStream` around that of a chat completion (the inner stream): adds one event before `[DONE]`, with the
    citations of the whole answer and the sources. An answer that fails gets none. One instance serves one answer."""

    __slots__ = ("_collector", "_events", "_is_annotated", "_passages")

    def __init__(self, events: EventStream, passages: Sequence[Passage]) -> None:
        """`events`: the stream of a chat completion. `passages`: what the model got, in the order of their numbers,
        from 1."""
        self._events = events
        self._passages = passages
        self._collector = ChatCollector(is_chat=True)
        self._is_annotated = False

    @property
    def usage(self) -> Usage | None:
        """Token counts that the inner stream has reported so far; None: none yet."""
        return self._events.usage

    @property
    def is_complete(self) -> bool:
        """Whether the inner stream ended as the API family demands, or with an error."""
        return self._events.is_complete

    def feed_data(self, chunk: bytes) -> bytes:
        """Return the inner stream's events for `chunk`, with the event of citations and sources before `[DONE]`. Raises
        EventTooLongError as the inner stream. See `dialect.EventStream`."""
        return self._annotate(self._events.feed_data(chunk))

    def finish_stream(self) -> bytes:
        """Return the inner stream's last events, with the event of citations and sources before `[DONE]`. See
        `dialect.EventStream`."""
        return self._annotate(self._events.finish_stream())

    def fail_stream(self, error: RoundhouseError, request_id: str) -> bytes:
        """Return the inner stream's last events for `error`, without citations and sources. See
        `dialect.EventStream`."""
        return self._events.fail_stream(error, request_id)

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
        chunk = json.dumps(_build_last_chunk(completion, self._passages), ensure_ascii=False).encode()
        return events[:position] + b"data: " + chunk + b"\n\n" + events[position:]


def _annotate_completion(completion: Fields, passages: Sequence[Passage]) -> None:
    for choice in completion.get("choices", ()):
        message = choice.get("message") if isinstance(choice, dict) else None
        if isinstance(message, dict):
            content = message.get("content")
            message["annotations"] = _annotations(content if isinstance(content, str) else "", passages)
    completion["sources"] = describe_sources(passages)


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
    return {**chunk, "object": "chat.completion.chunk", "choices": choices, "sources": completion["sources"]}
