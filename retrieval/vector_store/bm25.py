"""Sparse vectors for BM25, made by Qdrant Edge's own tokenizer for both stores, so that both have the same tokens."""

from __future__ import annotations

from typing import Final

from qdrant_edge import Bm25, Bm25Config, DisabledStemmer, SparseVector, StopwordsSet, TokenizerType

from contract.documents import NO_LANGUAGE
from retrieval.vector_store.bm25_options import Bm25Options

_WITHOUT_SPACES: Final = ("chinese", "japanese")
"""Languages whose words nothing separates, so that a dictionary has to find them. Qdrant's tokenizer that has one drops
numbers that stand alone."""


class Bm25Encoder:
    """Makes sparse vectors with one dimension per token.

    Points and queries of a collection must be encoded alike. The weights of a passage hold how often its words occur
    and how long it is; how rare a word is, the store counts at the search (the modifier `idf`).
    """

    def __init__(self, options: Bm25Options) -> None:
        """Load the tokenizer, which is built into Qdrant Edge; no file is read."""
        is_neutral = options.language == NO_LANGUAGE
        self._bm25 = Bm25(
            Bm25Config(
                k=options.k,
                b=options.b,
                avg_len=options.average_length,
                tokenizer=TokenizerType.Multilingual if options.language in _WITHOUT_SPACES else None,
                language=None if is_neutral else options.language,
                stopwords=StopwordsSet() if is_neutral else None,
                stemmer=DisabledStemmer() if is_neutral else None,
            )
        )

    def encode_passage(self, text: str) -> SparseVector:
        """Return the vector of a stored text; its `indices` are empty where the text has no words. Blocks, about 0.1 us
        per byte. Raises UnicodeEncodeError for text that is not valid Unicode."""
        return self._bm25.embed_document(text)

    def encode_query(self, text: str) -> SparseVector:
        """Return the vector of a query, in which each word weighs 1; its `indices` are empty where `text` has no words.
        Raises UnicodeEncodeError for text that is not valid Unicode."""
        return self._bm25.embed_query(text)
