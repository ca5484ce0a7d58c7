"""The state of retrieval, for operators: what `/v1/retrieval` answers."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field


class IndexStatus(BaseModel):
    """A collection of the vector store."""

    name: str
    embedding_model: str | None = Field(description="Null: words alone.")
    dimension: int | None
    missing_documents: int = Field(description="Searchable documents that are not in it yet.")


class RetrievalStatus(BaseModel):
    """What serves, and what is under way."""

    object: Literal["retrieval"] = "retrieval"
    vector_store: str = Field(description="`edge`: embedded. `server`: a Qdrant server.")
    embedding_model: str | None = Field(description="The embedding model that is set; null: none.")
    rerank_model: str | None
    index: IndexStatus | None = Field(description="The index that serves; null: nothing was ever indexed.")
    building: IndexStatus | None = Field(description="Its successor, while it is built.")
    needs_reindex: bool = Field(description="Whether another embedding model is set than the index has.")
    reindex_error: str | None = Field(description="Why the last try to build an index failed; it is tried again.")
    versions: dict[str, int] = Field(description="Versions of documents by state.")
