"""OpenAI's files and vector stores: what clients send and get on `/v1/files` and `/v1/vector_stores`."""

from __future__ import annotations

from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

OWN_DOCUMENTS: Final = "documents"
"""In the place of a vector store's id in a search: the documents of `/v1/documents`, which are in no vector store."""
FileStatus = Literal["in_progress", "completed", "failed", "cancelled"]


class File(BaseModel):
    """OpenAI's file object, without the content: a file that was uploaded. `status` is always `processed`, also of a
    file that cannot be parsed: vector stores report that. `expires_at` is Unix time in seconds; null: never."""

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
    """A page of the tenant's files that have not expired, by creation: newest first unless `order` is `asc`.
    `first_id` and `last_id` are the ids of the first and the last one here, null on an empty page; `last_id` as `after`
    asks for the next page. `has_more`: files follow this page."""

    object: Literal["list"] = "list"
    data: list[File]
    first_id: str | None
    last_id: str | None
    has_more: bool


class DeletedFile(BaseModel):
    """The answer to a deletion: the file is gone, also from all vector stores, and no search finds it."""

    id: str
    object: Literal["file"] = "file"
    deleted: Literal[True] = True


class StaticChunking(BaseModel):
    """Sizes of chunks, in estimated tokens. An overlap above half of the size is refused with `invalid_request`."""

    model_config = ConfigDict(extra="forbid", strict=True)

    max_chunk_size_tokens: int = Field(ge=100, le=4096)
    chunk_overlap_tokens: int = Field(ge=0, le=2048)


class ChunkingStrategy(BaseModel):
    """How a file is cut into chunks. `auto`: by the server's settings. `static`: by the sizes in the field `static`,
    which must then be there."""

    model_config = ConfigDict(extra="forbid", strict=True)

    type: Literal["auto", "static"]
    static: StaticChunking | None = None


class ExpiresAfter(BaseModel):
    """When a vector store expires: `days` after its last activity. Creating the vector store, a search, adding files,
    and a change of the vector store itself (not of its files' attributes) count as activity."""

    model_config = ConfigDict(extra="forbid", strict=True)

    anchor: Literal["last_active_at"] = "last_active_at"
    days: int = Field(ge=1, le=365)


class NewVectorStore(BaseModel):
    """A vector store to create, with the ids of its first files. Unknown fields are ignored. `chunking_strategy` is
    that of these files alone; default: `auto`."""

    model_config = ConfigDict(extra="ignore", strict=True)

    name: str | None = Field(None, max_length=512)
    description: str | None = Field(None, max_length=512)
    file_ids: list[str] | None = Field(None, max_length=500)
    expires_after: ExpiresAfter | None = None
    chunking_strategy: ChunkingStrategy | None = None
    metadata: dict[str, Any] | None = None


class VectorStoreChange(BaseModel):
    """Fields of a vector store to change. A field that is missing stays; null clears it, so that `expires_after` null
    means never. Unknown fields are ignored."""

    model_config = ConfigDict(extra="ignore", strict=True)

    name: str | None = Field(None, max_length=512)
    expires_after: ExpiresAfter | None = None
    metadata: dict[str, Any] | None = None


class FileCounts(BaseModel):
    """Numbers of files by status. `total` is their sum."""

    in_progress: int
    completed: int
    failed: int
    cancelled: int
    total: int


class VectorStoreObject(BaseModel):
    """OpenAI's vector store object. Times are Unix times in seconds. `status`: `expired`, where searches are refused;
    else `in_progress` while a file is being indexed; else `completed`, also with failed files."""

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
    """A page of the tenant's vector stores, expired ones included, by creation: newest first unless `order` is `asc`.
    `first_id` and `last_id` are the ids of the first and the last one here, null on an empty page; `last_id` as `after`
    asks for the next page. `has_more`: vector stores follow this page or, if it was asked for with `before`, precede
    it."""

    object: Literal["list"] = "list"
    data: list[VectorStoreObject]
    first_id: str | None
    last_id: str | None
    has_more: bool


class DeletedVectorStore(BaseModel):
    """The answer to a deletion: the vector store is gone, with what it had made of its files. The files stay."""

    id: str
    object: Literal["vector_store.deleted"] = "vector_store.deleted"
    deleted: Literal[True] = True


class NewVectorStoreFile(BaseModel):
    """A file to add to a vector store, with attributes for filters. Unknown fields are ignored. Without a
    `chunking_strategy`: `auto`."""

    model_config = ConfigDict(extra="ignore", strict=True)

    file_id: str
    attributes: dict[str, Any] | None = None
    chunking_strategy: ChunkingStrategy | None = None


class AttributesChange(BaseModel):
    """The new attributes of a file in a vector store. They replace all old ones; null means none."""

    model_config = ConfigDict(extra="ignore", strict=True)

    attributes: dict[str, Any] | None


class NewFileBatch(BaseModel):
    """Files to add to a vector store together: either `file_ids`, or `files` with options of their own; both or neither
    are refused. `attributes` and `chunking_strategy` are those of every file in `file_ids`; with `files` they have no
    effect, but `attributes` that are not valid are still refused. Without a `chunking_strategy`: `auto`. Unknown fields
    are ignored."""

    model_config = ConfigDict(extra="ignore", strict=True)

    file_ids: list[str] | None = Field(None, max_length=2000)
    files: list[NewVectorStoreFile] | None = Field(None, max_length=2000)
    attributes: dict[str, Any] | None = None
    chunking_strategy: ChunkingStrategy | None = None


class FileError(BaseModel):
    """Why indexing a file in a vector store failed. `unsupported_file`: no text of a known format; `invalid_file`: the
    file itself; `server_error`: the server. A failed file is tried again only after it is added again, or its
    attributes are changed."""

    code: Literal["server_error", "unsupported_file", "invalid_file"]
    message: str


class VectorStoreFile(BaseModel):
    """OpenAI's object for a file in a vector store. `id` is the file's. `status` is that of the attributes and sizes
    sent last: `completed` is searchable. `usage_bytes` is the size of the text that searches find, 0 while there is
    none. `last_error` is null unless `status` is `failed`."""

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
    """A page of files in a vector store, by when they were added: newest first unless `order` is `asc`. `first_id` and
    `last_id` are the ids of the first and the last one here, null on an empty page; `last_id` as `after` asks for the
    next page. `has_more`: files follow this page or, if it was asked for with `before`, precede it. The files of a
    batch are listed by their places in it: the last first unless `order` is `asc`."""

    object: Literal["list"] = "list"
    data: list[VectorStoreFile]
    first_id: str | None
    last_id: str | None
    has_more: bool


class DeletedVectorStoreFile(BaseModel):
    """The answer to a removal: searches in the vector store do not find the file any more. The file itself stays."""

    id: str
    object: Literal["vector_store.file.deleted"] = "vector_store.file.deleted"
    deleted: Literal[True] = True


class FileBatchObject(BaseModel):
    """OpenAI's object for files that were added to a vector store together. `status`: `in_progress` while one of them
    is; else `cancelled` if one is; else `failed` if all are; else `completed`. A file that was removed since counts as
    completed."""

    id: str
    object: Literal["vector_store.files_batch"] = "vector_store.files_batch"
    created_at: int
    vector_store_id: str
    status: FileStatus
    file_counts: FileCounts


class HybridWeights(BaseModel):
    """Weights of the ranking by meaning and of the one by words (BM25) in the score of a hit. Only their ratio counts;
    where both are 0, so are all scores. No effect where only one ranking is made, as without an embedding model."""

    model_config = ConfigDict(extra="ignore", strict=True)

    embedding_weight: float = Field(1.0, ge=0, le=100)
    text_weight: float = Field(1.0, ge=0, le=100)


class RankingOptions(BaseModel):
    """How hits are ordered and which are left out: those with a score below `score_threshold`. Unknown fields are
    ignored."""

    model_config = ConfigDict(extra="ignore", strict=True)

    ranker: str | None = Field(
        None, description="`none` or left out: no reranking; else reranked, where a model is set."
    )
    score_threshold: float | None = Field(None, ge=0, le=1)
    hybrid_search: HybridWeights | None = None


class VectorStoreSearch(BaseModel):
    """A search in one vector store, with one query or 1 to 10 queries. `filters` compare the attributes of files.
    Unknown fields are ignored, and so is `rewrite_query`."""

    model_config = ConfigDict(extra="ignore", strict=True)

    query: str | list[str]
    filters: dict[str, Any] | None = None
    max_num_results: int = Field(10, ge=1, le=50)
    ranking_options: RankingOptions | None = None
    rewrite_query: bool = False


class TextContent(BaseModel):
    """A text in a list of contents, as OpenAI's API answers it: the text of a chunk, or of a whole file."""

    type: Literal["text"] = "text"
    text: str


class VectorStoreHit(BaseModel):
    """A chunk that was found, as the one element of `content`. `chunk`, `start`, `end`, `page` and `headings` are
    beyond OpenAI's form. `chunk` counts from 0; `end` is the offset after the last byte; `page` counts from 1, and is
    null where the format has no pages."""

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
    """The hits of a search, best first, at most `max_num_results`, all on one page. A chunk that several queries found
    is there once, with its best score. `search_query` has the queries as they were sent. `notice` is beyond OpenAI's
    form."""

    object: Literal["vector_store.search_results.page"] = "vector_store.search_results.page"
    search_query: list[str]
    data: list[VectorStoreHit]
    notice: str | None = Field(None, description="As `notice` of a search; of several queries, all of them.")
    has_more: Literal[False] = False
    next_page: None = None


class FileContent(BaseModel):
    """The whole text that was extracted from a file in a vector store, as one element of `data`."""

    object: Literal["vector_store.file_content.page"] = "vector_store.file_content.page"
    data: list[TextContent]
    has_more: Literal[False] = False
    next_page: None = None
