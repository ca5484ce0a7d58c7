"""Retrieval: the headers between the gateway and it, its state, and the table of its routes, which the gateway forwards
and documents."""

from __future__ import annotations

from functools import partial
from typing import Final, Literal

from pydantic import BaseModel, Field

from contract.documents import (
    ChunkList,
    DeletedDocument,
    DeletedTenant,
    Document,
    DocumentList,
    NewDocument,
    SearchRequest,
    SearchResult,
    TenantList,
)
from contract.files import (
    AttributesChange,
    DeletedFile,
    DeletedVectorStore,
    DeletedVectorStoreFile,
    File,
    FileBatchObject,
    FileContent,
    FileList,
    NewFileBatch,
    NewVectorStore,
    NewVectorStoreFile,
    VectorStoreChange,
    VectorStoreFile,
    VectorStoreFileList,
    VectorStoreList,
    VectorStoreObject,
    VectorStoreResults,
    VectorStoreSearch,
)
from contract.route_spec import Parameter, RouteSpec

# Neither the gateway nor retrieval takes these headers from clients. That of their token: `common.internal_tokens`.
TENANT_HEADER: Final = "x-roundhouse-tenant"
"""In requests of the gateway to retrieval: the tenant, percent-encoded UTF-8."""
ADMIN_HEADER: Final = "x-roundhouse-admin"
"""In requests of the gateway to retrieval: `1` if the caller may see and delete other tenants."""
BACKGROUND_HEADER: Final = "x-roundhouse-background"
"""In requests of retrieval to the gateway: `1` where every other request goes first, as for the embeddings of documents
that nobody waits for."""
ANSWERED_TENANT_HEADER: Final = "x-tenant-id"
"""In answers to clients: the tenant that the request was resolved to."""


class IndexStatus(BaseModel):
    """One index over the documents of all tenants: a collection of the vector store, with the model that made its
    vectors. `dimension` is theirs, null where there are none."""

    name: str
    embedding_model: str | None = Field(description="Null: words alone.")
    dimension: int | None
    language: str = Field(description="Of its stop words and stems; `auto`: of each text; `none`: it has neither.")
    missing_documents: int = Field(description="Searchable documents that are not in it yet.")


class RetrievalStatus(BaseModel):
    """Which index searches use, which one is being built, with which models, and how many versions of documents are in
    which state: the answer of `GET /v1/retrieval`."""

    object: Literal["retrieval"] = "retrieval"
    vector_store: str = Field(description="`edge`: embedded. `server`: a Qdrant server.")
    embedding_model: str | None = Field(description="The embedding model that is set; null: none.")
    language: str = Field(description="The language that is set for searches by words.")
    rerank_model: str | None
    index: IndexStatus | None = Field(description="The index that serves; null: nothing was ever indexed.")
    building: IndexStatus | None = Field(description="Its successor, while it is built.")
    needs_reindex: bool = Field(description="Whether another model or language is set than the index has.")
    reindex_error: str | None = Field(description="Why the last try to build an index failed; it is tried again.")
    clock_hold: str | None = Field(
        description="Why nothing is deleted as expired: the wall clock is not believed; null: it is."
    )
    versions: dict[str, int] = Field(description="Versions of documents by state.")


COMMON_CODES: Final = ("retrieval_unavailable",)
"""Error codes of every route of retrieval."""

LIMIT: Final = Parameter(
    "limit", "Most objects of a page.", {"type": "integer", "minimum": 1, "maximum": 100, "default": 20}
)
ORDER: Final = Parameter(
    "order",
    "By creation; `desc`: newest first.",
    {"type": "string", "enum": ["asc", "desc"], "default": "desc"},
)
AFTER: Final = Parameter("after", "Id of the last object of the page before.", {"type": "string"})
_BEFORE: Final = Parameter(
    "before", "Id of the first object of the page behind, in place of `after`.", {"type": "string"}
)
_WAIT: Final = Parameter(
    "wait",
    "Answer when the document is searchable or has failed, instead of at once.",
    {"type": "boolean", "default": False},
)
_FILTER: Final = Parameter("filter", "JSON, as `filter` of a search.", {"type": "string"})
_STATUS: Final = Parameter(
    "status",
    "Only documents of that status.",
    {"type": "string", "enum": ["queued", "parsing", "embedding", "ready", "failed"]},
)

FILES: Final = "/v1/files"
FILE: Final = f"{FILES}/{{file_id}}"
STORES: Final = "/v1/vector_stores"
STORE: Final = f"{STORES}/{{vector_store_id}}"
STORE_FILES: Final = f"{STORE}/files"
STORE_FILE: Final = f"{STORE_FILES}/{{file_id}}"
STORE_BATCHES: Final = f"{STORE}/file_batches"
STORE_BATCH: Final = f"{STORE_BATCHES}/{{batch_id}}"
DOCUMENT: Final = "/v1/documents/{document_id}"
_WRITE_CODES: Final = ("invalid_json", "body_too_large", "storage_full", "retrieval_busy")
_PARSE_CODES: Final = (
    "document_empty",
    "document_encrypted",
    "document_too_large",
    "document_not_text",
    "document_malformed",
    "unsupported_media_type",
    "parsing_timeout",
    "parsing_failed",
)

_FILE_LIMIT: Final = Parameter(
    "limit", "Most files of a page.", {"type": "integer", "minimum": 1, "maximum": 10_000, "default": 10_000}
)
_PURPOSE: Final = Parameter(
    "purpose",
    "Only files of that purpose.",
    {"type": "string", "enum": ["assistants", "batch", "fine-tune", "vision", "user_data", "evals"]},
)
_FILE_STATUS: Final = Parameter(
    "filter",
    "Only files of that status.",
    {"type": "string", "enum": ["in_progress", "completed", "failed", "cancelled"]},
)
_STORE_CODES: Final = ("vector_store_not_found",)
_STORE_FILE_CODES: Final = ("vector_store_not_found", "file_not_found")
_USE_CODES: Final = ("invalid_json", "vector_store_expired", "storage_full", "retrieval_busy", *_STORE_FILE_CODES)

_route: Final = partial(RouteSpec, tag="retrieval")

_FILE_ROUTES: Final = (
    _route(
        "POST",
        FILES,
        "Upload a file",
        "Stores a file durably, as OpenAI's API: a form with `file` and `purpose`. Searches find it in the vector "
        "stores that it is added to.",
        File,
        takes_file=True,
        codes=("document_empty", "document_too_large", "storage_full"),
    ),
    _route("GET", FILES, "List files", "The tenant's files.", FileList, query=(_FILE_LIMIT, ORDER, AFTER, _PURPOSE)),
    _route("GET", FILE, "A file", "A file, without its content.", File, codes=("file_not_found",)),
    _route(
        "DELETE",
        FILE,
        "Delete a file",
        "Deletes a file, also from all vector stores.",
        DeletedFile,
        codes=("file_not_found",),
    ),
    _route(
        "GET",
        f"{FILE}/content",
        "The content of a file",
        "The bytes that were sent.",
        None,
        codes=("file_not_found",),
    ),
)
_STORE_ROUTES: Final = (
    _route(
        "POST",
        STORES,
        "Create a vector store",
        "Creates a vector store, and adds its first files.",
        VectorStoreObject,
        body=NewVectorStore,
        codes=("invalid_json", "file_not_found", "storage_full", "retrieval_busy"),
    ),
    _route(
        "GET",
        STORES,
        "List vector stores",
        "The tenant's vector stores.",
        VectorStoreList,
        query=(LIMIT, ORDER, AFTER, _BEFORE),
    ),
    _route("GET", STORE, "A vector store", "Its state and files by status.", VectorStoreObject, codes=_STORE_CODES),
    _route(
        "POST",
        STORE,
        "Change a vector store",
        "Changes the fields that are sent.",
        VectorStoreObject,
        body=VectorStoreChange,
        codes=("invalid_json", *_STORE_CODES),
    ),
    _route(
        "DELETE",
        STORE,
        "Delete a vector store",
        "Deletes what the vector store has made of its files; the files stay.",
        DeletedVectorStore,
        codes=_STORE_CODES,
    ),
    _route(
        "POST",
        f"{STORE}/search",
        "Search a vector store",
        "Finds the chunks that fit one query or several best. Scores go from 0 to 1. `rewrite_query` has no effect.",
        VectorStoreResults,
        body=VectorStoreSearch,
        codes=("invalid_json", "vector_store_expired", "embedding_unavailable", "rerank_unavailable", *_STORE_CODES),
    ),
    _route(
        "POST",
        STORE_FILES,
        "Add a file to a vector store",
        "Answers at once; the file is searchable when its status is `completed`.",
        VectorStoreFile,
        body=NewVectorStoreFile,
        codes=_USE_CODES,
    ),
    _route(
        "GET",
        STORE_FILES,
        "List the files of a vector store",
        "Files with their status.",
        VectorStoreFileList,
        query=(LIMIT, ORDER, AFTER, _BEFORE, _FILE_STATUS),
        codes=_STORE_CODES,
    ),
    _route(
        "GET",
        STORE_FILE,
        "A file of a vector store",
        "Its status and attributes.",
        VectorStoreFile,
        codes=_STORE_FILE_CODES,
    ),
    _route(
        "POST",
        STORE_FILE,
        "Change a file's attributes",
        "Replaces the attributes. The file is indexed again; until then, searches compare the old ones.",
        VectorStoreFile,
        body=AttributesChange,
        codes=_USE_CODES,
    ),
    _route(
        "DELETE",
        STORE_FILE,
        "Remove a file from a vector store",
        "The file itself stays.",
        DeletedVectorStoreFile,
        codes=_STORE_FILE_CODES,
    ),
    _route(
        "GET",
        f"{STORE_FILE}/content",
        "The text of a file in a vector store",
        "What was extracted from the file.",
        FileContent,
        codes=("document_not_found", *_STORE_FILE_CODES),
    ),
    _route(
        "POST",
        STORE_BATCHES,
        "Add files to a vector store",
        "Adds up to 2,000 files together.",
        FileBatchObject,
        body=NewFileBatch,
        codes=_USE_CODES,
    ),
    _route("GET", STORE_BATCH, "A batch", "Its files by status.", FileBatchObject, codes=_STORE_CODES),
    _route(
        "POST",
        f"{STORE_BATCH}/cancel",
        "Cancel a batch",
        "Stops indexing its files; those that are searchable stay.",
        FileBatchObject,
        codes=_STORE_CODES,
    ),
    _route(
        "GET",
        f"{STORE_BATCH}/files",
        "List the files of a batch",
        "By their places in the batch.",
        VectorStoreFileList,
        query=(LIMIT, ORDER, AFTER, _BEFORE, _FILE_STATUS),
        codes=_STORE_CODES,
    ),
)

ROUTES: Final = (
    _route(
        "POST",
        "/v1/documents",
        "Add or replace a document",
        "Stores a text or a file durably, and answers with status 202; parsing, embedding and indexing follow. With "
        "`wait=true`, answers when that is done. The same content and metadata under the same id are stored once: the "
        "answer then has status 200. A document is never found in part.",
        Document,
        status=202,
        body=NewDocument,
        takes_file=True,
        query=(_WAIT,),
        codes=(*_WRITE_CODES, *_PARSE_CODES),
    ),
    _route(
        "GET",
        "/v1/documents",
        "List documents",
        "The tenant's documents, a page at a time.",
        DocumentList,
        query=(LIMIT, ORDER, AFTER, _FILTER, _STATUS),
    ),
    _route("GET", DOCUMENT, "A document", "Its state and metadata.", Document, codes=("document_not_found",)),
    _route(
        "DELETE",
        DOCUMENT,
        "Delete a document",
        "When this answers, no search finds the document any more.",
        DeletedDocument,
        codes=("document_not_found",),
    ),
    _route(
        "GET",
        f"{DOCUMENT}/chunks",
        "The chunks of a document",
        "What was made of the document: the chunks of its searchable version, with offsets, headings and pages.",
        ChunkList,
        query=(
            LIMIT,
            Parameter("after", "`index` of the last chunk of the page before.", {"type": "integer", "minimum": 0}),
        ),
        codes=("document_not_found",),
    ),
    _route(
        "GET",
        f"{DOCUMENT}/text",
        "The text of a document",
        "The text of the searchable version, in UTF-8: what offsets of chunks and citations count in.",
        None,
        codes=("document_not_found",),
    ),
    _route(
        "GET",
        f"{DOCUMENT}/content",
        "The original of a document",
        "The bytes that were sent, of the newest version.",
        None,
        codes=("document_not_found",),
    ),
    _route(
        "GET",
        f"{DOCUMENT}/events",
        "Follow a document",
        "Server-sent events `document`, each with the document as it is now, until it is `ready` or `failed`.",
        None,
        codes=("document_not_found",),
    ),
    _route(
        "POST",
        "/v1/search",
        "Search documents",
        "Finds the chunks that fit the query best, over all documents of the tenant.",
        SearchResult,
        body=SearchRequest,
        codes=("invalid_json", "embedding_unavailable", "rerank_unavailable"),
    ),
    _route("GET", "/v1/tenants", "List tenants", "What each tenant has stored.", TenantList),
    _route(
        "DELETE",
        "/v1/tenants/{tenant_id:path}",
        "Delete a tenant",
        "Deletes all documents, files and vector stores of the tenant.",
        DeletedTenant,
        codes=("tenant_not_found",),
    ),
    *_FILE_ROUTES,
    *_STORE_ROUTES,
    _route(
        "GET",
        "/v1/retrieval",
        "The state of retrieval",
        "Which index serves, with which model, what is under way, and how many documents there are in which state.",
        RetrievalStatus,
        access="admin",
    ),
    _route(
        "POST",
        "/v1/retrieval/reindex",
        "Index everything anew",
        "Builds another index in the background, with the embedding model that is set, and lets it serve when it has "
        "everything. The old one serves until then. A call while one is being built has another one follow it.",
        RetrievalStatus,
        status=202,
        access="admin",
    ),
    _route(
        "POST",
        "/v1/retrieval/clock/confirm",
        "Confirm retrieval's clock",
        "Says that the wall clock of retrieval is right, so that what has expired by it is deleted. Needed only while "
        "`clock_hold` of `GET /v1/retrieval` is not null and nobody wants to wait.",
        RetrievalStatus,
        access="admin",
    ),
)
"""Every route of retrieval."""
