"""Passages of documents in requests for chat completions and Anthropic's messages, and the option `rag` that asks for
them. Pure.

The passages stand in the user's question, so that all earlier messages stay as they were and an engine's cache still
fits them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from contract.documents import Mode, SearchHit, SearchRequest
from contract.files import VectorStoreHit
from gateway.protocols.common.conversation import Fields
from gateway.protocols.common.field_reader import field_error, read_model

BYTES_PER_TOKEN: Final = 4
"""Estimate: most text has more bytes in a token."""
USUAL_TOKENS: Final = 2000
"""Most tokens of passages for a model where the request does not say it."""
_CITATION: Final = re.compile(r"\[(\d{1,3})\]")
_INTRODUCTION: Final = (
    "Answer the question below from these passages. Cite the passages that you use by their numbers, such as [1]. If "
    "the passages do not answer the question, say so."
)


class Passage(NamedTuple):
    """A chunk of a document that a search found. `chunk`: its position in the document, from 0. `start`, `end`: its
    bytes in the document's text (UTF-8), without the one at `end`. `page`: from 1; None: the format has no pages."""

    document_id: str
    """Id of the document; in a vector store, of the file."""
    filename: str | None
    chunk: int
    """Position of the chunk in the document, from 0."""
    start: int
    """Offset of its first byte in the document's text (UTF-8)."""
    end: int
    """Offset after its last byte."""
    page: int | None
    """Page of the original, from 1; None: the format has no pages."""
    score: float
    text: str
    """What the model reads: the headings above the chunk, the header row of its table, and its text."""

    @classmethod
    def of_hit(cls, hit: SearchHit) -> Passage:
        """Return the passage of a hit among documents."""
        text = "\n".join((*hit.headings, hit.text))
        return cls(hit.document_id, hit.filename, hit.chunk, hit.start, hit.end, hit.page, hit.score, text)

    @classmethod
    def of_file(cls, hit: VectorStoreHit) -> Passage:
        """Return the passage of a hit in a vector store."""
        text = "\n".join((*hit.headings, "".join(part.text for part in hit.content)))
        return cls(hit.file_id, hit.filename, hit.chunk, hit.start, hit.end, hit.page, hit.score, text)


def fit_passages(passages: Sequence[Passage], wanted: int | None, context_length: int | None) -> list[Passage]:
    """Return those of `passages` that a model gets, from the first on. The first one that does not fit ends the list.
    `passages` must be sorted, best first.

    `wanted`: most tokens of all together, estimated as a quarter of their bytes; None: `USUAL_TOKENS` (2000), but at
    most a quarter of `context_length`, the tokens of the model's context (None: it is not known). So with `wanted` None
    passages have no more bytes than the context has tokens, which fits with any tokenizer.
    """
    tokens = wanted
    if tokens is None:
        tokens = USUAL_TOKENS if context_length is None else min(USUAL_TOKENS, context_length // 4)
    fitting, left = [], tokens * BYTES_PER_TOKEN
    for passage in passages:
        left -= len(passage.text.encode())
        if left < 0:
            break
        fitting.append(passage)
    return fitting


def write_context(passages: Sequence[Passage]) -> str:
    """Return the passages as text for a model: an instruction to cite them by number, each passage with its number,
    from 1, and where it is from, and at the end `Question:`. The caller puts the question behind it."""
    blocks = [_INTRODUCTION]
    for number, passage in enumerate(passages, start=1):
        page = f", page {passage.page}" if passage.page is not None else ""
        blocks.append(f"[{number}] {passage.filename or passage.document_id}{page}\n{passage.text}")
    return "\n\n".join([*blocks, "Question:"])


class Citation(NamedTuple):
    """A place in an answer that cites a passage, such as `[1]`: the characters from `start` up to `end`, without the
    latter. `number`: of the passage, from 1."""

    start: int
    """Index of its first character in the answer's text."""
    end: int
    """Index after its last character."""
    number: int
    """Number of the passage, from 1."""
    passage: Passage


def find_citations(text: str, passages: Sequence[Passage]) -> list[Citation]:
    """Return a citation for each `[n]` in the text that is the number of a passage, in the text's order."""
    return [
        Citation(match.start(), match.end(), number, passages[number - 1])
        for match in _CITATION.finditer(text)
        if 1 <= (number := int(match[1])) <= len(passages)
    ]


def describe_source(number: int, passage: Passage) -> Fields:
    """Return where a passage is from, as answers say it: `number`, and all fields of `Passage` but its text."""
    fields = passage._asdict()
    del fields["text"]
    return {"number": number, **fields}


def describe_sources(passages: Sequence[Passage], notice: str | None) -> Fields:
    """Return the fields of an answer that say where it comes from: `sources`, `describe_source` of each passage,
    numbered from 1; and `sources_notice`, the search's notice, unless that is None."""
    sources = [describe_source(number, passage) for number, passage in enumerate(passages, start=1)]
    return {"sources": sources, **({} if notice is None else {"sources_notice": notice})}


FIELD: Final = "rag"
LONGEST_QUERY: Final = 32_768
"""Characters of the question that are searched with."""


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
    max_tokens: int | None = Field(
        None,
        ge=50,
        le=1_000_000,
        description=f"Most tokens of all passages together, estimated; the worst ones go. Default: {USUAL_TOKENS}, and "
        "at most a quarter of the model's context.",
    )


def read_options(value: object) -> GroundingOptions | None:
    """Return the options of a request's `rag`; None for null and false, which ask for nothing. `true`: the defaults.
    Raises RoundhouseError `invalid_request` for a wrong value or an unknown field."""
    if value is None or value is False:
        return None
    if value is True:
        return GroundingOptions()
    if not isinstance(value, dict):
        raise field_error(FIELD, "must be true, false or an object")
    return read_model(GroundingOptions, value, FIELD)


def build_search(options: GroundingOptions, fields: Fields) -> SearchRequest:
    """Return the search for `options.query`; if that is None, for the text of the user's last message in `fields`, the
    decoded whole body (see `find_question`). The query is cut to `LONGEST_QUERY` characters. Nothing is searched here.
    Raises RoundhouseError `invalid_request` if neither has a text."""
    query = options.query or find_question(fields)
    if not query:
        raise field_error("messages", "must have a text of the user to search for, or `rag.query` must be set")
    return SearchRequest(
        query=clean_query(query),
        top_k=options.top_k,
        filter=options.filter,
        score_threshold=options.score_threshold,
        mode=options.mode,
        rerank=options.rerank,
    )


def clean_query(text: str) -> str:
    """Return the text as a search takes it: its first `LONGEST_QUERY` (32,768) characters, with `?` in the place of
    halves of surrogate pairs, which are no text."""
    return text[:LONGEST_QUERY].encode(errors="replace").decode()


def find_question(fields: Fields) -> str:
    """Return the text of the user's last message, its parts joined by line ends; messages that hold nothing but tool
    results do not count. Empty if there is no such message, or no text in it."""
    index = _question_index(fields)
    content = None if index is None else fields["messages"][index].get("content")
    if isinstance(content, str):
        return content.strip()
    parts = content if isinstance(content, list) else []
    texts = [part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str)]
    return "\n".join(texts).strip()


def add_passages(fields: Fields, passages: Sequence[Passage]) -> Fields:
    """Return a copy of the request's fields without `rag`, with the passages, numbered from 1, in the message that
    `find_question` reads, in front of its text. `fields` are not changed. Without passages or such a message, only
    `rag` is left out."""
    rest = {name: value for name, value in fields.items() if name != FIELD}
    index = _question_index(fields)
    if not passages or index is None:
        return rest
    messages = list(fields["messages"])
    context, content = write_context(passages), messages[index].get("content")
    grounded: Any = f"{context}\n\n{content}" if isinstance(content, str) else context
    if isinstance(content, list):
        # Anthropic wants the results of tools before everything else.
        start = sum(_is_tool_result(part) for part in content)
        grounded = [*content[:start], {"type": "text", "text": context}, *content[start:]]
    messages[index] = {**messages[index], "content": grounded}
    return {**rest, "messages": messages}


def _question_index(fields: Fields) -> int | None:
    """Return the index of the user's last message that holds more than results of tools; None: there is none."""
    messages = fields.get("messages")
    messages = messages if isinstance(messages, list) else []
    for index in reversed(range(len(messages))):
        message = messages[index]
        if isinstance(message, dict) and message.get("role") == "user":
            content = message.get("content")
            if not (isinstance(content, list) and content and all(map(_is_tool_result, content))):
                return index
    return None


def _is_tool_result(part: object) -> bool:
    return isinstance(part, dict) and part.get("type") == "tool_result"
