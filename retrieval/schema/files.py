"""OpenAI's files and vector stores: what clients send and get on `/v1/files` and `/v1/vector_stores`."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

FileStatus = Literal["in_progress", "completed", "failed", "cancelled"]


class File(BaseModel):
    """OpenAI's file object."""

    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int = Field(description="Unix time in seconds.")
    expires_at: int | None
    filename: str
    purpose: str
    status: Literal["processed"] = "processed"
    status_details: None = None


class FileList(BaseModel):
    """A page of files."""

    object: Literal["list"] = "list"
    data: list[File]
    first_id: str | None
    last_id: str | None
    has_more: bool


class DeletedFile(BaseModel):
    """Confirmation that a file was deleted, with what vector stores had made of it."""

    id: str
    object: Literal["file"] = "file"
    deleted: Literal[True] = True


class StaticChunking(BaseModel):
    """Sizes of chunks, in estimated tokens."""

    model_config = ConfigDict(extra="forbid", strict=True)

    max_chunk_size_tokens: int = Field(ge=100, le=4096)
    chunk_overlap_tokens: int = Field(ge=0, le=2048)


class ChunkingStrategy(BaseModel):
    """How files are cut."""

    model_config = ConfigDict(extra="forbid", strict=True)

    type: Literal["auto", "static"]
    static: StaticChunking | None = None


class ExpiresAfter(BaseModel):
    """When a vector store expires."""

    model_config = ConfigDict(extra="forbid", strict=True)

    anchor: Literal["last_active_at"] = "last_active_at"
    days: int = Field(ge=1, le=365)


class NewVectorStore(BaseModel):
    """A vector store to create."""

    model_config = ConfigDict(extra="ignore", strict=True)

    name: str | None = Field(None, max_length=512)
    description: str | None = Field(None, max_length=512)
    file_ids: list[str] | None = Field(None, max_length=500)
    expires_after: ExpiresAfter | None = None
    chunking_strategy: ChunkingStrategy | None = None
    metadata: dict[str, Any] | None = None


class VectorStoreChange(BaseModel):
    """Fields of a vector store to change; those that are missing stay."""

    model_config = ConfigDict(extra="ignore", strict=True)

    name: str | None = Field(None, max_length=512)
    expires_after: ExpiresAfter | None = None
    metadata: dict[str, Any] | None = None


class FileCounts(BaseModel):
    """Files by status."""

    in_progress: int
    completed: int
    failed: int
    cancelled: int
    total: int


class VectorStoreObject(BaseModel):
    """OpenAI's vector store object."""

    id: str
    object: Literal["vector_store"] = "vector_store"
    created_at: int
    name: str | None
    description: str | None
    usage_bytes: int = Field(description="Size of the texts of the files that are searchable.")
    file_counts: FileCounts
    status: Literal["expired", "in_progress", "completed"]
    expires_after: ExpiresAfter | None
    expires_at: int | None
    last_active_at: int
    metadata: dict[str, Any]


class VectorStoreList(BaseModel):
    """A page of vector stores."""

    object: Literal["list"] = "list"
    data: list[VectorStoreObject]
    first_id: str | None
    last_id: str | None
    has_more: bool


class DeletedVectorStore(BaseModel):
    """Confirmation that a vector store was deleted; its files stay."""

    id: str
    object: Literal["vector_store.deleted"] = "vector_store.deleted"
    deleted: Literal[True] = True


class NewVectorStoreFile(BaseModel):
    """A file to add to a vector store."""

    model_config = ConfigDict(extra="ignore", strict=True)

    file_id: str
    attributes: dict[str, Any] | None = None
    chunking_strategy: ChunkingStrategy | None = None


class AttributesChange(BaseModel):
    """The new attributes of a file in a vector store."""

    model_config = ConfigDict(extra="ignore", strict=True)

    attributes: dict[str, Any] | None


class NewFileBatch(BaseModel):
    """Files to add to a vector store together: either `file_ids`, or `files` with options of their own."""

    model_config = ConfigDict(extra="ignore", strict=True)

    file_ids: list[str] | None = Field(None, max_length=500)
    files: list[NewVectorStoreFile] | None = Field(None, max_length=500)
    attributes: dict[str, Any] | None = None
    chunking_strategy: ChunkingStrategy | None = None


class FileError(BaseModel):
    """Why a file is not searchable."""

    code: Literal["server_error", "unsupported_file", "invalid_file"]
    message: str


class VectorStoreFile(BaseModel):
    """OpenAI's object for a file in a vector store."""

    id: str
    object: Literal["vector_store.file"] = "vector_store.file"
    created_at: int
    vector_store_id: str
    usage_bytes: int
    status: FileStatus
    last_error: FileError | None
    chunking_strategy: ChunkingStrategy
    attributes: dict[str, Any]


class VectorStoreFileList(BaseModel):
    """A page of files in a vector store."""

    object: Literal["list"] = "list"
    data: list[VectorStoreFile]
    first_id: str | None
    last_id: str | None
    has_more: bool


class DeletedVectorStoreFile(BaseModel):
    """Confirmation that a file was removed from a vector store; the file itself stays."""

    id: str
    object: Literal["vector_store.file.deleted"] = "vector_store.file.deleted"
    deleted: Literal[True] = True


class FileBatchObject(BaseModel):
    """OpenAI's object for files that were added together."""

    id: str
    object: Literal["vector_store.files_batch"] = "vector_store.files_batch"
    created_at: int
    vector_store_id: str
    status: FileStatus
    file_counts: FileCounts


class HybridWeights(BaseModel):
    """Weights of both rankings."""

    model_config = ConfigDict(extra="ignore", strict=True)

    embedding_weight: float = Field(1.0, ge=0, le=100)
    text_weight: float = Field(1.0, ge=0, le=100)


class RankingOptions(BaseModel):
    """How hits are ordered and which are left out."""

    model_config = ConfigDict(extra="ignore", strict=True)

    ranker: str | None = Field(
        None, description="`none` or left out: no reranking; else reranked, where a model is set."
    )
    score_threshold: float | None = Field(None, ge=0, le=1)
    hybrid_search: HybridWeights | None = None


class VectorStoreSearch(BaseModel):
    """A search in a vector store."""

    model_config = ConfigDict(extra="ignore", strict=True)

    query: str | list[str]
    filters: dict[str, Any] | None = None
    max_num_results: int = Field(10, ge=1, le=50)
    ranking_options: RankingOptions | None = None
    rewrite_query: bool = False


class TextContent(BaseModel):
    """A piece of text."""

    type: Literal["text"] = "text"
    text: str


class VectorStoreHit(BaseModel):
    """A chunk that was found. `chunk`, `start`, `end`, `page` and `headings` are beyond OpenAI's form."""

    file_id: str
    filename: str
    score: float = Field(description="From 0 to 1.")
    attributes: dict[str, Any]
    content: list[TextContent]
    chunk: int
    start: int = Field(description="Offset of the chunk's first byte in the file's text (UTF-8).")
    end: int
    page: int | None
    headings: list[str]


class VectorStoreResults(BaseModel):
    """The hits of a search, best first."""

    object: Literal["vector_store.search_results.page"] = "vector_store.search_results.page"
    search_query: list[str]
    data: list[VectorStoreHit]
    has_more: Literal[False] = False
    next_page: None = None


class FileContent(BaseModel):
    """The text of a file in a vector store."""

    object: Literal["vector_store.file_content.page"] = "vector_store.file_content.page"
    data: list[TextContent]
    has_more: Literal[False] = False
    next_page: None = None
