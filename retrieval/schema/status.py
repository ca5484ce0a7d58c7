"""The state of retrieval, for operators: what `/v1/retrieval` answers."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field


class IndexStatus(BaseModel):
    """One index over the documents of all tenants: a collection of the vector store, with the model that made its
    vectors. `dimension` is theirs, null where there are none."""

    name: str
    embedding_model: str | None = Field(description="Null: words alone.")
    dimension: int | None
    language: str = Field(description="Of its stop words and stems; `none`: it has neither.")
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
