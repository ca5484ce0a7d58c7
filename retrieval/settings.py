"""Retrieval's settings: environment variables, read once at start."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from common.settings import (
    AnyLogLevel,
    LogForm,
    LogMib,
    ProgramSettings,
    RetrievalConcurrency,
    RetrievalTokenFile,
    StateFolder,
)
from contract.documents import ANY_LANGUAGE, SearchLanguage


class RetrievalSettings(ProgramSettings):
    """Every setting of retrieval, from the environment variables `ROUNDHOUSE_...`. A wrong value, and an overlap of
    chunks above half of their size, is pydantic's ValidationError. No file is looked at, and no server is asked."""

    state: StateFolder = Path("state")
    retrieval_listen: str = Field(
        "unix:state/retrieval.sock",
        description="Where retrieval listens for the gateway: `unix:/path/retrieval.sock`, or `host:port`.",
    )
    retrieval_token_file: RetrievalTokenFile = None
    gateway_url: str = Field(
        "http://127.0.0.1:8080", description="Address of the gateway, which retrieval asks for embeddings and rankings."
    )
    qdrant_url: str | None = Field(
        None,
        description="Address of a Qdrant server for the vectors, such as `http://qdrant:6333`; default: "
        "the embedded Qdrant Edge in the state folder.",
    )
    qdrant_api_key: str | None = Field(None, description="API key of the Qdrant server.", repr=False)
    retrieval_embedding_model: str | None = Field(
        None,
        description="Name of the declared embedding model for searches by meaning; default: none, only "
        "searches by words (BM25). After a change, run `roundhouse rag reindex`.",
    )
    retrieval_language: SearchLanguage = Field(
        ANY_LANGUAGE,
        description="Language of the documents, for the stop words and stems of searches by words: `auto`, that of "
        "each passage; a name that Qdrant knows, such as `german`, of all texts in its script; `none`: no stop words "
        "and stems. After a change, the index is built anew in the background.",
    )
    retrieval_rerank_model: str | None = Field(
        None, description="Name of the declared rerank model for searches with `rerank`; default: none."
    )
    retrieval_query_prefix: str | None = Field(
        None, description="Text in front of each embedded query; default: what the model's family wants."
    )
    retrieval_passage_prefix: str | None = Field(
        None, description="Text in front of each embedded passage; default: what the model's family wants."
    )
    retrieval_chunk_tokens: int = Field(
        400, ge=32, le=4096, description="Largest chunk of a document, in estimated tokens."
    )
    retrieval_chunk_overlap_tokens: int = Field(
        60,
        ge=0,
        le=2048,
        description="Text that a chunk repeats of the one before, in estimated tokens; at most half a chunk.",
    )
    retrieval_max_file_mib: int = Field(64, ge=1, le=4096, description="Largest document in MiB.")
    retrieval_parse_timeout_s: float = Field(120, gt=0, description="Maximum seconds to parse a document.")
    retrieval_parse_memory_mib: int = Field(
        1024, ge=256, description="Maximum memory in MiB of a process that parses documents."
    )
    retrieval_parsers: int = Field(1, ge=1, le=64, description="Processes that parse documents at the same time.")
    retrieval_embed_batch: int = Field(32, ge=1, le=1024, description="Maximum chunks per embedding request.")
    retrieval_concurrency: RetrievalConcurrency = 8
    log_level: AnyLogLevel = "INFO"
    log_format: LogForm = "human"
    log_mib: LogMib = 16

    @field_validator("qdrant_url")
    @classmethod
    def _is_address(cls, url: str | None) -> str | None:
        if url is not None and not _has_host(url):
            raise ValueError("must be the address of a server, such as http://qdrant:6333")  # it may hold a password
        return url

    @model_validator(mode="after")
    def _overlap_fits(self) -> RetrievalSettings:
        if self.retrieval_chunk_overlap_tokens > self.retrieval_chunk_tokens // 2:
            raise ValueError("ROUNDHOUSE_RETRIEVAL_CHUNK_OVERLAP_TOKENS must be at most half of the chunk's tokens")
        return self

    @property
    def token_file(self) -> Path:
        """Path of the token file: `retrieval_token_file`, else `retrieval-token` in the state folder. The file may not
        exist."""
        return self.retrieval_token_file or self.state / "retrieval-token"


def _has_host(url: str) -> bool:
    """Return whether a text has the form of an address of HTTP or HTTPS, with a host and without blanks."""
    try:
        parts = urlsplit(url)
        _ = parts.port  # which is a number, or not
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname) and not re.search(r"[\s\x00-\x1f\x7f]", url)
