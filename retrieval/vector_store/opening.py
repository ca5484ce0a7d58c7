"""Which vector store the settings ask for."""

from __future__ import annotations

from pathlib import Path

from retrieval.settings import RetrievalSettings
from retrieval.vector_store.base import VectorStore
from retrieval.vector_store.edge.store import EdgeStore


async def open_vector_store(settings: RetrievalSettings, folder: Path) -> VectorStore:
    """Open the store: a Qdrant server where `settings.qdrant_url` is set, else Qdrant Edge in `folder`/edge.

    The server is not asked yet, so one that is not reachable raises nothing here. Raises VectorStoreError where the
    folder is in use or cannot be opened. The caller closes the store.
    """
    if settings.qdrant_url is not None:
        from retrieval.vector_store.server import ServerStore  # 40 MiB that the embedded store does without

        return ServerStore.connect(settings.qdrant_url, settings.qdrant_api_key)
    return await EdgeStore.open(folder / "edge")
