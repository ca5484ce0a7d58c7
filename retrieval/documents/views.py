"""What is answered about documents, chunks and tenants. Pure."""

from __future__ import annotations

from retrieval.catalog.records import Chunk, StoredDocument, TenantTotals, Version
from retrieval.ingestion.document_changes import EmbeddingProgress
from retrieval.schema.documents import Chunking, Document, DocumentChunk, DocumentError, Progress, Status, Tenant


def build_document(document: StoredDocument, progress: EmbeddingProgress | None) -> Document:
    """Return a document as clients see it: times as whole seconds of Unix time. `progress`: that of its newest version;
    None: the version is not being embedded. The answer then has 0 chunks as its progress, or no progress if the version
    is `ready` or `failed`."""
    newest = document.newest
    return Document(
        id=document.key.id,
        status=_status_of(newest),
        searchable=document.live is not None,
        filename=newest.filename,
        media_type=newest.media_type,
        declared_media_type=newest.declared_type,
        bytes=newest.bytes,
        sha256=newest.sha256,
        chunks=document.live_chunks,
        created_at=int(document.created_at),
        updated_at=int(newest.accepted_at),
        metadata=dict(newest.metadata),
        chunking=Chunking(max_tokens=newest.chunking.max_tokens, overlap_tokens=newest.chunking.overlap_tokens),
        progress=_progress_of(newest, progress),
        error=_error_of(newest),
        notice=newest.notice if newest.state == "ready" else None,
    )


def build_chunk(chunk: Chunk) -> DocumentChunk:
    """Return a chunk of a document's visible version as clients see it."""
    return DocumentChunk(
        index=chunk.ordinal,
        start=chunk.start,
        end=chunk.end,
        text=chunk.text,
        headings=list(chunk.headings),
        page=chunk.page,
    )


def build_tenant(totals: TenantTotals) -> Tenant:
    """Return a tenant's totals as clients see them, in `GET /v1/tenants`."""
    return Tenant(id=totals.tenant, documents=totals.documents, chunks=totals.chunks, bytes=totals.bytes)


def _status_of(version: Version) -> Status:
    # A document's newest version is never garbage: what replaces or deletes it takes its place first.
    return "failed" if version.state == "garbage" else version.state


def _progress_of(version: Version, progress: EmbeddingProgress | None) -> Progress | None:
    if version.state in ("ready", "failed"):
        return None
    if progress is None:
        return Progress(chunks=0, chunks_total=version.chunks)
    return Progress(chunks=progress.chunks, chunks_total=progress.chunks_total)


def _error_of(version: Version) -> DocumentError | None:
    if version.error_code is None:
        return None
    retry_at = None if version.retry_at is None else int(version.retry_at)
    return DocumentError(code=version.error_code, message=version.error_message or "", retry_at=retry_at)
