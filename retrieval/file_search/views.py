"""What is answered about files and vector stores. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from retrieval.catalog.conditions import ANY, SqlCondition
from retrieval.catalog.files import StoredFile
from retrieval.catalog.records import StoredDocument, Version
from retrieval.catalog.vector_stores import FileBatch, StoredVectorStore
from retrieval.catalog.versions import CANCELLED, SpaceTotals
from retrieval.parsing.base import ChunkingOptions
from retrieval.schema.files import (
    ChunkingStrategy,
    ExpiresAfter,
    File,
    FileBatchObject,
    FileCounts,
    FileError,
    FileStatus,
    StaticChunking,
    VectorStoreFile,
    VectorStoreObject,
)

_STATUSES: Final[Mapping[str, FileStatus]] = {"ready": "completed", "failed": "failed"}
_UNSUPPORTED: Final = ("unsupported_media_type", "document_not_text")
_SERVER: Final = ("parsing_timeout", "parsing_failed", "internal_error", "storage_failed")


def build_file(file: StoredFile) -> File:
    """Return an uploaded file as clients see it, with times as whole seconds of Unix time."""
    return File(
        id=file.id,
        bytes=file.bytes,
        created_at=int(file.created_at),
        expires_at=None if file.expires_at is None else int(file.expires_at),
        filename=file.filename,
        purpose=file.purpose,
    )


def build_store(store: StoredVectorStore, totals: SpaceTotals, now: float) -> VectorStoreObject:
    """Return a vector store as clients see it at `now`, Unix time in seconds: `expired` if it expired before that, else
    `in_progress` while a file is being indexed, else `completed`."""
    counts = count_files(totals)
    expires_at = store.expires_at
    is_expired = expires_at is not None and expires_at < now
    return VectorStoreObject(
        id=store.id,
        created_at=int(store.created_at),
        name=store.name,
        description=store.description,
        usage_bytes=totals.text_bytes,
        file_counts=counts,
        status="expired" if is_expired else "in_progress" if counts.in_progress else "completed",
        expires_after=None if store.expires_days is None else ExpiresAfter(days=store.expires_days),
        expires_at=None if expires_at is None else int(expires_at),
        last_active_at=int(store.last_active_at),
        metadata=dict(store.metadata),
    )


def build_store_file(document: StoredDocument, usage_bytes: int) -> VectorStoreFile:
    """Return a file of a vector store as clients see it: the newest version's status, error, sizes and attributes.
    `usage_bytes`: size of the visible version's text; 0 without one."""
    newest = document.newest
    return VectorStoreFile(
        id=document.key.id,
        created_at=int(document.created_at),
        vector_store_id=document.key.space,
        usage_bytes=usage_bytes,
        status=status_of(newest),
        last_error=_error_of(newest),
        chunking_strategy=_strategy_of(newest.chunking),
        attributes=dict(newest.metadata),
    )


def build_batch(batch: FileBatch, documents: Iterable[StoredDocument | None]) -> FileBatchObject:
    """Return a batch as clients see it. `documents`: one for each of its files; None for one that was removed since,
    which counts as completed. The status is `in_progress` while a file is; else `cancelled` if any is; else `failed` if
    all are; else `completed`, also for an empty batch."""
    counts = FileCounts(in_progress=0, completed=0, failed=0, cancelled=0, total=len(batch.files))
    for document in documents:
        status: FileStatus = "completed" if document is None else status_of(document.newest)
        setattr(counts, status, getattr(counts, status) + 1)
    is_cancelled = counts.cancelled and not counts.in_progress
    is_failed = counts.failed == counts.total and counts.total > 0
    return FileBatchObject(
        id=batch.id,
        created_at=int(batch.created_at),
        vector_store_id=batch.vector_store,
        status="in_progress"
        if counts.in_progress
        else "cancelled"
        if is_cancelled
        else "failed"
        if is_failed
        else "completed",
        file_counts=counts,
    )


def count_files(totals: SpaceTotals) -> FileCounts:
    """Return the numbers of a vector store's files by OpenAI's statuses, and their sum; a file that is neither done nor
    failed nor cancelled counts as `in_progress`."""
    states = totals.states
    completed, failed, cancelled = states.get("ready", 0), states.get("failed", 0), states.get(CANCELLED, 0)
    total = sum(states.values())
    return FileCounts(
        in_progress=total - completed - failed - cancelled,
        completed=completed,
        failed=failed,
        cancelled=cancelled,
        total=total,
    )


def status_of(version: Version) -> FileStatus:
    """Return OpenAI's status of a version: `completed` for `ready`, `cancelled` for one that failed by a cancellation,
    `failed`, else `in_progress`."""
    if version.error_code == CANCELLED and version.state == "failed":
        return "cancelled"
    return _STATUSES.get(version.state, "in_progress")


def build_status_condition(status: str | None) -> SqlCondition:
    """Return the condition that a document's newest version has OpenAI's status `completed`, `cancelled`, `failed`, or
    for any other text `in_progress`; None: a condition that always holds (`ANY`)."""
    if status == "completed":
        return SqlCondition("v.state = 'ready'")
    if status == "cancelled":
        return SqlCondition("v.state = 'failed' AND v.error_code IS ?", (CANCELLED,))
    if status == "failed":
        return SqlCondition("v.state = 'failed' AND v.error_code IS NOT ?", (CANCELLED,))
    return ANY if status is None else SqlCondition("v.state NOT IN ('ready', 'failed')")


def _error_of(version: Version) -> FileError | None:
    if version.state != "failed" or version.error_code in (None, CANCELLED):
        return None
    message = version.error_message or ""
    if version.error_code in _UNSUPPORTED:
        return FileError(code="unsupported_file", message=message)
    return FileError(code="server_error" if version.error_code in _SERVER else "invalid_file", message=message)


def _strategy_of(chunking: ChunkingOptions) -> ChunkingStrategy:
    # Sizes below OpenAI's least may be set on the server.
    static = StaticChunking.model_construct(
        max_chunk_size_tokens=chunking.max_tokens, chunk_overlap_tokens=chunking.overlap_tokens
    )
    return ChunkingStrategy.model_construct(type="static", static=static)
