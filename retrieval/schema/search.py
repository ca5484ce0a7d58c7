"""Search: what clients send and get on `/v1/search`."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Mode = Literal["dense", "sparse", "hybrid"]


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
        0.4,
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
    above the chunk, the outermost first; a heading that the chunk begins with is in its `text` alone. `score` is the
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
        None, description="What an operator should do so that searches follow the settings; null: nothing."
    )
    data: list[SearchHit]
