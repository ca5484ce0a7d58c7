"""The table of retrieval's routes. Retrieval serves them, and the gateway forwards and documents them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pydantic import BaseModel

from retrieval.schema.documents import (
    ChunkList,
    DeletedDocument,
    DeletedTenant,
    Document,
    DocumentList,
    NewDocument,
    TenantList,
)
from retrieval.schema.search import SearchRequest, SearchResult


@dataclass(frozen=True, slots=True)
class QueryParameter:
    """A parameter in the query of a route."""

    name: str
    description: str
    schema: dict[str, object]


@dataclass(frozen=True, slots=True)
class RouteSpec:
    """One route: what the gateway forwards, and what its OpenAPI document says. Every route needs the scope
    `inference`."""

    method: str
    path: str
    summary: str
    description: str
    answer: type[BaseModel] | None
    """The JSON body of an answer; None: the answer is a file, text or an event stream."""
    status: int = 200
    body: type[BaseModel] | None = None
    """The JSON body of a request; None: there is none."""
    takes_file: bool = False
    """Whether the body may be `multipart/form-data` with a file."""
    query: tuple[QueryParameter, ...] = ()
    codes: tuple[str, ...] = ()
    """Error codes of its own, besides those of every route of retrieval."""


COMMON_CODES: Final = ("retrieval_unavailable",)
"""Error codes of every route of retrieval."""

LIMIT: Final = QueryParameter(
    "limit", "Most objects of a page.", {"type": "integer", "minimum": 1, "maximum": 100, "default": 20}
)
ORDER: Final = QueryParameter(
    "order",
    "By creation; `desc`: newest first.",
    {"type": "string", "enum": ["asc", "desc"], "default": "desc"},
)
AFTER: Final = QueryParameter("after", "Id of the last object of the page before.", {"type": "string"})
_WAIT: Final = QueryParameter(
    "wait",
    "Answer when the document is searchable or has failed, instead of at once.",
    {"type": "boolean", "default": False},
)
_FILTER: Final = QueryParameter("filter", "JSON, as `filter` of a search.", {"type": "string"})
_STATUS: Final = QueryParameter(
    "status",
    "Only documents of that status.",
    {"type": "string", "enum": ["queued", "parsing", "embedding", "ready", "failed"]},
)

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

ROUTES: Final = (
    RouteSpec(
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
    RouteSpec(
        "GET",
        "/v1/documents",
        "List documents",
        "The tenant's documents, a page at a time.",
        DocumentList,
        query=(LIMIT, ORDER, AFTER, _FILTER, _STATUS),
    ),
    RouteSpec("GET", DOCUMENT, "A document", "Its state and metadata.", Document, codes=("document_not_found",)),
    RouteSpec(
        "DELETE",
        DOCUMENT,
        "Delete a document",
        "When this answers, no search finds the document any more.",
        DeletedDocument,
        codes=("document_not_found",),
    ),
    RouteSpec(
        "GET",
        f"{DOCUMENT}/chunks",
        "The chunks of a document",
        "What was made of the document: the chunks of its searchable version, with offsets, headings and pages.",
        ChunkList,
        query=(
            LIMIT,
            QueryParameter("after", "`index` of the last chunk of the page before.", {"type": "integer", "minimum": 0}),
        ),
        codes=("document_not_found",),
    ),
    RouteSpec(
        "GET",
        f"{DOCUMENT}/text",
        "The text of a document",
        "The text of the searchable version, in UTF-8: what offsets of chunks and citations count in.",
        None,
        codes=("document_not_found",),
    ),
    RouteSpec(
        "GET",
        f"{DOCUMENT}/content",
        "The original of a document",
        "The bytes that were sent, of the newest version.",
        None,
        codes=("document_not_found",),
    ),
    RouteSpec(
        "GET",
        f"{DOCUMENT}/events",
        "Follow a document",
        "Server-sent events `document`, each with the document as it is now, until it is `ready` or `failed`.",
        None,
        codes=("document_not_found",),
    ),
    RouteSpec(
        "POST",
        "/v1/search",
        "Search documents",
        "Finds the chunks that fit the query best, over all documents of the tenant.",
        SearchResult,
        body=SearchRequest,
        codes=("invalid_json", "embedding_unavailable", "rerank_unavailable"),
    ),
    RouteSpec("GET", "/v1/tenants", "List tenants", "What each tenant has stored.", TenantList),
    RouteSpec(
        "DELETE",
        "/v1/tenants/{tenant_id:path}",
        "Delete a tenant",
        "Deletes all documents, files and vector stores of the tenant.",
        DeletedTenant,
        codes=("tenant_not_found",),
    ),
)
