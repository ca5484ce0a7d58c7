"""Sparse vectors of BM25, made by Qdrant's own code, so that every store has the same tokens."""

from __future__ import annotations

from typing import Final

import qdrant_edge as edge

NO_LANGUAGE: Final = "none"


def build_bm25(language: str) -> edge.Bm25:
    """Return the maker of sparse vectors for a language, whose stop words are left out and whose words are stemmed.

    `none`: nothing is left out, and nothing is stemmed.

    Raises:
        ValueError: Qdrant does not know the language.
    """
    if language != NO_LANGUAGE:
        return edge.Bm25(edge.Bm25Config(language=language.lower()))
    return edge.Bm25(edge.Bm25Config(stemmer=edge.DisabledStemmer(), stopwords=edge.StopwordsSet(languages=set())))
