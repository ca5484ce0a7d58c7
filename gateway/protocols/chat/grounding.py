"""Answers grounded in documents: passages put in front of a question, and citations found in the answer. Pure.

The passages stand in the last message of the user, so that all earlier messages stay as they were and an engine's cache
still fits them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from controller.schema.errors import RoundhouseError
from gateway.protocols.common.conversation import Fields
from gateway.protocols.common.field_reader import field_error
from retrieval.schema.search import Mode, SearchHit, SearchRequest

FIELD: Final = "rag"
BYTES_PER_TOKEN: Final = 4
"""Estimate: most text has more bytes in a token."""
LONGEST_QUERY: Final = 32_768
"""Characters of the question that are searched with."""
_CITATION: Final = re.compile(r"\[(\d{1,3})\]")
_INTRODUCTION: Final = (
    "Answer the question below from these passages. Cite the passages that you use by their numbers, such as [1]. If "
    "the passages do not answer the question, say so."
)


class GroundingOptions(BaseModel):
    """The field `rag` of a request, as an object: what is searched, and how much of it the model gets."""

    model_config = ConfigDict(extra="forbid", strict=True)

    query: str | None = Field(
        None, min_length=1, max_length=LONGEST_QUERY, description="Default: the text of the user's last message."
    )
    filter: dict[str, Any] | None = Field(None, description="As in `/v1/search`, like the fields below.")
    top_k: int = Field(5, ge=1, le=50, description="Most passages.")
    mode: Mode | None = None
    score_threshold: float | None = None
    rerank: bool = False
    max_tokens: int = Field(
        2000,
        ge=50,
        le=1_000_000,
        description="Most tokens of all passages together, estimated; the worst ones go.",
    )


def read_options(value: object) -> GroundingOptions | None:
    """Return the options of a request's `rag`; None for null and false, which ask for nothing. `true`: the defaults.

    Raises:
        RoundhouseError: `invalid_request` for a wrong field.
    """
    if value is None or value is False:
        return None
    if value is True:
        return GroundingOptions()
    if not isinstance(value, dict):
        raise field_error(FIELD, "must be true, false or an object")
    try:
        return GroundingOptions.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = ".".join((FIELD, *map(str, first["loc"])))
        raise RoundhouseError("invalid_request", f"`{place}`: {first['msg']}.", param=place) from None


def build_search(options: GroundingOptions, fields: Fields) -> SearchRequest:
    """Return the search for a request's question.

    Raises:
        RoundhouseError: `invalid_request` if neither `rag.query` nor a message of the user has a text.
    """
    query = options.query or find_question(fields)
    if not query:
        raise field_error("messages", "must have a text of the user to search for, or `rag.query` must be set")
    return SearchRequest(
        query=query[:LONGEST_QUERY],
        top_k=options.top_k,
        filter=options.filter,
        score_threshold=options.score_threshold,
        mode=options.mode,
        rerank=options.rerank,
    )


def find_question(fields: Fields) -> str:
    """Return the text of the user's last message; empty if there is none, or no text in it."""
    message = _last_of_user(fields)
    content = None if message is None else message.get("content")
    if isinstance(content, str):
        return content.strip()
    parts = content if isinstance(content, list) else []
    texts = [part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str)]
    return "\n".join(texts).strip()


def fit_passages(hits: Sequence[SearchHit], max_tokens: int) -> list[SearchHit]:
    """Return the best hits that fit into `max_tokens` together, in their order. The first one that does not fit ends
    the list."""
    fitting, left = [], max_tokens * BYTES_PER_TOKEN
    for hit in hits:
        left -= len(hit.text.encode())
        if left < 0:
            break
        fitting.append(hit)
    return fitting


def add_passages(fields: Fields, passages: Sequence[SearchHit]) -> Fields:
    """Return the request without `rag`, with the passages in front of the user's last message. The fields given are not
    changed. Without passages, nothing is added."""
    rest = {name: value for name, value in fields.items() if name != FIELD}
    message = _last_of_user(fields)
    if not passages or message is None:
        return rest
    context = write_context(passages)
    content = message.get("content")
    if isinstance(content, list):
        grounded: Any = [{"type": "text", "text": context}, *content]
    else:
        grounded = f"{context}\n\n{content}"
    messages = list(fields["messages"])
    index = next(number for number in reversed(range(len(messages))) if messages[number] is message)
    messages[index] = {**message, "content": grounded}
    return {**rest, "messages": messages}


def write_context(passages: Sequence[SearchHit]) -> str:
    """Return the passages as text for a model, each with its number, from 1, and where it is from."""
    blocks = [_INTRODUCTION]
    for number, hit in enumerate(passages, start=1):
        page = f", page {hit.page}" if hit.page is not None else ""
        blocks.append(f"[{number}] {hit.filename or hit.document_id}{page}\n{hit.text}")
    return "\n\n".join([*blocks, "Question:"])


def find_citations(text: str, passages: Sequence[SearchHit]) -> list[Fields]:
    """Return an annotation for each `[n]` in the text that is the number of a passage, in the text's order."""
    return [
        {
            "type": "file_citation",
            "start_index": match.start(),
            "end_index": match.end(),
            **describe_source(number, passages[number - 1]),
        }
        for match in _CITATION.finditer(text)
        if 1 <= (number := int(match[1])) <= len(passages)
    ]


def describe_source(number: int, hit: SearchHit) -> Fields:
    """Return where a passage is from, as answers say it: offsets are bytes of the document's text."""
    return {
        "number": number,
        "document_id": hit.document_id,
        "filename": hit.filename,
        "chunk": hit.chunk,
        "start": hit.start,
        "end": hit.end,
        "page": hit.page,
        "score": hit.score,
    }


def annotate_completion(completion: Fields, passages: Sequence[SearchHit]) -> None:
    """Add `annotations` to each message of a whole chat completion, and `sources` to the completion, in place."""
    for choice in completion.get("choices", ()):
        message = choice.get("message") if isinstance(choice, dict) else None
        if isinstance(message, dict):
            content = message.get("content")
            message["annotations"] = find_citations(content if isinstance(content, str) else "", passages)
    completion["sources"] = [describe_source(number, hit) for number, hit in enumerate(passages, start=1)]


def build_last_chunk(completion: Fields, passages: Sequence[SearchHit]) -> Fields:
    """Return the chunk that a stream ends with: the annotations of each answer, and the sources. `completion`: the
    whole completion that the stream amounts to."""
    annotate_completion(completion, passages)
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


def _last_of_user(fields: Fields) -> Fields | None:
    messages = fields.get("messages")
    for message in reversed(messages if isinstance(messages, list) else []):
        if isinstance(message, dict) and message.get("role") == "user":
            return message
    return None
