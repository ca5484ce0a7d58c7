"""Accepts, lists and deletes documents. What it has accepted is durable; making it searchable is the pipeline's."""

from __future__ import annotations

import asyncio
import errno
import itertools
import sqlite3
from collections.abc import AsyncIterable, AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from controller.schema.errors import RoundhouseError
from retrieval.catalog.chunks import read_chunks, read_text
from retrieval.catalog.cleanup import remove_unused_originals
from retrieval.catalog.database import CatalogDatabase
from retrieval.catalog.files import delete_files
from retrieval.catalog.originals import IncomingOriginal, Originals
from retrieval.catalog.records import Chunk, DocumentKey, NewVersion, StoredDocument, TenantTotals
from retrieval.catalog.vector_stores import forget_stores
from retrieval.catalog.versions import (
    Accepted,
    accept_version,
    count_waiting,
    delete_document,
    delete_documents,
    find_document,
    list_documents,
    list_tenants,
    withdraw_version,
)
from retrieval.documents.metadata import check_metadata
from retrieval.documents.views import build_document
from retrieval.filters import Filter, matches_filter
from retrieval.ingestion.document_changes import DocumentChanges
from retrieval.parsing.base import ChunkingOptions
from retrieval.schema.documents import Document

Result = TypeVar("Result")

MIB: Final = 1024 * 1024
MOST_WAITING: Final = 100_000
"""Versions that may wait for their turn; more are refused."""
FINAL: Final = ("ready", "failed")
"""States after which nothing happens to a version by itself."""


@dataclass(frozen=True, slots=True)
class DocumentPage:
    """A page of documents."""

    documents: list[Document]
    has_more: bool


@dataclass(frozen=True, slots=True)
class DocumentFields:
    """What a client says of a document beside its content."""

    id: str | None = None
    """None: made of the content."""
    filename: str | None = None
    media_type: str | None = None
    metadata: Mapping[str, Any] | None = None
    max_tokens: int | None = None
    """Of a chunk; None: as set."""
    overlap_tokens: int | None = None


class DocumentService:
    """Documents of all tenants and spaces. Methods raise RoundhouseError `document_not_found` for a document that the
    tenant does not have, and `storage_full` or `storage_failed` where the disk fails."""

    def __init__(
        self,
        catalog: CatalogDatabase,
        originals: Originals,
        changes: DocumentChanges,
        *,
        chunking: ChunkingOptions,
        max_bytes: int,
        clock: Callable[[], float],
        on_accepted: Callable[[], None],
        on_garbage: Callable[[], None],
    ) -> None:
        """`chunking`: where a client says nothing. `max_bytes`: of an original. `clock`: Unix time in seconds.
        `on_accepted`, `on_garbage`: called when there is a version to make, or garbage to remove."""
        self._catalog = catalog
        self._originals = originals
        self._changes = changes
        self._chunking = chunking
        self._max_bytes = max_bytes
        self._clock = clock
        self._on_accepted = on_accepted
        self._on_garbage = on_garbage

    async def accept_document(
        self, tenant: str, space: str, fields: DocumentFields, content: AsyncIterable[bytes]
    ) -> tuple[Document, bool]:
        """Store a version durably, and queue it. Return the document, and whether anything changed: the same content
        with the same fields is accepted once.

        Raises:
            RoundhouseError: `document_empty`, `document_too_large`, `invalid_request` for its metadata or chunking,
                `retrieval_busy`, `storage_full`.
        """
        metadata = dict(fields.metadata or {})
        check_metadata(metadata)
        chunking = choose_chunking(self._chunking, fields.max_tokens, fields.overlap_tokens)
        try:
            with await asyncio.to_thread(self._originals.begin_original) as incoming:
                await receive_original(incoming, content, self._max_bytes)
                sha256 = incoming.sha256
                key = DocumentKey(tenant, space, fields.id or f"doc-{sha256[:32]}")
                with self._originals.pin(sha256):
                    await asyncio.to_thread(incoming.keep)
                    new = NewVersion(
                        key, sha256, incoming.bytes, fields.filename, fields.media_type, metadata, chunking
                    )
                    return await self._queue(new)
        except (OSError, sqlite3.Error) as error:
            raise storage_error(error) from None

    async def accept_stored(self, new: NewVersion) -> None:
        """Queue a version whose original is stored already. Does nothing where the document has that version.

        Raises:
            RoundhouseError: `retrieval_busy`, `storage_full`, `storage_failed`.
        """
        try:
            await self._queue(new)
        except (OSError, sqlite3.Error) as error:
            raise storage_error(error) from None

    async def wait_for_document(self, key: DocumentKey) -> Document:
        """Return the document when its newest version is `ready`.

        Raises:
            RoundhouseError: its version failed, with the failure's code; a version that no client has seen is then
                withdrawn, so that nothing of it is stored. `document_not_found`: it was deleted meanwhile.
        """
        async for document in self.follow_document(key):
            if document.status == "ready":
                return document
            if document.status == "failed":
                await self._catalog.write(lambda db: withdraw_version(db, key))
                self._on_garbage()
                self._changes.note_change(key)
                assert document.error is not None
                raise RoundhouseError(document.error.code, document.error.message)
        raise AssertionError("a document is followed until it is ready or failed")

    async def find_document(self, key: DocumentKey) -> Document:
        """Return a document."""
        return self._view(await self._find(key))

    async def follow_document(self, key: DocumentKey) -> AsyncIterator[Document]:
        """Yield the document as it is, and again at each change, until its newest version is `ready` or `failed`."""
        with self._changes.follow_document(key) as changed:
            while True:
                changed.clear()
                document = self._view(await self._find(key))
                yield document
                if document.status in FINAL:
                    return
                await changed.wait()

    async def list_documents(
        self,
        tenant: str,
        space: str,
        *,
        after: str | None,
        limit: int,
        is_ascending: bool,
        filter: Filter | None,  # noqa: A002 - the field's name
        status: str | None,
    ) -> DocumentPage:
        """Return a page of the documents that match. Raises `invalid_request` where `after` is no document."""

        found, has_more = await self.list_stored(
            tenant,
            space,
            after=after,
            limit=limit,
            is_ascending=is_ascending,
            matches=lambda document: (
                (status is None or document.newest.state == status) and matches_filter(filter, document.newest.metadata)
            ),
        )
        return DocumentPage([self._view(each) for each in found], has_more)

    async def list_stored(
        self,
        tenant: str,
        space: str,
        *,
        after: str | None,
        limit: int,
        is_ascending: bool,
        matches: Callable[[StoredDocument], bool],
    ) -> tuple[list[StoredDocument], bool]:
        """Return a page of the documents that match, as the catalog has them, and whether more follow. `matches` is
        called in the catalog's thread. Raises `invalid_request` where `after` is no document."""

        def read(db: sqlite3.Connection) -> list[StoredDocument]:
            cursor = None
            if after is not None:
                found = find_document(db, DocumentKey(tenant, space, after))
                if found is None:
                    message = f"`after` must be the id of a document; it is {after!r:.100}."
                    raise RoundhouseError("invalid_request", message, param="after")
                cursor = found.number
            documents = list_documents(db, tenant, space, after=cursor, is_ascending=is_ascending)
            return list(itertools.islice(filter(matches, documents), limit + 1))

        found = await self._catalog.read(read)
        return found[:limit], len(found) > limit

    async def delete_document(self, key: DocumentKey) -> None:
        """Delete a document. When this returns, no search that begins finds it."""
        if not await self._write(lambda db: delete_document(db, key)):
            raise _not_found(key)
        self._note_deleted(key.tenant, key)

    async def delete_space(self, tenant: str, space: str) -> int:
        """Delete all documents of a space. Return how many there were."""
        count = await self._write(lambda db: delete_documents(db, tenant, space))
        self._note_deleted(tenant)
        return count

    async def list_tenants(self, tenant: str | None) -> list[TenantTotals]:
        """Return what tenants have stored, by name; None: all tenants."""
        return await self._catalog.read(lambda db: list_tenants(db, tenant))

    async def delete_tenant(self, tenant: str) -> int:
        """Delete everything of a tenant. Return how many documents it had. Raises RoundhouseError `tenant_not_found`
        where it has nothing."""

        def delete(db: sqlite3.Connection) -> tuple[int, list[str]]:
            forget_stores(db, tenant)
            return delete_documents(db, tenant), delete_files(db, tenant)

        count, file_hashes = await self._write(delete)
        if not count and not file_hashes:
            raise RoundhouseError("tenant_not_found", f"The tenant {tenant!r:.100} has stored nothing.")
        self._note_deleted(tenant)
        await remove_unused_originals(self._catalog, self._originals, file_hashes)
        return count

    async def read_chunks(self, key: DocumentKey, *, first: int, limit: int) -> tuple[list[Chunk], bool]:
        """Return up to `limit` chunks of the visible version from the ordinal `first` on, and whether more follow. No
        chunks where no version is visible."""
        document = await self._find(key)
        live = document.live
        if live is None:
            return [], False
        chunks = await self._catalog.read(lambda db: read_chunks(db, live, first=first, limit=limit + 1))
        return chunks[:limit], len(chunks) > limit

    async def read_text(self, key: DocumentKey) -> bytes:
        """Return the text of the visible version in UTF-8. `document_not_found` where no version is visible."""
        document = await self._find(key)
        live = document.live
        text = None if live is None else await self._catalog.read(lambda db: read_text(db, live))
        if text is None:
            raise RoundhouseError("document_not_found", f"The document {key.id} is not searchable yet.")
        return text

    async def find_original(self, key: DocumentKey) -> tuple[Path, StoredDocument]:
        """Return the file of the newest version's original, and the document."""
        document = await self._find(key)
        return self._originals.path_of(document.newest.sha256), document

    async def _queue(self, new: NewVersion) -> tuple[Document, bool]:
        now = self._clock()

        def accept(db: sqlite3.Connection) -> Accepted:
            if count_waiting(db) >= MOST_WAITING:
                raise RoundhouseError("retrieval_busy", f"{MOST_WAITING} documents wait to be indexed.")
            return accept_version(db, new, now)

        accepted = await self._catalog.write(accept)
        if accepted.is_new:
            self._on_accepted()
            self._on_garbage()
            self._changes.note_change(new.key)
        return self._view(accepted.document), accepted.is_new

    async def _find(self, key: DocumentKey) -> StoredDocument:
        document = await self._catalog.read(lambda db: find_document(db, key))
        if document is None:
            raise _not_found(key)
        return document

    async def _write(self, work: Callable[[sqlite3.Connection], Result]) -> Result:
        try:
            return await self._catalog.write(work)
        except (OSError, sqlite3.Error) as error:
            raise storage_error(error) from None

    def _note_deleted(self, tenant: str, key: DocumentKey | None = None) -> None:
        self._changes.note_visible_change(tenant)
        if key is not None:
            self._changes.note_change(key)
        self._on_garbage()

    def _view(self, document: StoredDocument) -> Document:
        return build_document(document, self._changes.find_progress(document.newest.number))


async def receive_original(incoming: IncomingOriginal, content: AsyncIterable[bytes], max_bytes: int) -> None:
    """Write a client's content to a file.

    Raises:
        RoundhouseError: `document_empty`, or `document_too_large` beyond `max_bytes`.
        OSError: the disk fails.
    """
    async for part in content:
        if incoming.bytes + len(part) > max_bytes:
            raise RoundhouseError("document_too_large", f"The document is larger than {max_bytes / MIB:g} MiB.")
        await asyncio.to_thread(incoming.write, part)
    if not incoming.bytes:
        raise RoundhouseError("document_empty", "The document is empty.")


def choose_chunking(default: ChunkingOptions, max_tokens: int | None, overlap_tokens: int | None) -> ChunkingOptions:
    """Return the options of a document; None: as in `default`, but an overlap never above half of the size.

    Raises:
        RoundhouseError: `invalid_request` for a given overlap above half of `max_tokens`.
    """
    most = default.max_tokens if max_tokens is None else max_tokens
    if overlap_tokens is None:
        return ChunkingOptions(most, min(default.overlap_tokens, most // 2))
    if overlap_tokens > most // 2:
        message = f"`chunking.overlap_tokens` must be at most half of `max_tokens`, which is {most}."
        raise RoundhouseError("invalid_request", message, param="chunking.overlap_tokens")
    return ChunkingOptions(most, overlap_tokens)


def storage_error(error: OSError | sqlite3.Error) -> RoundhouseError:
    """Return `storage_full` for a full disk, else `storage_failed`, for an error of the state folder."""
    is_full = getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or (
        getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
    )
    if is_full:
        return RoundhouseError("storage_full", "The disk of the documents is full; nothing was stored.")
    return RoundhouseError("storage_failed", "The state folder cannot be written; nothing was stored.")


def _not_found(key: DocumentKey) -> RoundhouseError:
    return RoundhouseError("document_not_found", f"There is no document {key.id!r:.250}.", param="document_id")
