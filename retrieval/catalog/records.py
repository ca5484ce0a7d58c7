"""What the catalog says of documents, versions and chunks."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from retrieval.parsing.base import ChunkingOptions

VersionState = Literal["queued", "parsing", "embedding", "ready", "failed", "garbage"]
"""`queued`: waits for its turn, or for a retry. `ready`: visible. `failed`: is not tried again. `garbage`: replaced or
deleted; its points are still to be removed."""

_POINTS: Final = uuid.UUID("6f1d2a52-7e0b-4c0f-9a43-1c7a2c1d5b10")


@dataclass(frozen=True, slots=True)
class DocumentKey:
    """Names one document."""

    tenant: str
    space: str
    """The vector store (`vs_...`) that the document belongs to; empty: the tenant's own documents."""
    id: str


@dataclass(frozen=True, slots=True)
class NewVersion:
    """A version that a client has sent, and whose original is stored."""

    key: DocumentKey
    sha256: str
    bytes: int
    filename: str | None
    declared_type: str | None
    metadata: Mapping[str, Any]
    chunking: ChunkingOptions

    @property
    def fingerprint(self) -> str:
        """Equal for versions that would make the same chunks and hits."""
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
    """A version as the catalog has it."""

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
    chunks: int | None
    """Number of its chunks; None: it is not cut yet."""
    attempts: int
    """Tries that have failed."""
    retry_at: float | None
    """Unix time in seconds before which it is not tried again; None: at once, or never where `state` is `failed`."""
    error_code: str | None
    error_message: str | None


@dataclass(frozen=True, slots=True)
class StoredDocument:
    """A document with its newest version."""

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
    """One chunk of a version."""

    version: int
    ordinal: int
    start: int
    end: int
    page: int | None
    headings: Sequence[str]
    text: str

    @property
    def indexed_text(self) -> str:
        """What BM25 and the embedding model read: the headings, and the text."""
        return "\n".join((*self.headings, self.text))

    @property
    def point_id(self) -> str:
        """UUID of its point, always the same for this chunk of this version."""
        return str(uuid.uuid5(_POINTS, f"{self.version}/{self.ordinal}"))


@dataclass(frozen=True, slots=True)
class FoundChunk:
    """A chunk of a visible version, with what a hit says of its document."""

    chunk: Chunk
    document_id: str
    space: str
    filename: str | None
    metadata: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class TenantTotals:
    """What one tenant has stored."""

    tenant: str
    documents: int
    chunks: int
    """Of visible versions."""
    bytes: int
    """Of the newest versions' originals."""


@dataclass(frozen=True, slots=True)
class Collection:
    """A collection of the vector store, as the catalog knows it."""

    number: int
    name: str
    model: str | None
    """The embedding model of its vectors; None: sparse vectors alone."""
    dimension: int | None
    is_normalized: bool | None
    """Whether the model's vectors have length 1."""
    state: Literal["active", "building"]
