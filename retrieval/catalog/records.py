"""What the catalog says of documents, versions and chunks."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from retrieval.parsing.base import ChunkingOptions
from retrieval.vector_store.base import CollectionSpec
from retrieval.vector_store.tokenizer import Bm25Options

VersionState = Literal["queued", "parsing", "embedding", "ready", "failed", "garbage"]
"""`queued`: waits for its turn, or for a retry. `ready`: visible. `failed`: is not tried again. `garbage`: replaced or
deleted; its points are still to be removed."""

_POINTS: Final = uuid.UUID("6f1d2a52-7e0b-4c0f-9a43-1c7a2c1d5b10")


@dataclass(frozen=True, slots=True)
class DocumentKey:
    """The key of one document: its id is unique within a space of a tenant."""

    tenant: str
    space: str
    """The vector store (`vs_...`) that the document belongs to; empty: the tenant's own documents."""
    id: str


@dataclass(frozen=True, slots=True)
class NewVersion:
    """A version of a document that is to be queued: what a client sent. Its original is stored already, under the hash
    `sha256` in hex. `bytes`: size of the original. `filename` and `declared_type` (the media type) None: the client
    named none."""

    key: DocumentKey
    sha256: str
    bytes: int
    filename: str | None
    declared_type: str | None
    metadata: Mapping[str, Any]
    chunking: ChunkingOptions

    @property
    def fingerprint(self) -> str:
        """SHA-256 in hex of the original's hash, filename, declared type, metadata and chunking. Versions of one
        document with equal fingerprints have the same chunks and hits. Raises TypeError for metadata that JSON cannot
        hold."""
        content = [
            self.sha256,
            self.filename,
            self.declared_type,
            self.metadata,
            self.chunking.max_tokens,
            self.chunking.overlap_tokens,
        ]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode(errors="surrogatepass")).hexdigest()


@dataclass(frozen=True, slots=True)
class Version:
    """One version of a document, as the catalog had it when it was read; later changes do not show here. `number` is
    unique in the catalog. The fields that `NewVersion` has, too, mean the same as there."""

    number: int
    tenant: str
    space: str
    state: VersionState
    sha256: str
    bytes: int
    filename: str | None
    declared_type: str | None
    media_type: str | None
    """What the file turned out to be; None: it is not parsed yet."""
    metadata: Mapping[str, Any]
    chunking: ChunkingOptions
    accepted_at: float
    """Unix time in seconds."""
    chunks: int | None
    """Number of chunks that are stored; None: the version was never parsed."""
    attempts: int
    """Tries that have failed since a client sent the version last."""
    retry_at: float | None
    """Unix time in seconds before which it is not tried again; None: at once, or never where `state` is `failed`."""
    error_code: str | None
    """Why the last try failed, also while the version is tried again; None: none failed, or the version is ready."""
    error_message: str | None
    """The same in words; without `error_code` the version's `notice`."""

    @property
    def notice(self) -> str | None:
        """Text for people: which chunks of a ready version have no vector, so that only searches by words find them.
        None: all have one, or the version is not ready."""
        return self.error_message if self.error_code is None else None


@dataclass(frozen=True, slots=True)
class StoredDocument:
    """A document with its newest version, as the catalog had them when they were read. `created_at` is Unix time in
    seconds, and `number` rises in the order of creation."""

    number: int
    key: DocumentKey
    created_at: float
    newest: Version
    live: int | None
    """Number of the visible version, perhaps the newest; None: no version is visible."""
    live_chunks: int | None
    """Chunks of the visible version; None where there is none."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """One chunk of a version: its place in the version's text, and the text there. `version` is the version's number;
    `ordinal` counts the version's chunks from 0. `start` and `end` are offsets in bytes of the text in UTF-8, `end`
    after the last one; `page` counts from 1, None where the format has no pages; `headings` has the outermost first,
    and last the header row of the table that the chunk begins in."""

    version: int
    ordinal: int
    start: int
    end: int
    page: int | None
    headings: Sequence[str]
    text: str

    @property
    def indexed_text(self) -> str:
        """What BM25 and the embedding model read: the headings and the text, joined by line feeds. A prefix of the
        model is not in it."""
        return "\n".join((*self.headings, self.text))

    @property
    def point_id(self) -> str:
        """UUID of the chunk's point in the vector store, made of version and ordinal: always the same for both."""
        return str(uuid.uuid5(_POINTS, f"{self.version}/{self.ordinal}"))


@dataclass(frozen=True, slots=True)
class FoundChunk:
    """A chunk that a search found, of a version that was visible when the chunk was read, with the id and the space of
    its document (see `DocumentKey`), and the version's filename (None: the client named none) and metadata."""

    chunk: Chunk
    document_id: str
    space: str
    filename: str | None
    metadata: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class TenantTotals:
    """How much one tenant has stored, in all its spaces."""

    tenant: str
    documents: int
    chunks: int
    """Number of chunks of visible versions."""
    bytes: int
    """Size of the newest versions' originals, each counted for every document that has it."""


@dataclass(frozen=True, slots=True)
class Collection:
    """A collection of the vector store, as the catalog knows it: which model made its vectors, and what it is for.
    `active`: searches use it. `building`: it is being filled to become the active one. There is at most one of each."""

    number: int
    name: str
    model: str | None
    """The embedding model of its vectors; None: sparse vectors alone."""
    dimension: int | None
    """Numbers per dense vector; None without a model."""
    is_normalized: bool | None
    """Whether a vector that was asked for as a probe had length 1; None without a model."""
    state: Literal["active", "building"]
    bm25: Bm25Options

    @property
    def spec(self) -> CollectionSpec:
        """The name, dimension and BM25 options with which the collection was created in the vector store."""
        return CollectionSpec(self.name, self.dimension, self.bm25)
