"""Passages of documents: the text in which a model gets them, and where an answer cites them. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from gateway.protocols.common.conversation import Fields
from retrieval.schema.files import VectorStoreHit
from retrieval.schema.search import SearchHit

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
    """A chunk of a document that a search found. `start` and `end` are offsets in bytes of the document's text in
    UTF-8, the end exclusive; `chunk` counts from 0, `page` from 1 (None: the format has no pages)."""

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

    @classmethod
    def of_hit(cls, hit: SearchHit) -> Passage:
        """Return the passage of a hit among documents."""
        return cls(hit.document_id, hit.filename, hit.chunk, hit.start, hit.end, hit.page, hit.score, hit.text)

    @classmethod
    def of_file(cls, hit: VectorStoreHit) -> Passage:
        """Return the passage of a hit in a vector store."""
        text = "".join(part.text for part in hit.content)
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
    """A place in an answer that cites a passage, such as `[1]`. `start` and `end` are indexes of characters in the
    answer's text, the end exclusive; `number` counts the passages from 1."""

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


def describe_sources(passages: Sequence[Passage]) -> list[Fields]:
    """Return `describe_source` of each passage, numbered from 1."""
    return [describe_source(number, passage) for number, passage in enumerate(passages, start=1)]
