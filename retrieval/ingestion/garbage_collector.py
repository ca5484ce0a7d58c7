"""Removes what was replaced or deleted: points first, then the catalog's rows, then originals that nothing needs."""

from __future__ import annotations

import asyncio
from typing import Final

from retrieval.catalog.cleanup import remove_unused_originals
from retrieval.catalog.database import CatalogDatabase
from retrieval.catalog.originals import Originals
from retrieval.catalog.versions import list_garbage, remove_garbage
from retrieval.ingestion.collection_writer import CollectionWriter
from retrieval.ingestion.index import Index
from retrieval.vector_store.base import VectorStore

_AT_ONCE: Final = 200


class GarbageCollector:
    """Removes garbage versions. Call `collect` after deletions and publications; one call at a time."""

    def __init__(
        self,
        catalog: CatalogDatabase,
        originals: Originals,
        store: VectorStore,
        index: Index,
        writer: CollectionWriter,
    ) -> None:
        self._catalog = catalog
        self._originals = originals
        self._store = store
        self._index = index
        self._writer = writer

    async def collect(self) -> int:
        """Remove all garbage but versions whose points are being written. Return how many versions were removed.

        Raises VectorStoreError, OSError or sqlite3.Error; what is left then stays garbage.
        """
        removed = 0
        while True:
            in_use = len(self._writer.versions_in_use)
            found = await self._catalog.read(lambda db, most=_AT_ONCE + in_use: list_garbage(db, most))  # type: ignore[misc]
            garbage = [number for number in found if number not in self._writer.versions_in_use]
            if not garbage:
                return removed
            for collection in (self._index.active, self._index.building):
                if collection is not None:
                    await self._store.delete_versions(collection.name, garbage)
                    await self._store.flush_collection(collection.name)
            unused = await self._catalog.write(lambda db, numbers=garbage: remove_garbage(db, numbers))  # type: ignore[misc]
            await remove_unused_originals(self._catalog, self._originals, unused)
            removed += len(garbage)

    async def remove_leftovers(self) -> int:
        """Remove originals that the catalog does not speak of, which a crash has left. Return how many. Call at
        start."""
        hashes = await asyncio.to_thread(lambda: list(self._originals.list_originals()))
        return await remove_unused_originals(self._catalog, self._originals, hashes)
