"""The error codes of documents and searches."""

from __future__ import annotations

from typing import Final

from controller.schema.error_code import ErrorCode

_REQUEST: Final = "invalid_request_error"
_SERVER: Final = "server_error"
_LOG: Final = "Retrieval's log has the reason."

RETRIEVAL_ERRORS: Final = (
    ErrorCode(
        "retrieval_disabled",
        403,
        _REQUEST,
        "This Roundhouse keeps no documents: `ROUNDHOUSE_RETRIEVAL` is `off`.",
        ("Set `ROUNDHOUSE_RETRIEVAL=on`, and start Roundhouse again.",),
    ),
    ErrorCode(
        "retrieval_unavailable",
        503,
        _SERVER,
        "The retrieval program does not answer; it may be starting.",
        ("Try again.", "`roundhouse up` restarts it by itself; `docker compose ps retrieval` shows its state."),
        retry=True,
    ),
    ErrorCode(
        "retrieval_busy",
        429,
        "rate_limit_error",
        "Too many documents wait to be indexed.",
        ("Wait until GET /v1/documents?status=queued has become shorter.",),
        retry=True,
    ),
    ErrorCode(
        "document_not_found",
        404,
        _REQUEST,
        "The tenant has no document with the id, or no searchable version of it.",
        ("GET /v1/documents lists the documents.",),
    ),
    ErrorCode(
        "tenant_not_found",
        404,
        _REQUEST,
        "The tenant has stored nothing, or the key may not see it.",
        ("GET /v1/tenants lists the tenants; a key with the scope `admin` sees all.",),
    ),
    ErrorCode(
        "file_not_found",
        404,
        _REQUEST,
        "The tenant, or the vector store, has no file with the id.",
        ("GET /v1/files lists the files.",),
    ),
    ErrorCode(
        "vector_store_not_found",
        404,
        _REQUEST,
        "The tenant has no such vector store, or the store no such batch.",
        ("GET /v1/vector_stores lists the vector stores.",),
    ),
    ErrorCode(
        "vector_store_expired",
        400,
        _REQUEST,
        "The vector store was unused for as long as `expires_after` says. Its content is deleted.",
        ("Create another vector store, and add the files to it.",),
    ),
    ErrorCode("document_empty", 400, _REQUEST, "The document has no text.", ("Send a document with text in it.",)),
    ErrorCode(
        "document_too_large",
        413,
        _REQUEST,
        "The document, its text or its number of pages goes beyond a limit.",
        ("Split the document.", "Raise `ROUNDHOUSE_RETRIEVAL_MAX_FILE_MIB`, if it is the file's size."),
    ),
    ErrorCode(
        "document_encrypted",
        422,
        _REQUEST,
        "The document needs a password.",
        ("Remove the password, and send the document again.",),
    ),
    ErrorCode(
        "document_not_text",
        422,
        _REQUEST,
        "The document is declared as text, but is not text.",
        ("Send the file under its own name and type.",),
    ),
    ErrorCode(
        "document_malformed",
        422,
        _REQUEST,
        "The file is damaged, or of another format than it seems.",
        ("Open the file with the program that made it, save it again, and send that.",),
    ),
    ErrorCode(
        "unsupported_media_type",
        415,
        _REQUEST,
        "No text can be extracted from files of this format.",
        ("Convert the document to PDF, DOCX, HTML, Markdown or plain text.",),
    ),
    ErrorCode(
        "parsing_timeout",
        422,
        _REQUEST,
        "Parsing the document took longer than `ROUNDHOUSE_RETRIEVAL_PARSE_TIMEOUT_S`.",
        ("Split the document, or raise the setting.",),
    ),
    ErrorCode(
        "parsing_failed",
        422,
        _REQUEST,
        "The process that parses documents ended or ran out of memory.",
        ("Split the document.", "Raise `ROUNDHOUSE_RETRIEVAL_PARSE_MEMORY_MIB`.", _LOG),
    ),
    ErrorCode(
        "embedding_refused",
        422,
        _REQUEST,
        "The embedding model refuses a chunk of the document, for instance as too long.",
        ("Lower `ROUNDHOUSE_RETRIEVAL_CHUNK_TOKENS`, or send `chunking.max_tokens` with the document.",),
    ),
    ErrorCode(
        "embedding_unavailable",
        503,
        _SERVER,
        "The embedding model does not answer.",
        (
            "GET /v1/models shows its state; `roundhouse load MODEL` loads it.",
            "`mode: sparse` searches without it.",
        ),
        retry=True,
    ),
    ErrorCode(
        "embedding_model_changed",
        409,
        _REQUEST,
        "The documents were indexed with another embedding model.",
        ("`roundhouse rag reindex` makes new vectors; searches by the old ones go on meanwhile.",),
    ),
    ErrorCode(
        "rerank_unavailable",
        503,
        _SERVER,
        "The rerank model does not answer.",
        ("GET /v1/models shows its state; `roundhouse load MODEL` loads it.", "Search without `rerank`."),
        retry=True,
    ),
    ErrorCode(
        "vector_store_unavailable",
        503,
        _SERVER,
        "The vector store does not answer.",
        ("Try again.", "Look at the Qdrant server of `ROUNDHOUSE_QDRANT_URL`.", _LOG),
        retry=True,
    ),
    ErrorCode(
        "storage_full",
        507,
        _SERVER,
        "The disk of the documents is full. Accepted documents stay.",
        ("Free space in the state folder, or delete documents.",),
    ),
    ErrorCode(
        "storage_failed",
        500,
        _SERVER,
        "The state folder of retrieval cannot be read or written.",
        ("Look at the disk and the owner of the state folder.", _LOG),
    ),
)
