"""The embedded vector store: the collections in one folder."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, Self, TypeVar

from retrieval.vector_store.base import (
    CollectionSpec,
    Point,
    ScoredPoint,
    SearchScope,
    VectorStoreError,
    check_existing,
    check_ids,
    check_points,
    check_vector,
)
from retrieval.vector_store.edge.collection import (
    CollectionFolder,
    CollectionRecord,
    EdgeCollection,
    RecordError,
    list_collection_folders,
    lock_store,
)
from retrieval.vector_store.edge.connection import ShardDamagedError
from retrieval.vector_store.edge.frames import encode_vector
from retrieval.vector_store.payload import make_search_filter, make_tenant_filter, make_versions_filter

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

_LOCK_TRIES: Final = 100
_LOCK_PAUSE_S: Final = 0.1
"""A killed program's processes keep its lock for a moment."""


class EdgeStore:
    """Implements `retrieval.vector_store.base.VectorStore` with Qdrant Edge: one folder of files, and one child process
    per collection.

    A collection whose files turn out to be damaged is renamed to `NAME.damaged`: the call raises KeyError, as if the
    collection did not exist.
    """

    def __init__(self, folder: Path, lock: int) -> None:
        """Take over a folder and the descriptor that holds its lock (see `lock_store`). Use `open`."""
        self._folder = folder
        self._lock = lock
        self._collections: dict[str, EdgeCollection] = {}
        self._changing = asyncio.Lock()
        """Held while a collection is created, deleted or set aside."""

    @classmethod
    async def open(cls, folder: Path) -> Self:
        """Lock the folder, made where it is missing, and open all its collections.

        Unfinished files of a killed program are removed. A damaged collection is renamed to `NAME.damaged`, with an
        error in the log: it does not exist any more, so the caller of the store must create and fill it anew.

        Raises VectorStoreError where another program still holds the lock after 10 s, or the machine (memory, space,
        permissions) does not let a collection open. The caller closes the store.
        """
        store = cls(folder, await _lock(folder))
        try:
            await store._open_collections()
        except BaseException:
            await store.close()
            raise
        return store

    @property
    def kind(self) -> str:
        """Always `edge`: the kind of the vector store, for status pages."""
        return "edge"

    async def list_collections(self) -> Sequence[CollectionSpec]:
        """Return the specs of all collections, sorted by name. No file is read, and nothing is raised."""
        return [self._collections[name].spec for name in sorted(self._collections)]

    async def create_collection(self, spec: CollectionSpec) -> None:
        """Create an empty collection, its indexes and its process, unless it exists with this spec. Raises
        CollectionMismatchError if it exists with another one, ValueError for a malformed name, and VectorStoreError."""
        folder = CollectionFolder(self._folder, spec.name)
        async with self._changing:
            if (existing := self._collections.get(spec.name)) is not None:
                check_existing(existing.spec, spec)
                return
            try:
                await asyncio.to_thread(folder.remove)
                self._collections[spec.name] = await EdgeCollection.create(folder, self._lock, spec)
            except OSError as error:
                raise _make_store_error(error) from error

    async def delete_collection(self, name: str) -> None:
        """Delete the collection with its files, after its process has ended; ignore an unknown name. Raises
        VectorStoreError if the files cannot be deleted; the collection is then still listed, but closed."""
        async with self._changing:
            if (collection := self._collections.get(name)) is None:
                return
            try:
                await collection.delete()
            except OSError as error:
                raise _make_store_error(error) from error
            del self._collections[name]  # not before: a call after one that failed must try again

    async def upsert_points(self, collection: str, points: Sequence[Point]) -> None:
        """Write points, in place of stored ones with their ids, in the order of the calls. They survive the end of the
        process at once, and a loss of power after `flush_collection`. Raises KeyError for an unknown or damaged
        collection, ValueError for a wrong point (`check_points`), and VectorStoreError."""
        check_points(self._collections[collection].spec, points)
        await self._call(collection, lambda found: found.upsert_points(points))

    async def flush_collection(self, collection: str) -> None:
        """Make earlier writes durable, so that they survive a loss of power. Searches wait meanwhile, perhaps some
        tenths of a second. Raises KeyError for an unknown or damaged collection, and VectorStoreError."""
        await self._call(collection, lambda found: found.flush())

    async def delete_versions(self, collection: str, versions: Sequence[int]) -> None:
        """Delete all points of these versions, durable after `flush_collection`. Raises KeyError for an unknown or
        damaged collection, and VectorStoreError, after which some may be deleted."""
        await self._call(collection, lambda found: found.delete_points(make_versions_filter(versions)))

    async def read_vectors(self, collection: str, ids: Sequence[str]) -> Mapping[str, Sequence[float]]:
        """Return the dense vectors of stored points by id, of length 1; points without one are missing. Raises KeyError
        for an unknown or damaged collection, ValueError without dense vectors or for an id that is no UUID;
        VectorStoreError."""
        check_ids(self._collections[collection].spec, ids)
        return await self._call(collection, lambda found: found.read_vectors(ids))

    async def search_dense(
        self, collection: str, vector: Sequence[float], scope: SearchScope, limit: int
    ) -> Sequence[ScoredPoint]:
        """Return up to `limit` points of the scope, nearest to `vector` by cosine first. Raises KeyError for an unknown
        or damaged collection, ValueError for a wrong vector (`check_vector`), and VectorStoreError."""
        check_vector(self._collections[collection].spec, vector)
        request = {
            "op": "search_dense",
            "dimension": len(vector),
            "where": make_search_filter(scope),
            "limit": limit,
        }
        return await self._call(collection, lambda found: found.search(request, encode_vector(vector)))

    async def search_sparse(self, collection: str, text: str, scope: SearchScope, limit: int) -> Sequence[ScoredPoint]:
        """Return up to `limit` points of the scope that share words with `text`, best by BM25 first. Raises KeyError
        for an unknown or damaged collection, ValueError for text that is not valid Unicode, and VectorStoreError."""
        request = {
            "op": "search_sparse",
            "text": text,
            "where": make_search_filter(scope),
            "corpus": make_tenant_filter(scope.tenant),
            "limit": limit,
        }
        return await self._call(collection, lambda found: found.search(request))

    async def count_points(self, collection: str, tenant: str | None = None) -> int:
        """Return the exact number of points, of hidden versions too: of one tenant, or of all where `tenant` is None.
        Raises KeyError for an unknown or damaged collection, and VectorStoreError."""
        where = None if tenant is None else make_tenant_filter(tenant)
        return await self._call(collection, lambda found: found.count(where))

    async def optimize_collection(self, collection: str) -> None:
        """Build the indexes in a copy of the collection's files, in a process of its own, and serve the copy. Minutes
        may pass. Raises KeyError for an unknown or damaged collection, and VectorStoreError; the old files are then
        still served."""
        await self._call(collection, lambda found: found.optimize())

    async def close(self) -> None:
        """Flush and close all collections, end their processes, and release the lock. May be called again."""
        async with self._changing:
            collections = list(self._collections.values())
            self._collections.clear()
            try:
                await asyncio.gather(*(each.close() for each in collections))
            finally:
                if self._lock >= 0:
                    os.close(self._lock)
                    self._lock = -1

    async def _open_collections(self) -> None:
        folders = await asyncio.to_thread(list_collection_folders, self._folder)
        # All of them finish, so that none is left opening when one has failed.
        outcomes = await asyncio.gather(*map(self._open_collection, folders), return_exceptions=True)
        for error in filter(None, outcomes):
            raise _make_store_error(error) if isinstance(error, OSError) else error

    async def _open_collection(self, folder: CollectionFolder) -> None:
        try:
            record = await asyncio.to_thread(_read_record, folder)
            if record is None:
                return
            collection = EdgeCollection(folder, self._lock, record)
            await collection.open()
        except (RecordError, ShardDamagedError) as error:
            await self._set_aside(folder, error)
        else:
            self._collections[record.spec.name] = collection

    async def _call(self, name: str, do: Callable[[EdgeCollection], Awaitable[Result]]) -> Result:
        collection = self._collections[name]
        try:
            return await do(collection)
        except ShardDamagedError as error:
            async with self._changing:
                if self._collections.get(name) is collection:
                    await self._drop_damaged(name, collection, error)
            raise KeyError(name) from error
        except OSError as error:
            raise _make_store_error(error) from error

    async def _drop_damaged(self, name: str, collection: EdgeCollection, damage: ShardDamagedError) -> None:
        await collection.close()
        del self._collections[name]  # whatever becomes of its files: a closed one would be in its successor's way
        try:
            await self._set_aside(CollectionFolder(self._folder, name), damage)
        except OSError as error:
            raise _make_store_error(error) from error

    async def _set_aside(self, folder: CollectionFolder, error: Exception) -> None:
        place = await asyncio.to_thread(folder.set_aside)
        logger.error(
            "collection %s of the vector store is damaged (%s); it was renamed to %s and must be made anew",
            folder.path.name,
            error,
            place.name,
        )


def _read_record(folder: CollectionFolder) -> CollectionRecord | None:
    """Return the record, and remove everything else; None where a collection was being created or deleted."""
    if not folder.has_record:
        folder.remove()
        return None
    record = folder.read_record()
    folder.remove_leftovers(record.shard)
    return record


async def _lock(folder: Path) -> int:
    for _ in range(_LOCK_TRIES):
        try:
            return await asyncio.to_thread(lock_store, folder)
        except BlockingIOError:
            await asyncio.sleep(_LOCK_PAUSE_S)
        except OSError as error:
            raise _make_store_error(error) from error
    raise VectorStoreError("the vector store's folder is in use by another program")


def _make_store_error(error: OSError) -> VectorStoreError:
    # An error of several files (shutil.Error) has no strerror, and its text names the files.
    return VectorStoreError(f"the vector store's files cannot be read or written: {error.strerror or 'several errors'}")
