"""Takes accepted versions through parsing, embedding and publication, a few at a time, until the program stops."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Callable
from typing import Final

from retrieval.catalog.chunks import resume_embedding, save_parsed
from retrieval.catalog.database import CatalogDatabase
from retrieval.catalog.originals import Originals
from retrieval.catalog.records import DocumentKey, Version
from retrieval.catalog.versions import (
    claim_version,
    fail_version,
    find_key,
    next_retry_at,
    publish_version,
    restart_versions,
    retry_version,
)
from retrieval.embedding.client import ModelRefusedError, ModelUnavailableError
from retrieval.ingestion.collection_writer import CollectionWriter, VersionGoneError
from retrieval.ingestion.document_changes import DocumentChanges, EmbeddingProgress
from retrieval.ingestion.index import Index
from retrieval.ingestion.retry_policy import retry_delay_s
from retrieval.parsing.base import Parser, ParsingError
from retrieval.vector_store.base import VectorStoreError

log = logging.getLogger(__name__)

_LONGEST_SLEEP_S: Final = 60.0
_DISK_RETRY_S: Final = 5.0


class IngestionPipeline:
    """Works on the versions that the catalog has queued. `run` is its task; `wake` says that there is a new one."""

    def __init__(
        self,
        catalog: CatalogDatabase,
        originals: Originals,
        parser: Parser,
        writer: CollectionWriter,
        index: Index,
        changes: DocumentChanges,
        *,
        at_once: int,
        clock: Callable[[], float],
        on_garbage: Callable[[], None],
    ) -> None:
        """`at_once`: versions in work at a time. `clock`: Unix time in seconds. `on_garbage`: called after a
        publication that replaced a version."""
        self._catalog = catalog
        self._originals = originals
        self._parser = parser
        self._writer = writer
        self._index = index
        self._changes = changes
        self._at_once = at_once
        self._clock = clock
        self._on_garbage = on_garbage
        self._wake = asyncio.Event()
        self._running: dict[asyncio.Task[None], str] = {}
        self.published = 0
        """Versions that became visible since the start."""
        self.failed = 0
        """Versions that were parked since the start."""
        self.retried = 0
        """Tries that are to be repeated, since the start."""

    def wake(self) -> None:
        """Look for queued versions now."""
        self._wake.set()

    async def run(self) -> None:
        """Work until cancelled. What is in work then is queued again by the next start."""
        await self._catalog.write(restart_versions)
        try:
            while True:
                self._wake.clear()
                try:
                    await self._start_due()
                    delay = await self._sleep_s()
                except (sqlite3.Error, OSError) as error:
                    log.warning("the catalog cannot be read: %s", error)
                    delay = _DISK_RETRY_S
                await self._sleep(delay)
        finally:
            for task in self._running:
                task.cancel()
            await asyncio.gather(*self._running, return_exceptions=True)

    async def _start_due(self) -> None:
        while len(self._running) < self._at_once:
            busy = sorted(set(self._running.values()))
            now = self._clock()
            version = await self._catalog.write(lambda db, busy=busy, now=now: claim_version(db, now, busy))  # type: ignore[misc]
            if version is None:
                return
            task = asyncio.create_task(self._work_on(version))
            self._running[task] = version.tenant
            task.add_done_callback(self._end_task)

    def _end_task(self, task: asyncio.Task[None]) -> None:
        del self._running[task]
        self._wake.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a version was left in work", exc_info=error)

    async def _sleep_s(self) -> float:
        if len(self._running) >= self._at_once:
            return _LONGEST_SLEEP_S
        due = await self._catalog.read(next_retry_at)
        return _LONGEST_SLEEP_S if due is None else min(_LONGEST_SLEEP_S, max(0.0, due - self._clock()))

    async def _sleep(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        except TimeoutError:
            pass

    async def _work_on(self, version: Version) -> None:
        number = version.number
        key = await self._catalog.read(lambda db: find_key(db, number))
        if key is None:
            return
        self._changes.note_change(key)
        try:
            await self._make_visible(version, key)
        except VersionGoneError:
            self._on_garbage()
        except ParsingError as error:
            await self._park(number, error.code, str(error))
        except ModelRefusedError as error:
            await self._park(number, "embedding_refused", f"The embedding model refuses the document: {error}")
        except ModelUnavailableError as error:
            await self._retry(version, "embedding_unavailable", f"The embedding model does not answer: {error}")
        except VectorStoreError as error:
            await self._retry(version, "vector_store_unavailable", f"The vector store does not answer: {error}")
        except (OSError, sqlite3.Error) as error:
            await self._retry(version, "storage_failed", f"The disk does not do as asked: {error}")
        except Exception:
            log.exception("version %d failed", number)
            await self._retry(version, "internal_error", "Retrieval failed on this document; its log says more.")
        finally:
            self._changes.set_progress(number, None)
            self._changes.note_change(key)

    async def _make_visible(self, version: Version, key: DocumentKey) -> None:
        number = version.number
        if not await self._catalog.write(lambda db: resume_embedding(db, number)):
            path = self._originals.path_of(version.sha256)
            parsed = await self._parser.parse_file(
                path, filename=version.filename, media_type=version.declared_type, chunking=version.chunking
            )
            if not await self._catalog.write(lambda db: save_parsed(db, number, parsed)):
                raise VersionGoneError
            total = len(parsed.chunks)
        else:
            total = version.chunks or 0

        def show_progress(chunks: int) -> None:
            self._changes.set_progress(number, EmbeddingProgress(chunks, total))
            self._changes.note_change(key)

        show_progress(0)
        while (is_visible := await self._publish(version, show_progress)) is None:
            pass  # another collection serves since: it needs the points, too
        if is_visible:
            self.published += 1
            self._changes.note_visible_change(version.tenant)
        self._on_garbage()

    async def _publish(self, version: Version, show_progress: Callable[[int], None]) -> bool | None:
        """Write a version into the collection that serves, and make it visible. None: another one serves since."""
        collection = await self._index.find_active()
        try:
            await self._writer.write_version(collection, version, show_progress)
        except KeyError:
            if self._index.active == collection:
                raise
            return None
        async with self._index.publish_lock:
            if self._index.active != collection:
                return None
            return await self._catalog.write(lambda db: publish_version(db, version.number, collection.number))

    async def _park(self, number: int, code: str, message: str) -> None:
        self.failed += 1
        await self._catalog.write(lambda db: fail_version(db, number, code=code, message=message))
        self._on_garbage()

    async def _retry(self, version: Version, code: str, message: str) -> None:
        self.retried += 1
        at = self._clock() + retry_delay_s(version.attempts)
        try:
            await self._catalog.write(lambda db: retry_version(db, version.number, at=at, code=code, message=message))
        except sqlite3.Error as error:
            # Stays claimed until the next start, which queues it again.
            log.error("version %d cannot be queued again: %s", version.number, error)  # noqa: TRY400 - the disk's error
