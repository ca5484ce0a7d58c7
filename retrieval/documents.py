"""Documents as clients see them: accepts, lists and deletes them. What it has accepted is durable; making it searchable
is the pipeline's.
"""

from __future__ import annotations

import asyncio
import errno
import sqlite3
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from contract.documents import Document
from contract.errors import RoundhouseError
from retrieval.catalog.chunks import read_chunks, read_text
from retrieval.catalog.cleanup import discard_original
from retrieval.catalog.conditions import (
    ANY,
    SqlCondition,
    build_filter_condition,
    build_state_condition,
    combine_conditions,
)
from retrieval.catalog.database import CatalogDatabase
from retrieval.catalog.files import delete_files
from retrieval.catalog.originals import IncomingOriginal, Originals
from retrieval.catalog.paging import PageRequest, cut_page
from retrieval.catalog.records import Chunk, DocumentKey, NewVersion, StoredDocument, TenantTotals
from retrieval.catalog.vector_stores import forget_stores
from retrieval.catalog.versions import (
    Accepted,
    DocumentCount,
    accept_version,
    count_documents,
    count_waiting,
    delete_document,
    delete_documents,
    find_document,
    list_tenants,
    scan_documents,
    withdraw_version,
)
from retrieval.filters import Filter, matches_filter
from retrieval.ingestion.document_changes import DocumentChanges
from retrieval.parsing.base import ChunkingOptions
from retrieval.views import build_document, check_metadata

Result = TypeVar("Result")

SCANNED_AT_ONCE: Final = 2_000
"""Documents that a list with a filter looks at in one go: some milliseconds."""
MOST_WAITING: Final = 100_000
"""Versions that may wait for their turn."""
BUSY_RETRY_S: Final = 30.0
"""Seconds after which a client that was refused should try again: some thousands of documents are indexed by then."""
FINAL: Final = ("ready", "failed")
"""States of a version that change only when a client does something."""


@dataclass(frozen=True, slots=True)
class DocumentPage:
    """Some of the documents of a space, in the order that was asked for, and whether more follow."""

    documents: list[Document]
    has_more: bool


@dataclass(frozen=True, slots=True)
class DocumentFields:
    """What a client sends with a document's content. A field that is None was not sent. Nothing is checked here;
    `accept_document` checks the metadata and that the overlap fits the size of chunks."""

    id: str | None = None
    """None: `doc-` and the beginning of the content's SHA-256, so that the same content has the same id."""
    filename: str | None = None
    media_type: str | None = None
    metadata: Mapping[str, Any] | None = None
    max_tokens: int | None = None
    """Most tokens of a chunk; None: the server's setting."""
    overlap_tokens: int | None = None


class DocumentService:
    """Accepts, reads and deletes the documents of all tenants and spaces ("" or a vector store's id). It indexes
    nothing: the IngestionPipeline does.

    Methods that take a DocumentKey of an existing document raise RoundhouseError `document_not_found` if there is no
    document of that key. Methods that store or delete raise `storage_full` or `storage_failed` if the disk fails;
    nothing is changed then. Methods that read raise sqlite3.Error if the catalog cannot be read. A call that is
    cancelled may still be carried out.
    """

    def __init__(
        self,
        catalog: CatalogDatabase,
        originals: Originals,
        changes: DocumentChanges,
        *,
        chunking: ChunkingOptions,
        clock: Callable[[], float],
        on_accepted: Callable[[], None],
        on_garbage: Callable[[], None],
    ) -> None:
        """`chunking`: used if a client does not name sizes of chunks. `clock`: returns Unix time in seconds.
        `on_accepted`: called when there is a version to index. `on_garbage`: called when there may be garbage to
        remove."""
        self._catalog = catalog
        self._originals = originals
        self._changes = changes
        self._chunking = chunking
        self._clock = clock
        self._on_accepted = on_accepted
        self._on_garbage = on_garbage

    async def accept_document(
        self, tenant: str, space: str, fields: DocumentFields, incoming: IncomingOriginal
    ) -> tuple[Document, bool]:
        """Store a version durably, whose whole content is in `incoming`, and queue it. Return the document, and whether
        anything changed: the same content with the same fields is accepted once.

        Raises:
            RoundhouseError: `document_empty`, `invalid_request` for its metadata or chunking, `retrieval_busy`,
                `storage_full`, `storage_failed`; nothing is queued then.
        """
        metadata = dict(fields.metadata or {})
        check_metadata(metadata)
        chunking = choose_chunking(self._chunking, fields.max_tokens, fields.overlap_tokens)
        check_content(incoming)
        sha256 = incoming.sha256
        key = DocumentKey(tenant, space, fields.id or f"doc-{sha256[:32]}")
        new = NewVersion(key, sha256, incoming.bytes, fields.filename, fields.media_type, metadata, chunking)
        try:
            with self._originals.pin(sha256):
                await asyncio.to_thread(incoming.keep)
                return await self._queue(lambda _: new)
        except RoundhouseError:
            await discard_original(self._catalog, self._originals, sha256)
            raise
        except (OSError, sqlite3.Error) as error:
            await discard_original(self._catalog, self._originals, sha256)
            raise storage_error(error) from None

    async def accept_stored(self, make_version: Callable[[sqlite3.Connection], NewVersion]) -> None:
        """Queue a version whose original is stored already, as that of an uploaded file. Does nothing where the
        document's newest version is equal and has not failed. Metadata and chunking are not checked.

        `make_version` is called in the transaction that queues the version, and raises where the original may be gone.

        Raises:
            RoundhouseError: `retrieval_busy`, `storage_full`, `storage_failed`, or what `make_version` raises; nothing
                is queued then.
        """
        try:
            await self._queue(make_version)
        except (OSError, sqlite3.Error) as error:
            raise storage_error(error) from None

    async def check_room(self, count: int = 1) -> None:
        """Raise RoundhouseError `retrieval_busy` where, with `count` further versions, more than `MOST_WAITING` would
        be queued. Reserves nothing: call it before a request's content is read or stored; `accept_document` and
        `accept_stored` check again."""
        await self._catalog.read(partial(_check_room, count=count))

    async def wait_for_document(self, key: DocumentKey) -> Document:
        """Wait until the document's newest version is `ready`, and return the document. Returns at once if it is
        `ready` already. A version that fails is withdrawn: the visible version is then the newest again; a document
        without a visible version is deleted.

        The wait has no bound, because tries may be repeated for ever: the caller sets one.

        Raises:
            RoundhouseError: the failure's code if the newest version failed; `document_not_found` if there is no such
                document, or it is deleted meanwhile; `storage_full` or `storage_failed` if a failed version cannot be
                withdrawn.
            sqlite3.Error: the catalog cannot be read.
        """
        async for document in self.follow_document(key):
            if document.status == "ready":
                return document
            if document.status == "failed":
                await self._write(lambda db: withdraw_version(db, key))
                self._on_garbage()
                self._changes.note_change(key)
                assert document.error is not None
                raise RoundhouseError(document.error.code, document.error.message)
        raise AssertionError("a document is followed until it is ready or failed")

    async def find_document(self, key: DocumentKey) -> Document:
        """Return a document as clients see it. Raises RoundhouseError `document_not_found`, and sqlite3.Error."""
        return self._view(await self._find(key))

    async def follow_document(self, key: DocumentKey) -> AsyncIterator[Document]:
        """Yield the document as it is, and again after changes, until its newest version is `ready` or `failed`, which
        is yielded last. Changes in quick succession may come as one. Raises RoundhouseError `document_not_found`, also
        once the document is deleted, and sqlite3.Error if the catalog cannot be read."""
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
        """Return up to `limit` documents of a space whose newest version has that status and metadata that match
        `filter` (None: any), oldest first if `is_ascending`, else newest first. `after`: only those that follow the
        document with that id; None: from the first on. `status` None: any. Raises RoundhouseError `invalid_request` if
        `after` is not the id of a document of the space, and sqlite3.Error if the catalog cannot be read."""

        found, has_more = await self.list_stored(
            tenant,
            space,
            PageRequest(limit, is_ascending, after),
            where=combine_conditions("AND", [build_state_condition(status), build_filter_condition(filter)]),
            matches=lambda document: (
                (status is None or document.newest.state == status) and matches_filter(filter, document.newest.metadata)
            ),
        )
        return DocumentPage([self._view(each) for each in found], has_more)

    async def list_stored(
        self,
        tenant: str,
        space: str,
        page: PageRequest,
        *,
        where: SqlCondition,
        matches: Callable[[StoredDocument], bool],
    ) -> tuple[list[StoredDocument], bool]:
        """Return one page of the stored documents of a space for which `matches` is true, in the order that `page` asks
        for, and whether more follow it (with `before`: precede it).

        `where` (see `scan_documents`) must hold for every document that matches, and should exclude most others.
        `matches` runs in the event loop. The catalog is read in parts, so that it can do other work in between; it may
        change between two parts. Raises RoundhouseError `invalid_request` if the page's cursor is not the id of a
        document of the space.
        """
        number = None if page.cursor is None else await self._find_number(DocumentKey(tenant, space, page.cursor), page)
        found: list[StoredDocument] = []
        while True:
            read = partial(
                scan_documents,
                tenant=tenant,
                space=space,
                after=number,
                is_ascending=page.reads_ascending,
                where=where,
                most=page.limit + 1 if where == ANY else SCANNED_AT_ONCE,
            )
            documents, number = await self._catalog.read(read)
            found += filter(matches, documents)
            if number is None or len(found) > page.limit:
                return cut_page(found, page)

    async def _find_number(self, key: DocumentKey, page: PageRequest) -> int:
        document = await self._catalog.read(lambda db: find_document(db, key))
        if document is None:
            raise unknown_cursor(page, "a document")
        return document.number

    async def delete_document(self, key: DocumentKey) -> None:
        """Delete a document with all its versions. When this returns, no search that begins finds it. Raises
        RoundhouseError `document_not_found`, also for a second call, and `storage_full` or `storage_failed`, after
        which nothing is deleted."""
        if not await self._write(lambda db: delete_document(db, key)):
            raise _not_found(key)
        self._note_deleted(key.tenant)

    async def delete_space(self, tenant: str, space: str, check: Callable[[sqlite3.Connection], bool]) -> int | None:
        """Delete all documents of a tenant's space with all their versions. When this returns, no search that begins
        finds them. Return how many there were, perhaps 0; an unknown space is no error.

        `check` is called first, in the same transaction. None: it returned False, and nothing was deleted. Raises
        RoundhouseError `storage_full` or `storage_failed`, after which nothing is deleted."""
        count = await self._write(lambda db: delete_documents(db, tenant, space) if check(db) else None)
        if count is not None:
            self._note_deleted(tenant)
        return count

    async def list_tenants(self, tenant: str | None) -> list[TenantTotals]:
        """Return how much tenants have stored, sorted by name; `tenant` None: all tenants. A tenant without documents
        is missing in the list. Raises sqlite3.Error if the catalog cannot be read."""
        return await self._catalog.read(lambda db: list_tenants(db, tenant))

    async def count_documents(self, tenant: str | None, space: str) -> Mapping[str, DocumentCount]:
        """Return how many documents each tenant has in a space, by the tenant's name; None: all tenants, else `tenant`
        alone. A tenant without any is missing. Raises sqlite3.Error if the catalog cannot be read."""
        return await self._catalog.read(lambda db: count_documents(db, tenant, space))

    async def delete_tenant(self, tenant: str) -> int:
        """Delete all documents, files and vector stores of a tenant. Return how many documents it had. Raises
        RoundhouseError `tenant_not_found` if it had none of them, and `storage_full` or `storage_failed`, after which
        nothing is deleted. An original that cannot be removed after the deletion goes at the next start."""

        def delete(db: sqlite3.Connection) -> tuple[int, int, list[str]]:
            return forget_stores(db, tenant), delete_documents(db, tenant), delete_files(db, tenant)

        stores, count, file_hashes = await self._write(delete)
        if not (stores or count or file_hashes):
            raise RoundhouseError("tenant_not_found", f"The tenant {tenant!r:.100} has stored nothing.")
        self._note_deleted(tenant)
        for sha256 in file_hashes:
            await discard_original(self._catalog, self._originals, sha256)
        return count

    async def read_chunks(self, key: DocumentKey, *, first: int, limit: int) -> tuple[list[Chunk], bool]:
        """Return up to `limit` chunks of the visible version from the ordinal `first` (from 0) on, and whether more
        follow; none if no version is visible. Raises RoundhouseError `document_not_found`, and sqlite3.Error."""
        chunks = await self._read_live(key, partial(read_chunks, first=first, limit=limit + 1)) or []
        return chunks[:limit], len(chunks) > limit

    async def read_text(self, key: DocumentKey) -> bytes:
        """Return the text of the visible version in UTF-8. Raises RoundhouseError `document_not_found` if there is no
        such document, or no visible version of it; sqlite3.Error if the catalog cannot be read."""
        text = await self._read_live(key, read_text)
        if text is None:
            raise RoundhouseError("document_not_found", f"The document {key.id} is not searchable yet.")
        return text

    async def find_original(self, key: DocumentKey) -> tuple[Path, StoredDocument]:
        """Return the path of the newest version's original, and the document. The file may be removed at any time after
        the document was deleted or replaced. Raises RoundhouseError `document_not_found`, and sqlite3.Error."""
        document = await self._find(key)
        return self._originals.path_of(document.newest.sha256), document

    async def _queue(self, make_version: Callable[[sqlite3.Connection], NewVersion]) -> tuple[Document, bool]:
        now = self._clock()

        def accept(db: sqlite3.Connection) -> Accepted:
            new = make_version(db)
            _check_room(db, 1)
            return accept_version(db, new, now)

        accepted = await self._catalog.write(accept)
        if accepted.is_new:
            self._on_accepted()
            self._on_garbage()
            self._changes.note_change(accepted.document.key)
        return self._view(accepted.document), accepted.is_new

    async def _find(self, key: DocumentKey) -> StoredDocument:
        document = await self._catalog.read(lambda db: find_document(db, key))
        if document is None:
            raise _not_found(key)
        return document

    async def _read_live(self, key: DocumentKey, read: Callable[[sqlite3.Connection, int], Result]) -> Result | None:
        """Return what `read` returns of the visible version, in one look at the catalog: between two, the version may
        be replaced and removed. None: no version is visible."""

        def find_and_read(db: sqlite3.Connection) -> Result | None:
            document = find_document(db, key)
            if document is None:
                raise _not_found(key)
            return None if document.live is None else read(db, document.live)

        return await self._catalog.read(find_and_read)

    async def _write(self, work: Callable[[sqlite3.Connection], Result]) -> Result:
        try:
            return await self._catalog.write(work)
        except (OSError, sqlite3.Error) as error:
            raise storage_error(error) from None

    def _note_deleted(self, tenant: str) -> None:
        self._changes.note_deletion(tenant)
        self._on_garbage()

    def _view(self, document: StoredDocument) -> Document:
        return build_document(document, self._changes.find_progress(document.newest.number))


def check_content(incoming: IncomingOriginal) -> None:
    """Raise RoundhouseError `document_empty` if nothing was written to `incoming`."""
    if not incoming.bytes:
        raise RoundhouseError("document_empty", "The document is empty.")


def _check_room(db: sqlite3.Connection, count: int) -> None:
    waiting = count_waiting(db)
    if waiting + count > MOST_WAITING:
        message = f"{waiting} documents wait to be indexed, and {MOST_WAITING} may."
        raise RoundhouseError("retrieval_busy", message, retry_after_s=BUSY_RETRY_S)


def choose_chunking(default: ChunkingOptions, max_tokens: int | None, overlap_tokens: int | None) -> ChunkingOptions:
    """Return the sizes of a document's chunks: those that are given (None: not given), else those of `default`. An
    overlap that is not given is never above half of `max_tokens`.

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


def unknown_cursor(page: PageRequest, what: str) -> RoundhouseError:
    """Return the RoundhouseError `invalid_request` for a page whose cursor (`after` or `before`) is not the id of an
    object in the list; the caller raises it. `what`: what the id must name, with an article (`a document`)."""
    name = "after" if page.before is None else "before"
    return RoundhouseError(
        "invalid_request", f"`{name}` must be the id of {what}; it is {page.cursor!r:.100}.", param=name
    )


def storage_error(error: OSError | sqlite3.Error) -> RoundhouseError:
    """Return the RoundhouseError to raise for an error of the state folder's disk: `storage_full` for a full disk or an
    exceeded quota, else `storage_failed`."""
    is_full = getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or (
        getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
    )
    if is_full:
        return RoundhouseError("storage_full", "The disk of the documents is full; nothing was changed.")
    return RoundhouseError("storage_failed", "The disk of the documents fails; nothing was changed.")


def _not_found(key: DocumentKey) -> RoundhouseError:
    return RoundhouseError("document_not_found", f"There is no document {key.id!r:.250}.", param="document_id")
