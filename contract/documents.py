"""Documents and searches: what clients send and get on `/v1/documents`, `/v1/tenants` and `/v1/search`."""

from __future__ import annotations

from typing import Any, Final, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field

Status = Literal["queued", "parsing", "embedding", "ready", "failed"]

DOCUMENT_ID_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._:@+~=-]{0,199}$"


class ChunkingChoice(BaseModel):
    """Sizes of the chunks that a document is cut into. A size that is missing is the server's setting."""

    model_config = ConfigDict(extra="forbid", strict=True)

    max_tokens: int | None = Field(
        None, ge=32, le=4096, description="Largest chunk, in estimated tokens; default: the server's setting."
    )
    overlap_tokens: int | None = Field(
        None,
        ge=0,
        le=2048,
        description="Text that a chunk repeats of the one before, in estimated tokens, at most half of `max_tokens`; "
        "default: the server's setting.",
    )


class NewDocument(BaseModel):
    """A document as text. A file is sent as `multipart/form-data` instead: `file`, the optional `id` and `filename`,
    and the optional `metadata` and `chunking` as JSON text."""

    model_config = ConfigDict(extra="forbid", strict=True)

    text: str = Field(description="The document's text: plain, or Markdown.")
    id: str | None = Field(
        None,
        pattern=DOCUMENT_ID_PATTERN,
        description="Id of the document, unique for the tenant. A document of that id is replaced as soon as the new "
        "version is searchable; default: an id made of the content, so that the same text is stored once.",
    )
    filename: str | None = Field(None, max_length=255, description="Name to show in hits and citations.")
    metadata: dict[str, Any] | None = Field(
        None,
        description="Attributes for filters: at most 64 strings, numbers, booleans, or lists of strings or numbers.",
    )
    chunking: ChunkingChoice | None = None


class Chunking(BaseModel):
    """How a document is cut into chunks, by what the client sent and the server's settings at that time."""

    max_tokens: int = Field(description="Largest chunk, in estimated tokens.")
    overlap_tokens: int = Field(description="Text that a chunk repeats of the one before, in estimated tokens.")


class Progress(BaseModel):
    """How far the indexing of a document's newest version is. Only versions that are neither `ready` nor `failed` have
    it. `chunks` counts those of the current try: it begins at 0 with each try, and is 0 while the version waits for the
    next."""

    chunks: int = Field(description="Chunks that have vectors.")
    chunks_total: int | None = Field(description="Chunks of the version; null: it is not cut yet.")


class DocumentError(BaseModel):
    """Why the last try to index the newest version of a document failed. An older version may still be searchable."""

    code: str = Field(description="An error code, such as `document_encrypted`.")
    message: str
    retry_at: int | None = Field(description="Unix time in seconds of the next try; null: there is none.")


class Document(BaseModel):
    """A document, without its text: its newest version, and whether a version is searchable. Both differ while a
    replacement is being indexed, and after it failed."""

    id: str
    object: Literal["document"] = "document"
    status: Status = Field(
        description="Of the newest version: `ready` is searchable; `failed` is not, and is not tried again."
    )
    searchable: bool = Field(description="Whether some version is found by searches, perhaps an older one.")
    filename: str | None
    media_type: str | None = Field(description="What the file turned out to be; null: not known yet.")
    declared_media_type: str | None = Field(description="As the client said; null: it did not.")
    bytes: int = Field(description="Size of the original.")
    sha256: str = Field(description="Hash of the original, in hex.")
    chunks: int | None = Field(description="Chunks of the searchable version; null: there is none.")
    created_at: int = Field(description="Unix time in seconds.")
    updated_at: int = Field(description="Unix time in seconds when the newest version was accepted.")
    metadata: dict[str, Any]
    chunking: Chunking
    progress: Progress | None = Field(description="Null: nothing is under way.")
    error: DocumentError | None
    notice: str | None = Field(
        description="What searches do not find of the newest version, though it is searchable; null: they find all of "
        "it."
    )


class DocumentList(BaseModel):
    """A page of the tenant's documents, by creation: newest first unless `order` is `asc`. `first_id` and `last_id` are
    the ids of the first and the last one here, null on an empty page; `last_id` as `after` asks for the next page.
    `has_more`: documents follow this page."""

    object: Literal["list"] = "list"
    data: list[Document]
    first_id: str | None
    last_id: str | None
    has_more: bool


class DeletedDocument(BaseModel):
    """The answer to a deletion: the document is gone, and no search finds it. `deleted` is always true."""

    id: str
    object: Literal["document.deleted"] = "document.deleted"
    deleted: bool


class DocumentChunk(BaseModel):
    """One chunk of a document's searchable version."""

    index: int = Field(description="Position in the document, from 0.")
    start: int = Field(description="Offset of its first byte in the document's text (UTF-8).")
    end: int = Field(description="Offset after its last byte.")
    text: str
    headings: list[str] = Field(description="Headings above the chunk, outermost first; then its table's header row.")
    page: int | None = Field(description="Page that the chunk begins on, from 1; null: the format has no pages.")


class ChunkList(BaseModel):
    """A page of the chunks of a document's searchable version, in the order of the text; empty where no version is
    searchable. `has_more`: chunks follow; the last `index` here, as `after`, asks for them."""

    object: Literal["list"] = "list"
    document_id: str
    data: list[DocumentChunk]
    has_more: bool


class Tenant(BaseModel):
    """How much one tenant has stored: documents, also those of vector stores. Files that no vector store has are not
    counted."""

    id: str
    object: Literal["tenant"] = "tenant"
    documents: int
    chunks: int = Field(description="Chunks that searches can find.")
    bytes: int = Field(description="Size of the originals.")


class TenantList(BaseModel):
    """The tenants that have documents, by name, all on one page; without the scope `admin`, the caller's own alone."""

    object: Literal["list"] = "list"
    data: list[Tenant]


class DeletedTenant(BaseModel):
    """The answer to the deletion of a tenant: its documents, files and vector stores are gone. `deleted` is always
    true."""

    id: str
    object: Literal["tenant.deleted"] = "tenant.deleted"
    deleted: bool
    documents: int = Field(description="How many documents were deleted.")


# Searches

SearchLanguage = Literal[
    "auto",
    "none",
    "arabic",
    "azerbaijani",
    "basque",
    "bengali",
    "catalan",
    "chinese",
    "danish",
    "dutch",
    "english",
    "finnish",
    "french",
    "german",
    "greek",
    "hebrew",
    "hinglish",
    "hungarian",
    "indonesian",
    "italian",
    "japanese",
    "kazakh",
    "nepali",
    "norwegian",
    "portuguese",
    "romanian",
    "russian",
    "slovene",
    "spanish",
    "swedish",
    "tajik",
    "turkish",
]
LANGUAGES: Final[tuple[str, ...]] = get_args(SearchLanguage)
ANY_LANGUAGE: Final = "auto"
"""The language of each text."""
NO_LANGUAGE: Final = "none"
"""No stop words and no stems."""

Mode = Literal["dense", "sparse", "hybrid"]


DENSE_WEIGHT: Final = 0.4
"""Of the search by meaning, beside 1 for words. A small embedding model ranks worse than words: with equal weights,
hybrid searches found less than words alone in each set of the campaign (nDCG@10, mixed: 0.71; by words 0.75; with 0.4:
0.76)."""


class FusionChoice(BaseModel):
    """How a `hybrid` search makes one ranking of two: the dense one (by meaning) and the sparse one (by words). Other
    modes ignore it."""

    model_config = ConfigDict(extra="forbid", strict=True)

    method: Literal["rrf", "weighted"] = Field(
        "rrf",
        description="`rrf`: reciprocal rank fusion, by ranks alone. `weighted`: the sum of both scores, each scaled to "
        "0 to 1 over its candidates.",
    )
    dense_weight: float = Field(
        DENSE_WEIGHT,
        ge=0,
        le=100,
        description="The default is measured with a small embedding model; a large one may deserve 1.",
    )
    sparse_weight: float = Field(1.0, ge=0, le=100)


class SearchRequest(BaseModel):
    """A search over the tenant's own documents, without those of vector stores."""

    model_config = ConfigDict(extra="forbid", strict=True)

    query: str = Field(min_length=1, max_length=32_768)
    top_k: int = Field(10, ge=1, le=100, description="Most hits, over all documents.")
    filter: dict[str, Any] | None = Field(
        None,
        description='Only documents whose metadata match: `{"lang": "en"}`, or OpenAI\'s form with `type`, `key` and '
        "`value`, and `and` and `or` over `filters`.",
    )
    score_threshold: float | None = Field(None, description="Only hits with at least this `score`.")
    mode: Mode | None = Field(
        None,
        description="`dense`: by meaning. `sparse`: by words (BM25). `hybrid`: both. Default: `hybrid` where an "
        "embedding model is set, else `sparse`.",
    )
    fusion: FusionChoice | None = Field(None, description="For `hybrid`; default: `rrf`, with the weights' defaults.")
    rerank: bool = Field(False, description="Order the best candidates anew, by the rerank model that is set.")


class SearchScores(BaseModel):
    """The scores of a hit in each ranking. Null: that ranking was not made, or the hit is not among the candidates that
    were taken from it."""

    dense: float | None = Field(None, description="Cosine of query and chunk, -1 to 1.")
    dense_rank: int | None = Field(None, description="Place in the dense ranking, from 1.")
    sparse: float | None = Field(None, description="BM25, from 0.")
    sparse_rank: int | None = Field(None, description="Place in the sparse ranking, from 1.")
    rerank: float | None = Field(None, description="What the rerank model gave, in its own unit.")


class SearchHit(BaseModel):
    """A chunk that was found, with its place in the document's text. `filename` is null if the client named none.
    `page` is the page that the chunk begins on, from 1, and null where the format has no pages. `headings` are those
    above the chunk, the outermost first, and then the header row of the table that it begins in; what the chunk begins
    with is in its `text` alone. `score` is the
    rerank model's, in its own unit, if the search asked to `rerank`. `metadata` is the document's."""

    document_id: str
    filename: str | None
    chunk: int = Field(description="Position of the chunk in its document, from 0.")
    start: int = Field(description="Offset of its first byte in the document's text (UTF-8).")
    end: int = Field(description="Offset after its last byte.")
    page: int | None
    headings: list[str]
    text: str
    score: float = Field(description="What the hits are ordered by; its unit depends on the mode.")
    scores: SearchScores
    metadata: dict[str, Any]
    space: str = Field("", description="The vector store that the document belongs to; empty: none.")


class SearchResult(BaseModel):
    """The hits of a search, best first, at most `top_k`; empty where nothing fits. `embedding_model`:
    that of the index; null for a search by words, and before anything was indexed. `rerank_model`: null unless the
    search asked to `rerank`."""

    object: Literal["list"] = "list"
    mode: Mode = Field(description="The mode that was used.")
    embedding_model: str | None
    rerank_model: str | None
    complete: bool = Field(description="False while the index is being rebuilt, so that documents may be missing.")
    notice: str | None = Field(
        None,
        description="What the search did not do: the query has no words, or the index does not follow the settings "
        "yet; without hits also how many documents the tenant has, and, to a caller that may see them, which others "
        "have some; null: nothing.",
    )
    data: list[SearchHit]
