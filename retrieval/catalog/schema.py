"""Tables of the catalog's SQLite file, and how they are created."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from common.sqlite_files import (
    CATALOG_NAME,
    CATALOG_SCHEMA_VERSION,
    FileConnection,
    check_content,
    has_tables,
    open_connection,
    transaction,
)

FILE_NAME: Final = CATALOG_NAME
SCHEMA_VERSION: Final = CATALOG_SCHEMA_VERSION
BUSY_S: Final = 5.0
"""Seconds to wait until an earlier process has released the file."""

_TABLES: Final = """
CREATE TABLE documents (
    number INTEGER PRIMARY KEY,
    tenant TEXT NOT NULL,
    space TEXT NOT NULL,
    id TEXT NOT NULL,
    created_at REAL NOT NULL,
    live INTEGER,
    newest INTEGER NOT NULL,
    UNIQUE (tenant, space, id)
);
CREATE INDEX documents_by_age ON documents (tenant, space, number);
CREATE TABLE versions (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    document INTEGER,
    tenant TEXT NOT NULL,
    space TEXT NOT NULL,
    state TEXT NOT NULL,
    fingerprint TEXT NOT NULL,
    sha256 TEXT NOT NULL,
    bytes INTEGER NOT NULL,
    filename TEXT,
    declared_type TEXT,
    media_type TEXT,
    metadata TEXT NOT NULL,
    max_tokens INTEGER NOT NULL,
    overlap_tokens INTEGER NOT NULL,
    accepted_at REAL NOT NULL,
    chunks INTEGER,
    attempts INTEGER NOT NULL DEFAULT 0,
    retry_at REAL,
    error_code TEXT,
    error_message TEXT
);
CREATE INDEX versions_by_document ON versions (document);
CREATE INDEX versions_by_original ON versions (sha256);
CREATE INDEX versions_waiting ON versions (retry_at, number) WHERE state = 'queued';
CREATE INDEX versions_hidden ON versions (tenant, number) WHERE state IN ('embedding', 'garbage');
CREATE INDEX versions_garbage ON versions (number) WHERE state = 'garbage';
CREATE TABLE texts (
    version INTEGER PRIMARY KEY REFERENCES versions ON DELETE CASCADE,
    text BLOB NOT NULL
);
CREATE TABLE chunks (
    version INTEGER NOT NULL REFERENCES versions ON DELETE CASCADE,
    ordinal INTEGER NOT NULL,
    start INTEGER NOT NULL,
    end INTEGER NOT NULL,
    page INTEGER,
    headings TEXT NOT NULL,
    text TEXT NOT NULL,
    PRIMARY KEY (version, ordinal)
) WITHOUT ROWID;
CREATE TABLE collections (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL UNIQUE,
    model TEXT,
    dimension INTEGER,
    is_normalized INTEGER,
    state TEXT NOT NULL,
    bm25 TEXT
);
CREATE TABLE files (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    tenant TEXT NOT NULL,
    filename TEXT NOT NULL,
    purpose TEXT NOT NULL,
    media_type TEXT,
    sha256 TEXT NOT NULL,
    bytes INTEGER NOT NULL,
    created_at REAL NOT NULL,
    expires_at REAL
);
CREATE INDEX files_by_tenant ON files (tenant, number);
CREATE INDEX files_by_original ON files (sha256);
CREATE TABLE vector_stores (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    tenant TEXT NOT NULL,
    name TEXT,
    description TEXT,
    metadata TEXT NOT NULL,
    created_at REAL NOT NULL,
    last_active_at REAL NOT NULL,
    expires_days INTEGER
);
CREATE INDEX vector_stores_by_tenant ON vector_stores (tenant, number);
CREATE TABLE file_batches (
    id TEXT PRIMARY KEY,
    vector_store TEXT NOT NULL REFERENCES vector_stores (id) ON DELETE CASCADE,
    tenant TEXT NOT NULL,
    created_at REAL NOT NULL,
    files TEXT NOT NULL
);
CREATE TABLE indexed (
    collection INTEGER NOT NULL REFERENCES collections ON DELETE CASCADE,
    version INTEGER NOT NULL REFERENCES versions ON DELETE CASCADE,
    PRIMARY KEY (collection, version)
) WITHOUT ROWID;
"""
_LATER_INDEXES: Final = """
CREATE INDEX IF NOT EXISTS versions_queued ON versions (tenant, retry_at, number) WHERE state = 'queued';
CREATE INDEX IF NOT EXISTS versions_tried ON versions (tenant, number)
    WHERE chunks > 0 AND state IN ('queued', 'parsing', 'failed');
CREATE INDEX IF NOT EXISTS versions_ready ON versions (chunks) WHERE state = 'ready';
CREATE INDEX IF NOT EXISTS versions_unready ON versions (state, accepted_at) WHERE state != 'ready';
CREATE INDEX IF NOT EXISTS documents_visible ON documents (live) WHERE live IS NOT NULL
"""
"""Made in files of this schema version that lack them, which other programs of that version read all the same."""


def open_catalog_file(path: Path) -> FileConnection:
    """Open the catalog's file, creating it, its tables and its indexes where they are missing, and hold it for this
    process. Blocks.

    An existing file is read as a whole to check it. Every commit is durable when it returns. The caller closes the
    connection, which also lets another process hold the file.

    Raises:
        NewerDatabaseError, OlderDatabaseError: another version of Roundhouse wrote the file, which is unchanged.
        sqlite3.Error: the file is damaged, or held by another process for longer than `BUSY_S` (that is
            sqlite3.OperationalError with SQLITE_BUSY).
        OSError: the file cannot be read or made.
    """
    db = open_connection(path, busy_s=BUSY_S, is_held=True)
    try:
        is_new = not has_tables(db, SCHEMA_VERSION, FILE_NAME, "this folder")
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
        db.execute("PRAGMA foreign_keys = ON")
        if is_new:
            _create_tables(db)
        else:
            check_content(db)
        with transaction(db):
            for statement in _LATER_INDEXES.split(";"):
                db.execute(statement)
    except BaseException:
        db.close()
        raise
    return db


def _create_tables(db: FileConnection) -> None:
    with transaction(db):
        for statement in _TABLES.split(";"):
            db.execute(statement)
        db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
