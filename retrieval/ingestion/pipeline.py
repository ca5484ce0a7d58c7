"""Takes accepted versions through parsing, embedding and publication, a few at a time, until the program stops. Written
versions become durable, and visible, many at a time: a flush of the vector store costs as much for one.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from retrieval.catalog.chunks import resume_embedding, save_parsed
from retrieval.catalog.database import CatalogDatabase
from retrieval.catalog.records import Collection, DocumentKey, Version
from retrieval.catalog.versions import (
    claim_version,
    fail_version,
    find_key,
    hasten_retries,
    last_retry_at,
    next_retry_at,
    publish_version,
    restart_versions,
    retry_version,
)
from retrieval.embedding import ModelRefusedError, ModelUnavailableError
from retrieval.ingestion.collection_writer import DimensionChangedError, VersionGoneError
from retrieval.ingestion.document_changes import DocumentChanges, EmbeddingProgress
from retrieval.ingestion.index import DocumentStores, Index
from retrieval.ingestion.policies import LONGEST_S, MOST_TOGETHER, flush_delay_s, retry_delay_s
from retrieval.parsing.base import Parser, ParsingError
from retrieval.vector_store.base import VectorStore, VectorStoreError

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WrittenVersion:
    """A version whose points are in a collection, and not yet durable. `outcome` gets what
    `Publisher.publish_version` returns or raises."""

    version: Version
    collection: Collection
    since: float
    """When it began to wait to be published, in seconds of the event loop's clock."""
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
        False if it was replaced, deleted or cancelled meanwhile; None if another collection has become the active one:
        write the points there, too, and call again. A version may be published although the call was cancelled.

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


_LONGEST_SLEEP_S: Final = 60.0
_DISK_RETRY_S: Final = 5.0


class IngestionPipeline:
    """Makes queued versions searchable: claims them from the catalog, parses, embeds and publishes them, several at a
    time. It works while `run` does; failed tries are repeated as `retry_delay_s` says, unless the failure is final."""

    def __init__(
        self,
        stores: DocumentStores,
        parser: Parser,
        changes: DocumentChanges,
        *,
        at_once: int,
        clock: Callable[[], float],
        on_garbage: Callable[[], None],
    ) -> None:
        """`at_once`: versions that are parsed and written at a time. `clock`: returns Unix time in seconds.
        `on_garbage`: called when there may be garbage to remove."""
        self._catalog = stores.catalog
        self._originals = stores.originals
        self._parser = parser
        self._writer = stores.writer
        self._index = stores.index
        self._changes = changes
        self._at_once = at_once
        self._clock = clock
        self._on_garbage = on_garbage
        self._wake = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        """Of all versions in work, those too that are written and wait for their publication."""
        self._making: dict[asyncio.Task[None], str] = {}
        """Tasks of versions that are parsed or written, and their tenants."""
        self._unnoted: dict[int, tuple[DocumentKey | None, Callable[[sqlite3.Connection], None]]] = {}
        """By version: the document and the statement of an end that could not be written, as on a full disk. Written
        before anything else is claimed: a version may be claimed anew only after that."""
        self._is_claiming = False
        self._publisher = Publisher(stores.catalog, stores.vectors, stores.index, changes, self._is_more_expected)
        self.published = 0
        """Versions that became visible since the start."""
        self.failed = 0
        """Tries that ended with a final failure, since the start."""
        self.retried = 0
        """Tries that failed and are to be repeated, since the start."""

    def wake(self) -> None:
        """Make `run` look for queued versions now. Call in the event loop, after each commit that queues a version."""
        self._wake.set()

    async def run(self) -> None:
        """Work until cancelled; never return. Call once. First queue again what an earlier process left in work.

        A cancellation waits until the versions in work have stopped; the next start queues them again. After an error
        of the catalog, the work is tried again, and the error is logged; the end of a try that could not be written is
        written as soon as that is possible. Only an error at the very beginning is raised (sqlite3.Error), and one that
        ends the publication of versions.
        """
        await self._catalog.write(restart_versions)
        publishing = asyncio.create_task(self._publisher.run())
        publishing.add_done_callback(lambda _: self._wake.set())
        try:
            while not publishing.done():
                self._is_claiming = True
                self._wake.clear()
                try:
                    await self._start_due()
                    delay = await self._sleep_s()
                except (sqlite3.Error, OSError) as error:
                    log.warning("the catalog cannot be read: %s", error)
                    delay = _DISK_RETRY_S
                self._is_claiming = False
                self._publisher.look()
                await self._sleep(delay)
            publishing.result()  # only a defect ends it: without it, nothing becomes visible any more
        finally:
            tasks = [publishing, *self._tasks]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def _has_room(self) -> bool:
        return len(self._making) < self._at_once and len(self._tasks) < self._at_once + MOST_TOGETHER

    def _is_more_expected(self) -> bool:
        return bool(self._making) or self._is_claiming or self._wake.is_set()

    async def _start_due(self) -> None:
        while True:
            await self._note_ends()
            if not self._has_room:
                return
            busy = sorted(set(self._making.values()))
            now = self._clock()
            version = await self._catalog.write(partial(claim_version, now=now, busy_tenants=busy), is_durable=False)
            if version is None:
                return
            task = asyncio.create_task(self._work_on(version))
            self._tasks.add(task)
            self._making[task] = version.tenant
            task.add_done_callback(self._end_task)

    def _end_making(self) -> None:
        """Let another version take the place of the one that the current task has written."""
        task = asyncio.current_task()
        assert task is not None
        self._making.pop(task, None)
        self._wake.set()

    def _end_task(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._making.pop(task, None)
        self._wake.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            is_disk = isinstance(error, (sqlite3.Error, OSError))
            log.error("a version was left in work: %s", error, exc_info=None if is_disk else error)

    async def _sleep_s(self) -> float:
        if not self._has_room:
            return _LONGEST_SLEEP_S
        due, last = await self._catalog.read(lambda db: (next_retry_at(db), last_retry_at(db)))
        now = self._clock()
        if last > now + LONGEST_S:  # the clock was put back
            await self._catalog.write(partial(hasten_retries, now=now, latest=now + LONGEST_S))
            return 0.0
        return _LONGEST_SLEEP_S if due is None else min(_LONGEST_SLEEP_S, max(0.0, due - now))

    async def _sleep(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        except TimeoutError:
            pass

    async def _work_on(self, version: Version) -> None:
        number, key = version.number, None
        try:
            key = await self._catalog.read(lambda db: find_key(db, number))
            if key is None:
                return
            self._changes.note_change(key)
            await self._make_visible(version, key)
        except VersionGoneError:
            self._on_garbage()
        except ParsingError as error:
            await self._park(number, key, error.code, str(error))
        except ModelRefusedError as error:
            message = f"The embedding model refuses the document: {error}"
            await self._park(number, key, "embedding_refused", message)
        except ModelUnavailableError as error:
            await self._retry(version, key, "embedding_unavailable", f"The embedding model does not answer: {error}")
        except DimensionChangedError as error:
            await self._retry(version, key, "embedding_model_changed", str(error))
        except VectorStoreError as error:
            await self._retry(version, key, "vector_store_unavailable", f"The vector store does not answer: {error}")
        except (OSError, sqlite3.Error) as error:
            await self._retry(version, key, "storage_failed", f"The disk does not do as asked: {error}")
        except Exception:
            log.exception("version %d failed", number)
            await self._retry(version, key, "internal_error", "Retrieval failed on this document; its log says more.")
        finally:
            self._changes.set_progress(number, None)
            self._note_change(key)

    async def _make_visible(self, version: Version, key: DocumentKey) -> None:
        number = version.number
        total = await self._catalog.write(lambda db: resume_embedding(db, number), is_durable=False)
        if total is None:
            path = self._originals.path_of(version.sha256)
            parsed = await self._parser.parse_file(
                path, filename=version.filename, media_type=version.declared_type, chunking=version.chunking
            )
            if not await self._catalog.write(lambda db: save_parsed(db, number, parsed), is_durable=False):
                raise VersionGoneError
            total = len(parsed.chunks)

        def show_progress(chunks: int) -> None:
            self._changes.set_progress(number, EmbeddingProgress(chunks, total))
            self._changes.note_change(key)

        show_progress(0)
        while (is_visible := await self._publish(version, show_progress)) is None:
            pass  # another collection serves since: it needs the points, too
        if is_visible:
            self.published += 1
        self._on_garbage()

    async def _publish(self, version: Version, show_progress: Callable[[int], None]) -> bool | None:
        """Write a version into the collection that serves, and make it visible. None: another one serves since."""
        collection = await self._index.find_active()
        try:
            await self._writer.write_version(collection, version, show_progress)
            self._end_making()
            return await self._publisher.publish_version(version, collection)
        except KeyError:
            if self._index.active != collection:
                return None
            self._index.note_lost()
            raise VectorStoreError("it has lost the index, which is made anew") from None

    async def _park(self, number: int, key: DocumentKey | None, code: str, message: str) -> None:
        self.failed += 1
        await self._note_end(number, key, partial(fail_version, version=number, code=code, message=message))
        self._on_garbage()

    async def _retry(self, version: Version, key: DocumentKey | None, code: str, message: str) -> None:
        self.retried += 1
        at = self._clock() + retry_delay_s(version.attempts)
        end = partial(retry_version, version=version.number, at=at, code=code, message=message)
        await self._note_end(version.number, key, end)

    async def _note_end(self, number: int, key: DocumentKey | None, end: Callable[[sqlite3.Connection], None]) -> None:
        try:
            await self._catalog.write(end)
        except (sqlite3.Error, OSError) as error:
            log.error("version %d stays in work until its end can be written: %s", number, error)  # noqa: TRY400 - the disk's error
            self._unnoted[number] = key, end

    async def _note_ends(self) -> None:
        """Write the ends of tries that could not be written. Raises sqlite3.Error or OSError: all of them stay."""
        if not (ends := dict(self._unnoted)):
            return

        def note(db: sqlite3.Connection) -> None:
            for _, end in ends.values():
                end(db)

        await self._catalog.write(note)
        for number, (key, _) in ends.items():
            del self._unnoted[number]
            self._note_change(key)

    def _note_change(self, key: DocumentKey | None) -> None:
        if key is not None:
            self._changes.note_change(key)
