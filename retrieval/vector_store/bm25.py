"""Sparse vectors for BM25, made by Qdrant Edge's own tokenizer for both stores, so that both have the same tokens."""

from __future__ import annotations

from qdrant_edge import Bm25, SparseVector


class Bm25Encoder:
    """Makes sparse vectors: one dimension per token. English stop words and stems; other languages keep their words.

    Points and queries must be encoded alike: another configuration here needs a reindex of every collection. The
    weights of a passage hold how often its words occur and how long it is; how rare a word is, the store counts at the
    search (the modifier `idf`).
    """

    def __init__(self) -> None:
        """Load the tokenizer; takes no measurable time."""
        self._bm25 = Bm25()

    def encode_passage(self, text: str) -> SparseVector:
        """Return the vector of a stored text; without dimensions where the text has no words. Takes about 0.1 us per
        byte of text."""
        return self._bm25.embed_document(text)

    def encode_query(self, text: str) -> SparseVector:
        """Return the vector of a query: each of its words weighs 1."""
        return self._bm25.embed_query(text)
