"""Assembly of one retrieval program from its parts: construction, background tasks, and their end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import sqlite3
import time
from pathlib import Path
from typing import Final, get_args

from starlette.applications import Starlette

from common.sqlite_files import ORIGINALS_FOLDER, RESTORED_NAME, RETRIEVAL_FOLDER
from common.trusted_clock import TrustedClock
from contract.errors import RoundhouseError
from contract.retrieval import IndexStatus, RetrievalStatus
from retrieval.api.app import create_app
from retrieval.api.documents import DocumentRoutes, SearchRoutes, StatusRoutes, TenantRoutes
from retrieval.api.vector_stores import FileRoutes, VectorStoreRoutes
from retrieval.catalog.collections import count_missing
from retrieval.catalog.database import CatalogDatabase
from retrieval.catalog.originals import Originals
from retrieval.catalog.records import Collection, VersionState
from retrieval.catalog.versions import count_chunks, count_states, oldest_accepted_at
from retrieval.documents import DocumentService
from retrieval.embedding import ModelClient, Prefixes, choose_prefixes
from retrieval.file_search import FileService, VectorStoreService
from retrieval.ingestion.collection_writer import CollectionWriter
from retrieval.ingestion.document_changes import DocumentChanges
from retrieval.ingestion.index import PASSING, DocumentStores, GarbageCollector, Index
from retrieval.ingestion.pipeline import IngestionPipeline
from retrieval.metrics import Figures, RetrievalMetrics
from retrieval.parsing.base import ChunkingOptions, Parser
from retrieval.search import SearchService
from retrieval.settings import RetrievalSettings
from retrieval.vector_store.base import VectorStore, VectorStoreError
from retrieval.vector_store.tokenizer import Bm25Options

log = logging.getLogger(__name__)

MIB: Final = 1024 * 1024
RETRY_S: Final = 5.0
"""Seconds until work in the background is tried again after a failure."""
TELL_AGAIN_S: Final = 600.0
"""Seconds after which a failure that goes on for the same reason is logged again."""
EXPIRE_EVERY_S: Final = 60.0
"""Seconds between looks at what has expired, and at what a backup kept from being removed."""
OPTIMIZE_EVERY_S: Final = 15.0
OPTIMIZE_FROM: Final = 5_000
"""Points written since the last time from which a collection is optimized while nothing else is written."""
OPTIMIZE_AT: Final = 50_000
"""Points written since the last time from which it is optimized in any case."""


class _Complaints:
    """Logs what fails in the background and is tried again, one line each: at once, and again after `TELL_AGAIN_S` or
    with another reason."""

    def __init__(self) -> None:
        self._told: dict[str, tuple[str, float]] = {}
        """By what is told: its reason, and the monotonic seconds of the line."""

    def tell(self, words: str, error: Exception) -> None:
        reason, now = str(error) or type(error).__name__, time.monotonic()
        told_reason, told_at = self._told.get(words, ("", -math.inf))
        if reason != told_reason or now >= told_at + TELL_AGAIN_S:
            self._told[words] = reason, now
            log.warning("%s: %s", words, reason)


class Retrieval:
    """All parts of one retrieval program: the catalog, the services behind the routes, and the tasks in the background.

    An async context manager, entered once. Entering waits until the vector store answers, however long that takes, and
    starts the tasks; leaving ends them and closes the catalog, the vector store and the parser. What entering raises
    (sqlite3.Error or OSError, where the catalog or the originals' folder fails) leaves all of them open.
    """

    def __init__(
        self,
        settings: RetrievalSettings,
        store: VectorStore,
        parser: Parser,
        models: ModelClient,
        clock: TrustedClock,
    ) -> None:
        """Open the catalog in the state folder, which is made where it is missing. Blocks.

        Leaving the context closes `store` and `parser`, but not `models`.

        Raises:
            sqlite3.Error: the catalog is damaged, of another version (NewerDatabaseError, OlderDatabaseError), or in
                use by another process (sqlite3.OperationalError with SQLITE_BUSY). `store` and `parser` stay open.
            OSError: the state folder cannot be used.
        """
        folder = data_folder(settings)
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._settings = settings
        self._clock = clock
        self.metrics = RetrievalMetrics()
        self.store = store
        self._parser = parser
        self.catalog = CatalogDatabase(folder)
        self.originals = Originals(folder / ORIGINALS_FOLDER)
        self.changes = DocumentChanges()
        self.writer = CollectionWriter(
            self.catalog, store, models, self._prefixes_of, batch=settings.retrieval_embed_batch
        )
        bm25 = Bm25Options(settings.retrieval_language)
        self.index = Index(self.catalog, store, self.writer, models, settings.retrieval_embedding_model, bm25)
        stores = DocumentStores(self.catalog, self.originals, store, self.index, self.writer)
        self.collector = GarbageCollector(stores)
        self._complaints = _Complaints()
        self._has_garbage = asyncio.Event()
        self._wants_reindex = asyncio.Event()
        self._reindex_error: str | None = None
        self.pipeline = IngestionPipeline(
            stores,
            parser,
            self.changes,
            at_once=settings.retrieval_parsers + 1,
            clock=clock.read_earliest,
            on_garbage=self._has_garbage.set,
        )
        chunking = ChunkingOptions(settings.retrieval_chunk_tokens, settings.retrieval_chunk_overlap_tokens)
        self.documents = DocumentService(
            self.catalog,
            self.originals,
            self.changes,
            chunking=chunking,
            clock=clock.read_latest,
            on_accepted=self.pipeline.wake,
            on_garbage=self._has_garbage.set,
        )
        self.files = FileService(
            self.catalog,
            self.originals,
            clock=clock,
            on_garbage=self._has_garbage.set,
            on_deleted=self.changes.note_deletion,
        )
        self.vector_stores = VectorStoreService(
            self.catalog, self.documents, self.files, chunking=chunking, clock=clock
        )
        self.search = SearchService(
            self.catalog,
            store,
            self.index,
            models,
            self.changes,
            self._prefixes_of,
            settings.retrieval_rerank_model,
        )
        self._tasks: list[asyncio.Task[None]] = []
        self.has_failed = asyncio.Event()
        """Set when a task in the background has ended with an unexpected exception. The caller must then leave the
        context and end the process with a failure, so that it is started again."""

    def build_app(self) -> Starlette:
        """Return a new ASGI application with all routes, `GET /metrics` included. It checks no token (wrap it in
        `common.program.TokenCheck` for that), and can serve only while the context is entered."""
        max_bytes = self._settings.retrieval_max_file_mib * MIB
        groups = (
            DocumentRoutes(self.documents, self.originals, max_bytes),
            SearchRoutes(self.search, self.documents, self.metrics),
            TenantRoutes(self.documents),
            FileRoutes(self.files, self.originals, max_bytes),
            VectorStoreRoutes(self.vector_stores, self.search, self.metrics),
            StatusRoutes(self.read_status, self._wants_reindex.set, self._clock.confirm),
        )
        handlers = {key: handler for group in groups for key, handler in group.handlers().items()}
        return create_app(handlers, self.render_metrics, self._clock.describe_hold)

    async def render_metrics(self) -> bytes:
        """Read the current figures from the catalog and the services, and return all metrics in Prometheus' text
        format. Raises sqlite3.Error where the catalog cannot be read."""
        states, chunks, oldest = await self.catalog.read(
            lambda db: (count_states(db), count_chunks(db), oldest_accepted_at(db))
        )
        figures = Figures(
            versions={state: states.get(state, 0) for state in get_args(VersionState)},
            chunks=chunks,
            oldest_age_s=0.0 if oldest is None else max(0.0, self._clock.read_earliest() - oldest),
            unindexed_documents=self.index.missing,
            published=self.pipeline.published,
            failed=self.pipeline.failed,
            retried=self.pipeline.retried,
            chunks_written=self.writer.points_written,
        )
        return self.metrics.render(figures)

    async def __aenter__(self) -> Retrieval:
        await self._open_index()
        await self.collector.remove_leftovers()
        self._has_garbage.set()
        loops = (
            self.pipeline.run(),
            self._collect_garbage(),
            self._fill_index(),
            self._optimize(),
            self._delete_expired(),
            self._reindex(),
            self._clock.run(),
        )
        self._tasks = [asyncio.create_task(each) for each in loops]
        for task in self._tasks:
            task.add_done_callback(self._note_end)
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        async with contextlib.AsyncExitStack() as stack:
            stack.callback(self.catalog.close)
            stack.push_async_callback(self.store.close)
            stack.push_async_callback(self._parser.close)

    def _note_end(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.critical("work in the background ended; the program ends, to be started again", exc_info=error)
            self.has_failed.set()

    def _prefixes_of(self, model: str) -> Prefixes:
        settings = self._settings
        return choose_prefixes(model, query=settings.retrieval_query_prefix, passage=settings.retrieval_passage_prefix)

    async def _open_index(self) -> None:
        restored = data_folder(self._settings) / RESTORED_NAME
        while True:
            try:
                await self.index.open(is_restored=restored.exists())
                restored.unlink(missing_ok=True)
            except VectorStoreError as error:
                log.warning("the vector store does not answer, and is asked again: %s", error)
                await asyncio.sleep(RETRY_S)
            else:
                return

    async def _collect_garbage(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                # What was deleted while it was written stayed, and its writer may not say when it ends.
                async with asyncio.timeout(RETRY_S if self.writer.versions_in_use else None):
                    await self._has_garbage.wait()
            self._has_garbage.clear()
            try:
                await self.collector.collect()
            except PASSING as error:
                if isinstance(error, KeyError):
                    self.index.note_lost()
                self._complaints.tell("garbage was left, and is removed later", error)
            except Exception:
                log.exception("garbage was left, and is removed later")
            else:
                continue
            await asyncio.sleep(RETRY_S)
            self._has_garbage.set()

    async def read_status(self) -> RetrievalStatus:
        """Return the answer of `GET /v1/retrieval`: the collection that searches use, the one that is being built, and
        the number of versions by state, of all tenants. Raises sqlite3.Error where the catalog cannot be read."""
        states = await self.catalog.read(count_states)
        active, building = self.index.active, self.index.building
        return RetrievalStatus(
            vector_store=self.store.kind,
            embedding_model=self.index.wanted_model,
            language=self.index.wanted_bm25.language,
            rerank_model=self._settings.retrieval_rerank_model,
            index=None if active is None else await self._read_index(active),
            building=None if building is None else await self._read_index(building),
            needs_reindex=self.index.needs_reindex,
            reindex_error=self._reindex_error,
            clock_hold=self._clock.describe_hold(),
            versions=states,
        )

    async def _read_index(self, collection: Collection) -> IndexStatus:
        return IndexStatus(
            name=collection.name,
            embedding_model=collection.model,
            dimension=collection.dimension,
            language=collection.bm25.language,
            missing_documents=await self.catalog.read(lambda db: count_missing(db, collection.number)),
        )

    async def _reindex(self) -> None:
        while True:
            await self._wants_reindex.wait()
            self._wants_reindex.clear()
            try:
                await self.index.reindex()
            except PASSING as error:
                if isinstance(error, KeyError):
                    self.index.note_lost()
                self._complaints.tell("the reindex did not end, and is tried again", error)
                self._reindex_error = str(error)
                await asyncio.sleep(RETRY_S)
                self._wants_reindex.set()
            else:
                self._reindex_error = None

    async def _fill_index(self) -> None:
        while True:
            try:
                await self.index.replace_lost()
                await self.index.fill()
            except PASSING as error:
                self._complaints.tell("the index cannot be completed, and is tried again", error)
                await asyncio.sleep(RETRY_S)
            else:
                await self.index.wait_until_lost()

    async def _delete_expired(self) -> None:
        while True:
            try:
                await self.files.delete_expired()
                await self.vector_stores.empty_expired()
                await self.collector.remove_postponed()
            except (OSError, sqlite3.Error, RoundhouseError) as error:
                self._complaints.tell("what has expired stays for now", error)
            await asyncio.sleep(EXPIRE_EVERY_S)

    async def _optimize(self) -> None:
        done = seen = number = 0
        while True:
            await asyncio.sleep(OPTIMIZE_EVERY_S)
            written = self.writer.points_written
            if self.index.active is not None and self.index.active.number != number:
                number, done = self.index.active.number, 0  # it was written before it became the active one
            is_quiet, seen = written == seen, written
            if written - done < (OPTIMIZE_FROM if is_quiet else OPTIMIZE_AT) or self.index.active is None:
                continue
            try:
                await self.store.optimize_collection(self.index.active.name)
            except (VectorStoreError, KeyError) as error:
                if isinstance(error, KeyError):
                    self.index.note_lost()
                log.warning("the collection was not optimized: %s", error)
            done = written


def data_folder(settings: RetrievalSettings) -> Path:
    """Return the folder of the catalog, the originals and the embedded vector store, below the state folder. It may
    not exist yet."""
    return settings.state / RETRIEVAL_FOLDER
