"""OpenAI's files and vector stores, on the same documents.

A vector store is a space of documents.
"""

from __future__ import annotations

import asyncio
import secrets
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from common.trusted_clock import TrustedClock
from contract.errors import RoundhouseError
from contract.files import (
    ChunkingStrategy,
    FileBatchObject,
    NewFileBatch,
    NewVectorStore,
    NewVectorStoreFile,
    VectorStoreChange,
    VectorStoreFile,
    VectorStoreObject,
)
from retrieval.catalog.chunks import text_size
from retrieval.catalog.cleanup import discard_original
from retrieval.catalog.database import CatalogDatabase
from retrieval.catalog.files import StoredFile, add_file, delete_file, find_file, list_expired_files, list_files
from retrieval.catalog.originals import IncomingOriginal, Originals
from retrieval.catalog.paging import PageRequest, cut_list
from retrieval.catalog.records import DocumentKey, NewVersion, StoredDocument
from retrieval.catalog.vector_stores import (
    FileBatch,
    StoredVectorStore,
    add_batch,
    find_batch,
    find_store,
    forget_store,
    list_expired_stores,
    list_stores,
    save_store,
    touch_store,
)
from retrieval.catalog.versions import cancel_versions, count_space, find_document
from retrieval.documents import DocumentService, check_content, storage_error, unknown_cursor
from retrieval.parsing.base import ChunkingOptions
from retrieval.views import build_batch, build_status_condition, build_store, build_store_file, check_metadata

SHORTEST_LIFE_S: Final = 3_600
LONGEST_LIFE_S: Final = 2_592_000


class FileService:
    """Keeps the files that clients uploaded to `/v1/files`, of all tenants. Vector stores make documents of them.

    Methods that take a file's id raise RoundhouseError `file_not_found` for a file that the tenant does not have. Apart
    from `add_file`, they raise sqlite3.Error and OSError as they come. A call that is cancelled may still be carried
    out.
    """

    def __init__(
        self,
        catalog: CatalogDatabase,
        originals: Originals,
        *,
        clock: TrustedClock,
        on_garbage: Callable[[], None],
        on_deleted: Callable[[str], None],
    ) -> None:
        """`on_garbage`: called after a deletion. `on_deleted`: called after a deletion with the tenant whose documents
        were deleted."""
        self._catalog = catalog
        self._originals = originals
        self._clock = clock
        self._on_garbage = on_garbage
        self._on_deleted = on_deleted

    async def add_file(
        self,
        tenant: str,
        incoming: IncomingOriginal,
        *,
        filename: str,
        media_type: str | None,
        purpose: str,
        expires_after_s: int | None,
    ) -> StoredFile:
        """Store a file durably, whose whole content is in `incoming`, and return it with its new id. `expires_after_s`:
        seconds from now; None: it never expires. `media_type`: as the client declared it; None: not at all.

        Raises:
            RoundhouseError: `document_empty`, `storage_full`, `storage_failed`.
        """
        check_content(incoming)
        now = self._clock.read_latest()
        expires_at = None if expires_after_s is None else now + expires_after_s
        file = StoredFile(
            f"file-{secrets.token_hex(16)}",
            tenant,
            filename,
            purpose,
            media_type,
            incoming.sha256,
            incoming.bytes,
            now,
            expires_at,
        )
        try:
            with self._originals.pin(file.sha256):
                await asyncio.to_thread(incoming.keep)
                await self._catalog.write(lambda db: add_file(db, file))
        except (OSError, sqlite3.Error) as error:
            await discard_original(self._catalog, self._originals, file.sha256)
            raise storage_error(error) from None
        return file

    async def find_file(self, tenant: str, file_id: str) -> StoredFile:
        """Return a file. Raises RoundhouseError `file_not_found`, also once it has expired, and sqlite3.Error."""
        now = self._clock.read_earliest()
        file = await self._catalog.read(lambda db: find_file(db, tenant, file_id, now))
        if file is None:
            raise file_not_found(file_id)
        return file

    async def list_files(
        self, tenant: str, *, after: str | None, limit: int, is_ascending: bool, purpose: str | None
    ) -> tuple[list[StoredFile], bool]:
        """Return up to `limit` files of a tenant that have not expired, oldest first if `is_ascending`, else newest
        first, and whether more follow. `after`: only those after the file with that id; None: from the first on.
        `purpose` None: any. Raises RoundhouseError `invalid_request` if the tenant has no file `after`; sqlite3.Error.
        """
        now = self._clock.read_earliest()
        try:
            files = await self._catalog.read(
                lambda db: list_files(
                    db, tenant, now, after=after, limit=limit + 1, is_ascending=is_ascending, purpose=purpose
                )
            )
        except LookupError:
            message = f"`after` must be the id of a file; it is {after!r:.100}."
            raise RoundhouseError("invalid_request", message, param="after") from None
        return files[:limit], len(files) > limit

    async def delete_file(self, tenant: str, file_id: str) -> None:
        """Delete a file, also an expired one, with its documents in all vector stores; then remove its original unless
        something else needs it. Raises RoundhouseError `file_not_found`, also for a second call, and sqlite3.Error. An
        original that cannot be removed raises nothing, and stays until the next start."""
        if not await self._delete(tenant, file_id):
            raise file_not_found(file_id)

    async def delete_expired(self) -> int:
        """Delete the files of all tenants that have expired, with their documents in all vector stores, and their
        originals unless something else needs them. Return how many; those that a client deletes meanwhile are not
        counted. Call regularly. Raises sqlite3.Error at the first that fails; the next call goes on."""
        now = self._clock.read_earliest()
        expired = await self._catalog.read(lambda db: list_expired_files(db, now))
        return sum([await self._delete(tenant, file_id) for tenant, file_id in expired])

    async def _delete(self, tenant: str, file_id: str) -> bool:
        sha256 = await self._catalog.write(lambda db: delete_file(db, tenant, file_id))
        if sha256 is None:
            return False
        self._on_deleted(tenant)
        self._on_garbage()
        await discard_original(self._catalog, self._originals, sha256)
        return True

    def original_of(self, file: StoredFile) -> Path:
        """Return the path of the file's content. It may be removed at any time after the file was deleted."""
        return self._originals.path_of(file.sha256)


def file_not_found(file_id: str) -> RoundhouseError:
    """Return the RoundhouseError `file_not_found` for a file's id; the caller raises it."""
    return RoundhouseError("file_not_found", f"There is no file {file_id!r:.100}.", param="file_id")


_METADATA: Final = "metadata"
_ATTRIBUTES: Final = "attributes"


class VectorStoreService:
    """OpenAI's vector stores of all tenants: a vector store is the space of documents with its id, and each of its
    files is a document with the file's id. Searches are elsewhere (`SearchService`); call `use_store` before one.

    Methods raise RoundhouseError `vector_store_not_found` for a vector store (or a batch) that the tenant does not
    have, `file_not_found` for a file that the tenant or the vector store does not have, and `invalid_request` for wrong
    metadata, attributes, sizes of chunks or `after`. Those that queue files raise `retrieval_busy`, `storage_full` and
    `storage_failed`. All raise sqlite3.Error if the catalog fails otherwise. A call that is cancelled may still be
    carried out.
    """

    def __init__(
        self,
        catalog: CatalogDatabase,
        documents: DocumentService,
        files: FileService,
        *,
        chunking: ChunkingOptions,
        clock: TrustedClock,
    ) -> None:
        """`chunking`: sizes of chunks for the strategy `auto`."""
        self._catalog = catalog
        self._documents = documents
        self._files = files
        self._chunking = chunking
        self._clock = clock

    async def create_store(self, tenant: str, new: NewVectorStore) -> VectorStoreObject:
        """Create a vector store, queue its first files for indexing, and return it.

        Raises RoundhouseError `invalid_request`, `file_not_found` or `retrieval_busy` before anything is created. After
        the vector store was created with some of its files, raises `storage_full` or `storage_failed`, and
        `file_not_found`, `vector_store_not_found` or `retrieval_busy` if a file, the vector store or the room has gone
        meanwhile.
        """
        check_metadata(new.metadata or {}, _METADATA)
        chunking = self._choose_chunking(new.chunking_strategy)
        files = [await self._files.find_file(tenant, file_id) for file_id in new.file_ids or ()]
        await self._documents.check_room(len(files))
        now = self._clock.read_latest()
        days = None if new.expires_after is None else new.expires_after.days
        store = StoredVectorStore(
            f"vs_{secrets.token_hex(16)}", tenant, new.name, new.description, new.metadata or {}, now, now, days
        )
        await self._catalog.write(lambda db: save_store(db, store))
        for file in files:
            await self._add(tenant, store.id, file.id, {}, chunking)
        return await self._view(store)

    async def get_store(self, tenant: str, store_id: str) -> VectorStoreObject:
        """Return a vector store, expired or not. Raises RoundhouseError `vector_store_not_found`, and sqlite3.Error."""
        return await self._view(await self._find(tenant, store_id))

    async def list_stores(self, tenant: str, page: PageRequest) -> tuple[list[VectorStoreObject], bool]:
        """Return a page of the tenant's vector stores, expired ones included, in the order that `page` asks for, and
        whether there are more behind it (with `before`: ahead of it). Raises RoundhouseError `invalid_request` if the
        page's cursor is the id of no vector store of the tenant, and sqlite3.Error."""
        try:
            stores, has_more = await self._catalog.read(lambda db: list_stores(db, tenant, page))
        except LookupError:
            raise unknown_cursor(page, "a vector store") from None
        return [await self._view(store) for store in stores], has_more

    async def change_store(self, tenant: str, store_id: str, change: VectorStoreChange) -> VectorStoreObject:
        """Change those fields of a vector store that the client sent (null clears one), and return it. Counts as
        activity, so that an expired one is in use again; files that were deleted meanwhile do not come back. Raises
        RoundhouseError `vector_store_not_found`, or `invalid_request` for the metadata; and sqlite3.Error."""
        await self._find(tenant, store_id)  # its absence is told before what is wrong with the metadata
        check_metadata(change.metadata or {}, _METADATA)
        now, changes = self._clock.read_latest(), _changes_of(change)

        def change_stored(db: sqlite3.Connection) -> StoredVectorStore:
            store = replace(_find_store(db, tenant, store_id), last_active_at=now, **changes)
            save_store(db, store)
            return store

        return await self._view(await self._catalog.write(change_stored))

    async def delete_store(self, tenant: str, store_id: str) -> None:
        """Delete a vector store, its batches, and what it has made of its files; the files stay. When this returns, no
        search that begins finds what it held. Raises RoundhouseError `vector_store_not_found`, `storage_full` or
        `storage_failed`."""
        if await self._documents.delete_space(tenant, store_id, lambda db: forget_store(db, tenant, store_id)) is None:
            raise _store_not_found(store_id)

    async def use_store(self, tenant: str, store_id: str) -> None:
        """Note that a vector store is used now, so that it expires later. Call before a search in it. Raises
        RoundhouseError `vector_store_not_found`, or `vector_store_expired` for one that has expired, which stays so;
        and sqlite3.Error."""
        now, earliest = self._clock.read_latest(), self._clock.read_earliest()

        def use(db: sqlite3.Connection) -> None:
            if _has_expired(_find_store(db, tenant, store_id), earliest):
                message = f"The vector store {store_id} has expired."
                raise RoundhouseError("vector_store_expired", message, param="vector_store_id")
            touch_store(db, store_id, now)

        await self._catalog.write(use)

    async def add_file(self, tenant: str, store_id: str, new: NewVectorStoreFile) -> VectorStoreFile:
        """Queue a file for indexing in a vector store, and return it with its state now. Counts as activity of the
        vector store. A file that is there already gets the new attributes and sizes of chunks once it is indexed again;
        if nothing differs, nothing happens, but a failed or cancelled one is tried again.

        Raises RoundhouseError `invalid_request`, `vector_store_not_found`, `vector_store_expired`, `file_not_found`,
        `retrieval_busy`, `storage_full` or `storage_failed`.
        """
        check_metadata(new.attributes or {}, _ATTRIBUTES)
        chunking = self._choose_chunking(new.chunking_strategy)
        await self.use_store(tenant, store_id)
        await self._add(tenant, store_id, new.file_id, new.attributes or {}, chunking)
        return await self.get_file(tenant, store_id, new.file_id)

    async def get_file(self, tenant: str, store_id: str, file_id: str) -> VectorStoreFile:
        """Return the status and attributes of a file in a vector store. Raises RoundhouseError
        `vector_store_not_found`, or `file_not_found` if the vector store does not have the file; and sqlite3.Error."""
        return await self._view_file(await self._find_document(tenant, store_id, file_id))

    async def list_files(
        self, tenant: str, store_id: str, page: PageRequest, *, status: str | None
    ) -> tuple[list[VectorStoreFile], bool]:
        """Return a page of a vector store's files in the order of their addition that `page` asks for, and whether
        there are more behind it (with `before`: ahead of it). `status`: only files with this status of OpenAI's; None:
        all. Raises RoundhouseError `vector_store_not_found`, or `invalid_request` if the page's cursor is the id of no
        file of the vector store; and sqlite3.Error."""
        await self._find(tenant, store_id)
        documents, has_more = await self._documents.list_stored(
            tenant,
            store_id,
            page,
            where=build_status_condition(status),
            matches=lambda document: _has_status(document, status),
        )
        return [await self._view_file(document) for document in documents], has_more

    async def change_attributes(
        self, tenant: str, store_id: str, file_id: str, attributes: Mapping[str, Any]
    ) -> VectorStoreFile:
        """Replace all attributes of a file in a vector store, queue it for indexing again, and return it: `completed`
        if it is searchable, since its text stays so. Until that is done, searches compare the old attributes. Does
        nothing for the same attributes, but a failed or cancelled file is tried again. An expired vector store is not
        refused, and the change does not count as activity.

        Raises RoundhouseError `invalid_request`, `vector_store_not_found`, `file_not_found` (also if the file itself
        was deleted or has expired), `retrieval_busy`, `storage_full` or `storage_failed`.
        """
        check_metadata(attributes, _ATTRIBUTES)
        await self._add(tenant, store_id, file_id, attributes, None)
        document = await self._find_document(tenant, store_id, file_id)
        view = await self._view_file(document)
        is_searchable = document.live is not None and view.status == "in_progress"
        return view.model_copy(update={"status": "completed"}) if is_searchable else view

    async def remove_file(self, tenant: str, store_id: str, file_id: str) -> None:
        """Remove a file from a vector store; the file itself stays. When this returns, no search that begins finds it.
        Raises RoundhouseError `vector_store_not_found`, `file_not_found`, `storage_full` or `storage_failed`;
        sqlite3.Error."""
        document = await self._find_document(tenant, store_id, file_id)
        try:
            await self._documents.delete_document(document.key)
        except RoundhouseError as error:
            raise (file_not_found(file_id) if error.entry.code == "document_not_found" else error) from None

    async def read_text(self, tenant: str, store_id: str, file_id: str) -> str:
        """Return the text that was extracted from a file. Raises RoundhouseError `vector_store_not_found`,
        `file_not_found`, or `document_not_found` if the file is not searchable yet; and sqlite3.Error."""
        document = await self._find_document(tenant, store_id, file_id)
        return (await self._documents.read_text(document.key)).decode()

    async def add_batch(self, tenant: str, store_id: str, new: NewFileBatch) -> FileBatchObject:
        """Queue files for indexing in a vector store as one batch, and return the batch. Each is added as `add_file`
        does.

        Raises RoundhouseError `vector_store_not_found`, `vector_store_expired`, `file_not_found` for any of the files,
        `invalid_request` or `retrieval_busy` before anything is added. After some of the files were added, raises
        `storage_full` or `storage_failed`, and `file_not_found`, `vector_store_not_found` or `retrieval_busy` if a
        file, the vector store or the room has gone meanwhile.
        """
        await self.use_store(tenant, store_id)
        wanted = self._wanted_files(new)
        files = [await self._files.find_file(tenant, each.file_id) for each in wanted]
        # All of them, or none: a client that was refused sends all of them again.
        await self._documents.check_room(len(files))
        batch = FileBatch(
            f"vsfb_{secrets.token_hex(16)}", store_id, tenant, self._clock.read_latest(), [file.id for file in files]
        )

        def add(db: sqlite3.Connection) -> None:
            _find_store(db, tenant, store_id)
            add_batch(db, batch)

        await self._catalog.write(add)
        for each in wanted:
            chunking = self._choose_chunking(each.chunking_strategy)
            await self._add(tenant, store_id, each.file_id, each.attributes or {}, chunking)
        return await self._view_batch(batch)

    async def get_batch(self, tenant: str, store_id: str, batch_id: str) -> FileBatchObject:
        """Return a batch with its files by status now. Raises RoundhouseError `vector_store_not_found`, also for an
        unknown batch, and sqlite3.Error."""
        return await self._view_batch(await self._find_batch(tenant, store_id, batch_id))

    async def cancel_batch(self, tenant: str, store_id: str, batch_id: str) -> FileBatchObject:
        """Stop indexing those files of a batch that are in progress, and return the batch. The status of these files
        becomes `cancelled`; an older version of such a file stays searchable. Other files stay as they are, so a call
        for a batch that is done changes nothing. Raises RoundhouseError `vector_store_not_found`, also for an unknown
        batch, and sqlite3.Error."""
        batch = await self._find_batch(tenant, store_id, batch_id)
        keys = [DocumentKey(tenant, store_id, file_id) for file_id in batch.files]
        await self._catalog.write(lambda db: cancel_versions(db, keys))
        return await self._view_batch(batch)

    async def list_batch_files(
        self, tenant: str, store_id: str, batch_id: str, page: PageRequest, *, status: str | None
    ) -> tuple[list[VectorStoreFile], bool]:
        """Return a page of the files of a batch, by their places in it, and whether there are more behind it (with
        `before`: ahead of it); those that were removed since are missing. `status`: only files with this status of
        OpenAI's; None: all. Raises RoundhouseError `vector_store_not_found`, also for an unknown batch, and
        `invalid_request` if the page's cursor is the id of no file of the batch; and sqlite3.Error."""
        batch = await self._find_batch(tenant, store_id, batch_id)
        keys = [DocumentKey(tenant, store_id, file_id) for file_id in batch.files]
        # With those that were removed: a client may go on behind one of them.
        found = await self._catalog.read(lambda db: [(key.id, find_document(db, key)) for key in keys])
        try:
            kept, has_more = cut_list(
                found, page, lambda each: each[0], lambda each: each[1] is not None and _has_status(each[1], status)
            )
        except LookupError:
            raise unknown_cursor(page, "a file of the batch") from None
        return [await self._view_file(document) for _, document in kept if document is not None], has_more

    async def empty_expired(self) -> int:
        """Delete what expired vector stores of all tenants have made of their files; the vector stores stay, as
        expired. Return how many were emptied; those that are empty already, deleted or in use again are not counted.
        Call regularly. Raises RoundhouseError `storage_full` or `storage_failed`, or sqlite3.Error, at the first that
        fails; the next call goes on."""
        now = self._clock.read_earliest()

        def is_expired(db: sqlite3.Connection, tenant: str, store_id: str) -> bool:
            store = find_store(db, tenant, store_id)
            return store is not None and _has_expired(store, now)

        emptied = 0
        for tenant, store_id in await self._catalog.read(lambda db: list_expired_stores(db, now)):
            check = partial(is_expired, tenant=tenant, store_id=store_id)
            emptied += await self._documents.delete_space(tenant, store_id, check) is not None
        return emptied

    def _wanted_files(self, new: NewFileBatch) -> Sequence[NewVectorStoreFile]:
        if (new.file_ids is None) == (new.files is None):
            raise RoundhouseError("invalid_request", "Send either `file_ids` or `files`.", param="file_ids")
        check_metadata(new.attributes or {}, _ATTRIBUTES)
        wanted = [
            *(new.files or ()),
            *(
                NewVectorStoreFile.model_construct(
                    file_id=file_id, attributes=new.attributes, chunking_strategy=new.chunking_strategy
                )
                for file_id in new.file_ids or ()
            ),
        ]
        for index, each in enumerate(wanted):
            check_metadata(each.attributes or {}, f"files.{index}.{_ATTRIBUTES}")
            self._choose_chunking(each.chunking_strategy)
        return list({each.file_id: each for each in wanted}.values())  # of one that comes twice, the last

    def _choose_chunking(self, strategy: ChunkingStrategy | None) -> ChunkingOptions:
        if strategy is None or strategy.type == "auto":
            return self._chunking
        if strategy.static is None:
            message = "`chunking_strategy.static` is missing."
            raise RoundhouseError("invalid_request", message, param="chunking_strategy.static")
        static = strategy.static
        if static.chunk_overlap_tokens > static.max_chunk_size_tokens // 2:
            most = static.max_chunk_size_tokens
            message = f"`chunk_overlap_tokens` must be at most half of `max_chunk_size_tokens`, which is {most}."
            raise RoundhouseError("invalid_request", message, param="chunking_strategy.static.chunk_overlap_tokens")
        return ChunkingOptions(static.max_chunk_size_tokens, static.chunk_overlap_tokens)

    async def _add(
        self,
        tenant: str,
        store_id: str,
        file_id: str,
        attributes: Mapping[str, Any],
        chunking: ChunkingOptions | None,
    ) -> None:
        """Queue a file. `chunking` None: that of the file's document in the vector store, which must be there."""
        now, key = self._clock.read_earliest(), DocumentKey(tenant, store_id, file_id)

        def make_version(db: sqlite3.Connection) -> NewVersion:
            _find_store(db, tenant, store_id)
            sizes = _find_in_store(db, key).newest.chunking if chunking is None else chunking
            file = find_file(db, tenant, file_id, now)
            if file is None:
                raise file_not_found(file_id)
            return NewVersion(key, file.sha256, file.bytes, file.filename, file.media_type, attributes, sizes)

        await self._documents.accept_stored(make_version)

    async def _find(self, tenant: str, store_id: str) -> StoredVectorStore:
        return await self._catalog.read(lambda db: _find_store(db, tenant, store_id))

    async def _find_document(self, tenant: str, store_id: str, file_id: str) -> StoredDocument:
        def find(db: sqlite3.Connection) -> StoredDocument:
            _find_store(db, tenant, store_id)
            return _find_in_store(db, DocumentKey(tenant, store_id, file_id))

        return await self._catalog.read(find)

    async def _find_batch(self, tenant: str, store_id: str, batch_id: str) -> FileBatch:
        batch = await self._catalog.read(lambda db: find_batch(db, tenant, store_id, batch_id))
        if batch is None:
            message = f"The vector store has no batch {batch_id!r:.100}."
            raise RoundhouseError("vector_store_not_found", message, param="batch_id")
        return batch

    async def _view(self, store: StoredVectorStore) -> VectorStoreObject:
        totals = await self._catalog.read(lambda db: count_space(db, store.tenant, store.id))
        return build_store(store, totals, self._clock.read_earliest())

    async def _view_file(self, document: StoredDocument) -> VectorStoreFile:
        def read_size(db: sqlite3.Connection) -> int:
            return 0 if document.live is None else text_size(db, document.live)

        return build_store_file(document, await self._catalog.read(read_size))

    async def _view_batch(self, batch: FileBatch) -> FileBatchObject:
        keys = [DocumentKey(batch.tenant, batch.vector_store, file_id) for file_id in batch.files]
        documents = await self._catalog.read(lambda db: [find_document(db, key) for key in keys])
        return build_batch(batch, documents)


def _store_not_found(store_id: str) -> RoundhouseError:
    message = f"There is no vector store {store_id!r:.100}."
    return RoundhouseError("vector_store_not_found", message, param="vector_store_id")


def _find_store(db: sqlite3.Connection, tenant: str, store_id: str) -> StoredVectorStore:
    store = find_store(db, tenant, store_id)
    if store is None:
        raise _store_not_found(store_id)
    return store


def _find_in_store(db: sqlite3.Connection, key: DocumentKey) -> StoredDocument:
    document = find_document(db, key)
    if document is None:
        message = f"The vector store has no file {key.id!r:.100}."
        raise RoundhouseError("file_not_found", message, param="file_id")
    return document


def _has_expired(store: StoredVectorStore, now: float) -> bool:
    return store.expires_at is not None and store.expires_at < now


def _changes_of(change: VectorStoreChange) -> dict[str, Any]:
    """Return the fields of a StoredVectorStore that the client sent."""
    days = None if change.expires_after is None else change.expires_after.days
    values = {"name": change.name, "metadata": change.metadata or {}, "expires_after": days}
    names = {"expires_after": "expires_days"}
    return {names.get(name, name): values[name] for name in values.keys() & change.model_fields_set}


def _has_status(document: StoredDocument, status: str | None) -> bool:
    return status is None or build_store_file(document, 0).status == status
