"""Which vector store the settings ask for."""

from __future__ import annotations

from pathlib import Path

from retrieval.settings import RetrievalSettings
from retrieval.vector_store.base import VectorStore
from retrieval.vector_store.bm25 import build_bm25
from retrieval.vector_store.edge import EdgeVectorStore


def open_vector_store(settings: RetrievalSettings, folder: Path) -> VectorStore:
    """Open the store: a Qdrant server where its address is set, else Qdrant Edge in `folder`. Blocks.

    Raises:
        ValueError: the language is unknown.
        OSError: the folder cannot be used.
    """
    bm25 = build_bm25(settings.retrieval_language)
    return EdgeVectorStore(folder / "edge", bm25)
