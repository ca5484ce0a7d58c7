"""Tables of the SQLite file of stored objects, and how they are created."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Final

from common.sqlite_files import FileConnection, has_tables, open_connection, transaction
from common.state_files import RESPONSES_SCHEMA_VERSION

BUSY_S: Final = 2.0
"""Seconds to wait until a previous gateway has released the file."""

_TABLES: Final = """
CREATE TABLE responses (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    tenant TEXT NOT NULL,
    model TEXT NOT NULL,
    created_at REAL NOT NULL,
    used_at REAL NOT NULL,
    previous TEXT,
    status TEXT NOT NULL,
    items INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    conversation TEXT,
    conversation_item TEXT
);
CREATE INDEX responses_by_use ON responses (used_at, number);
CREATE INDEX responses_running ON responses (number) WHERE status IN ('queued', 'in_progress');
CREATE INDEX responses_by_conversation ON responses (conversation) WHERE conversation IS NOT NULL;
CREATE TABLE documents (
    number INTEGER PRIMARY KEY REFERENCES responses ON DELETE CASCADE,
    response BLOB NOT NULL,
    input BLOB NOT NULL,
    output BLOB NOT NULL
);
CREATE TABLE response_events (
    number INTEGER PRIMARY KEY REFERENCES responses ON DELETE CASCADE,
    events BLOB NOT NULL
);
CREATE TABLE conversations (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    tenant TEXT NOT NULL,
    model TEXT,
    created_at REAL NOT NULL,
    used_at REAL NOT NULL,
    active_item TEXT,
    metadata BLOB NOT NULL,
    settings BLOB
);
CREATE INDEX conversations_by_use ON conversations (used_at, number);
CREATE INDEX conversations_by_tenant ON conversations (tenant, used_at, number);
CREATE TABLE conversation_items (
    number INTEGER PRIMARY KEY,
    conversation INTEGER NOT NULL REFERENCES conversations ON DELETE CASCADE,
    id TEXT NOT NULL,
    parent_id TEXT,
    created_at REAL NOT NULL,
    item BLOB NOT NULL,
    answer BLOB,
    UNIQUE (conversation, id)
);
CREATE INDEX conversation_items_by_id ON conversation_items (id);
CREATE TABLE item_outlines (
    number INTEGER PRIMARY KEY REFERENCES conversation_items ON DELETE CASCADE,
    text BLOB NOT NULL,
    item BLOB
);
CREATE TABLE completions (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    tenant TEXT NOT NULL,
    model TEXT NOT NULL,
    created_at REAL NOT NULL,
    used_at REAL NOT NULL,
    metadata BLOB NOT NULL,
    completion BLOB NOT NULL,
    messages BLOB NOT NULL
);
CREATE INDEX completions_by_use ON completions (used_at, number);
CREATE INDEX completions_by_tenant ON completions (tenant, number, model, used_at);
CREATE TABLE completion_metadata (
    tenant TEXT NOT NULL,
    key TEXT NOT NULL,
    value TEXT NOT NULL,
    number INTEGER NOT NULL REFERENCES completions ON DELETE CASCADE,
    PRIMARY KEY (tenant, key, value, number)
) WITHOUT ROWID;
CREATE INDEX completion_metadata_by_number ON completion_metadata (number);
"""


def open_database(path: Path) -> FileConnection:
    """Open the file at `path`, creating it and its tables if it is missing.

    The caller closes the connection, which is in autocommit mode and holds the file until then: only one gateway at a
    time can open it, while other programs may read it (`roundhouse backup` does). The file's mode becomes 0600. Blocks.

    Raises:
        NewerDatabaseError, OlderDatabaseError: another version wrote the file, which is unchanged.
        sqlite3.OperationalError: with SQLITE_BUSY if another process holds the file for `BUSY_S` seconds.
        sqlite3.Error, OSError: the file cannot be opened, read or written.
    """
    db = open_connection(path, busy_s=BUSY_S, is_held=True)
    try:
        is_new = not has_tables(db, RESPONSES_SCHEMA_VERSION, "it", "the file")
        if is_new:
            db.execute("PRAGMA auto_vacuum = INCREMENTAL")  # counts before the first table only
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA journal_size_limit = 16777216")
        db.execute("PRAGMA synchronous = NORMAL")
        db.execute("PRAGMA foreign_keys = ON")
        with transaction(db):  # all tables, or none: a process that is killed leaves the file empty
            if is_new:
                _create_tables(db)
    except BaseException:
        db.close()
        raise
    return db


def _create_tables(db: sqlite3.Connection) -> None:
    for statement in _TABLES.split(";")[:-1]:
        db.execute(statement)
    db.execute(f"PRAGMA user_version = {RESPONSES_SCHEMA_VERSION}")
