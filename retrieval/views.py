"""What clients are answered about documents, files and vector stores, and the attributes of documents. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from contract.documents import (
    Chunking,
    Document,
    DocumentChunk,
    DocumentError,
    FusionChoice,
    Progress,
    SearchHit,
    SearchRequest,
    SearchResult,
    Status,
    Tenant,
)
from contract.errors import RoundhouseError
from contract.files import (
    ChunkingStrategy,
    ExpiresAfter,
    File,
    FileBatchObject,
    FileCounts,
    FileError,
    FileStatus,
    StaticChunking,
    TextContent,
    VectorStoreFile,
    VectorStoreHit,
    VectorStoreObject,
    VectorStoreResults,
    VectorStoreSearch,
)
from retrieval.catalog.conditions import ANY, SqlCondition
from retrieval.catalog.files import StoredFile
from retrieval.catalog.records import Chunk, StoredDocument, TenantTotals, Version
from retrieval.catalog.vector_stores import FileBatch, StoredVectorStore
from retrieval.catalog.versions import CANCELLED, SpaceTotals
from retrieval.filters import KEY, LONGEST_TEXT
from retrieval.ingestion.document_changes import EmbeddingProgress
from retrieval.parsing.base import ChunkingOptions

MOST_ATTRIBUTES: Final = 64
MOST_LISTED: Final = 100


def check_metadata(metadata: Mapping[str, Any], field: str = "metadata") -> None:
    """Check that a client's metadata have at most `MOST_ATTRIBUTES` attributes, each with a name that matches `KEY` and
    a value that filters can compare: a string of at most `LONGEST_TEXT` characters, a finite number (an integer of 64
    bits), a boolean, or a list of at most `MOST_LISTED` such strings or such numbers, not mixed, perhaps empty.

    Raises:
        RoundhouseError: `invalid_request` for the first that is not, naming it as `field.NAME`.
    """
    if len(metadata) > MOST_ATTRIBUTES:
        raise _invalid(field, f"has more than {MOST_ATTRIBUTES} attributes")
    for key, value in metadata.items():
        where = f"{field}.{key}"[:100]
        if not KEY.fullmatch(key):
            raise _invalid(where, f"its name must match {KEY.pattern}")
        if isinstance(value, list):
            _check_list(value, where)
        elif not _is_text(value) and not _is_number(value) and not isinstance(value, bool):
            raise _invalid(where, f"must be {_EXPECTED}")


_EXPECTED: Final = (
    f"a string of at most {LONGEST_TEXT} characters, a finite number, a boolean, or a list of strings or of numbers"
)


def _check_list(values: list[Any], where: str) -> None:
    if len(values) > MOST_LISTED:
        raise _invalid(where, f"has more than {MOST_LISTED} values")
    if not all(map(_is_text, values)) and not all(map(_is_number, values)):
        raise _invalid(where, f"must be {_EXPECTED}")


def _is_text(value: object) -> bool:
    return isinstance(value, str) and len(value) <= LONGEST_TEXT


def _is_number(value: object) -> bool:
    if isinstance(value, bool):
        return False
    # Qdrant's integers have 64 bits.
    return (isinstance(value, int) and -(2**63) <= value < 2**63) or (isinstance(value, float) and math.isfinite(value))


def _invalid(where: str, problem: str) -> RoundhouseError:
    return RoundhouseError("invalid_request", f"`{where}`: {problem}.", param=where)


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
        error=_describe_error(newest),
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


def _describe_error(version: Version) -> DocumentError | None:
    if version.error_code is None:
        return None
    retry_at = None if version.retry_at is None else int(version.retry_at)
    return DocumentError(code=version.error_code, message=version.error_message or "", retry_at=retry_at)


def build_search(wanted: VectorStoreSearch, query: str, *, has_reranker: bool) -> SearchRequest:
    """Return the search in Roundhouse's own form for `query`, one of the queries of `wanted`. The query is cut off
    after 32,768 characters. The search asks for weighted fusion, because OpenAI's scores go from 0 to 1, and for a
    rerank if `ranker` names one and `has_reranker` is True. `score_threshold` is left to `merge_results`.

    Raises pydantic's ValidationError for an empty query.
    """
    ranking = wanted.ranking_options
    wants_rerank = ranking is not None and ranking.ranker not in (None, "none")
    return SearchRequest(
        query=query[:32_768],
        top_k=wanted.max_num_results,
        filter=wanted.filters,
        fusion=_choose_fusion(wanted),
        rerank=wants_rerank and has_reranker,
    )


def _choose_fusion(wanted: VectorStoreSearch) -> FusionChoice:
    weights = None if wanted.ranking_options is None else wanted.ranking_options.hybrid_search
    if weights is None:
        return FusionChoice(method="weighted")
    return FusionChoice(method="weighted", dense_weight=weights.embedding_weight, sparse_weight=weights.text_weight)


def merge_results(
    wanted: VectorStoreSearch, queries: Sequence[str], results: Sequence[SearchResult]
) -> VectorStoreResults:
    """Return the hits of all queries in OpenAI's form, best first, at most `max_num_results`, without those below
    `score_threshold`. A chunk that several queries found is there once, with its best score.

    `results`: one per query. Scores are made comparable by `scale_score`.
    """
    best: dict[tuple[str, int], VectorStoreHit] = {}
    for result in results:
        for hit in result.data:
            found = _build_hit(hit, scale_score(hit, result, wanted))
            key = (found.file_id, found.chunk)
            if key not in best or best[key].score < found.score:
                best[key] = found
    threshold = 0.0 if wanted.ranking_options is None else wanted.ranking_options.score_threshold or 0.0
    ranked = sorted(best.values(), key=lambda hit: (-hit.score, hit.file_id, hit.chunk))
    kept = [hit for hit in ranked if hit.score >= threshold]
    notices = dict.fromkeys(result.notice for result in results if result.notice is not None)
    return VectorStoreResults(
        search_query=list(queries), data=kept[: wanted.max_num_results], notice=" ".join(notices) or None
    )


def scale_score(hit: SearchHit, result: SearchResult, wanted: VectorStoreSearch) -> float:
    """Return a hit's score from 0 to 1, by how its search `result` was made: the search of `build_search(wanted)`.

    Hybrid without a rerank: the weighted sum over the sum of the weights, 0 where that is 0. Dense without a rerank:
    the score (the cosine), cut to 0..1. Otherwise (BM25, or a rerank model's score), where there is no upper bound:
    `s / (1 + s)`, 0 where `s` is negative.
    """
    is_reranked = hit.scores.rerank is not None
    if result.mode == "hybrid" and not is_reranked:
        fusion = _choose_fusion(wanted)
        total = fusion.dense_weight + fusion.sparse_weight
        return min(1.0, hit.score / total) if total else 0.0
    positive = max(0.0, hit.score)
    return min(1.0, positive) if result.mode == "dense" and not is_reranked else positive / (1.0 + positive)


def _build_hit(hit: SearchHit, score: float) -> VectorStoreHit:
    return VectorStoreHit(
        file_id=hit.document_id,
        filename=hit.filename or hit.document_id,
        score=score,
        attributes=hit.metadata,
        content=[TextContent(text=hit.text)],
        chunk=hit.chunk,
        start=hit.start,
        end=hit.end,
        page=hit.page,
        headings=hit.headings,
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
