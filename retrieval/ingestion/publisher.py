"""Makes written versions durable, and visible, many at a time: a flush of the vector store costs as much for one."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from retrieval.catalog.database import CatalogDatabase
from retrieval.catalog.records import Collection, Version
from retrieval.catalog.versions import publish_version
from retrieval.ingestion.document_changes import DocumentChanges
from retrieval.ingestion.flush_policy import MOST_TOGETHER, flush_delay_s
from retrieval.ingestion.index import Index
from retrieval.vector_store.base import VectorStore


@dataclass(frozen=True, slots=True)
class WrittenVersion:
    """A version whose points are in a collection, and not yet durable. `outcome` gets what
    `Publisher.publish_version` returns or raises."""

    version: Version
    collection: Collection
    since: float
    """In the event loop's time."""
    outcome: asyncio.Future[bool | None]


class Publisher:
    """Makes written versions durable and visible, in groups, while `run` works: one flush of the vector store serves
    many versions. Use it in one event loop; `publish_version` may be called concurrently."""

    def __init__(
        self,
        catalog: CatalogDatabase,
        store: VectorStore,
        index: Index,
        changes: DocumentChanges,
        is_more_expected: Callable[[], bool],
    ) -> None:
        """`is_more_expected`: whether further versions will soon be written. Call `look` when it changes to False."""
        self._catalog = catalog
        self._store = store
        self._index = index
        self._changes = changes
        self._is_more_expected = is_more_expected
        self._waiting: list[WrittenVersion] = []
        self._changed = asyncio.Event()
        self._last_flush_s = 0.0

    async def publish_version(self, version: Version, collection: Collection) -> bool | None:
        """Make a version visible whose points were all written into the collection. Waits for a flush that `run` does,
        perhaps of many versions; without end if `run` does not work. Returns True if the version is visible, durably;
        False if it was replaced or deleted meanwhile; None if another collection has become the active one, which needs
        the points, too. A version may be published although the call was cancelled.

        Raises:
            VectorStoreError: the vector store fails.
            KeyError: the vector store has lost the collection.
            sqlite3.Error: the catalog cannot be written.
        """
        loop = asyncio.get_running_loop()
        written = WrittenVersion(version, collection, loop.time(), loop.create_future())
        self._waiting.append(written)
        self.look()
        return await written.outcome

    def look(self) -> None:
        """Make `run` decide again whether to flush now. Returns at once."""
        self._changed.set()

    async def run(self) -> None:
        """Flush and publish the versions that wait, group by group, until cancelled; never return. Call once. A failure
        is raised by the `publish_version` calls of its group, and not here. Versions that wait at the cancellation are
        not published, and their calls are not answered: the caller cancels these."""
        loop = asyncio.get_running_loop()
        while True:
            self._changed.clear()
            delay: float | None = None
            if self._waiting:
                waited = loop.time() - self._waiting[0].since
                delay = flush_delay_s(
                    len(self._waiting), waited, self._last_flush_s, is_more_expected=self._is_more_expected()
                )
            if delay == 0.0:
                group, self._waiting = self._waiting[:MOST_TOGETHER], self._waiting[MOST_TOGETHER:]
                await self._publish_group(group)
                continue
            try:
                async with asyncio.timeout(delay):
                    await self._changed.wait()
            except TimeoutError:
                pass

    async def _publish_group(self, group: Sequence[WrittenVersion]) -> None:
        for collection in {each.collection.number: each.collection for each in group}.values():
            versions = [each for each in group if each.collection.number == collection.number]
            try:
                outcomes = await self._publish(collection, [each.version for each in versions])
            except Exception as error:  # noqa: BLE001 - whoever waits raises it
                for each in versions:
                    if not each.outcome.done():
                        each.outcome.set_exception(error)
                continue
            for each, outcome in zip(versions, outcomes, strict=True):
                if not each.outcome.done():
                    each.outcome.set_result(outcome)

    async def _publish(self, collection: Collection, versions: Sequence[Version]) -> Sequence[bool | None]:
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            await self._store.flush_collection(collection.name)
        except KeyError:
            if self._index.active == collection:
                raise
            return [None] * len(versions)
        self._last_flush_s = loop.time() - began

        def publish(db: sqlite3.Connection) -> Sequence[bool]:
            return [publish_version(db, version.number, collection.number) for version in versions]

        async with self._index.publish_lock:
            if self._index.active != collection:
                return [None] * len(versions)
            outcomes = await self._catalog.write(publish)
        # Before anybody else runs in the event loop: a search that read the catalog since has to know.
        for version, is_visible in zip(versions, outcomes, strict=True):
            if is_visible:
                self._changes.note_visible_change(version.tenant)
        return outcomes
