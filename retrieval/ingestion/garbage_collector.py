"""Removes what was replaced or deleted: points first, then the catalog's rows, then originals that nothing needs."""

from __future__ import annotations

import asyncio
from functools import partial
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
    """Removes versions in the state `garbage` with their points, texts, chunks and originals. It does nothing by
    itself: call `collect` after deletions and publications, one call at a time."""

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
        """Remove all garbage versions but those that `CollectionWriter.write_version` is at work on; they stay for a
        later call. Return how many versions were removed. No other `collect` may be under way.

        Raises VectorStoreError, OSError, sqlite3.Error, or KeyError where the vector store has lost a collection.
        Versions that are left then stay garbage for the next call; originals that are left go with `remove_leftovers`.
        """
        removed = 0
        while True:
            in_use = len(self._writer.versions_in_use)
            found = await self._catalog.read(partial(list_garbage, limit=_AT_ONCE + in_use))
            garbage = [number for number in found if number not in self._writer.versions_in_use]
            if not garbage:
                return removed
            for collection in (self._index.active, self._index.building):
                if collection is not None:
                    await self._store.delete_versions(collection.name, garbage)
                    await self._store.flush_collection(collection.name)
            unused = await self._catalog.write(partial(remove_garbage, versions=garbage))
            await remove_unused_originals(self._catalog, self._originals, unused)
            removed += len(garbage)

    async def remove_leftovers(self) -> int:
        """Remove all originals that no version and no uploaded file needs, as a crash leaves them. Return how many.
        Call once, at start. Raises OSError or sqlite3.Error."""
        hashes = await asyncio.to_thread(lambda: list(self._originals.list_originals()))
        return await remove_unused_originals(self._catalog, self._originals, hashes)

    async def remove_postponed(self) -> int:
        """Remove originals that stayed because a backup was reading them, unless something needs them or a backup still
        reads them. Return how many. Call now and then. Raises OSError or sqlite3.Error; what is left then goes with
        `remove_leftovers` at the next start."""
        return await remove_unused_originals(self._catalog, self._originals, self._originals.take_postponed())
