"""Tables of the SQLite file of stored objects, and how they are created and upgraded."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Final

from common.sqlite_files import FileConnection, NewerDatabaseError, open_connection, transaction
from common.state_files import RESPONSES_SCHEMA_VERSION
from gateway.protocols.common.json_bytes import json_bytes
from gateway.storage.conversations.item_outline import fold_text, text_of, without_media

BUSY_S: Final = 2.0
"""Seconds to wait until a previous gateway has released the file."""

_RESPONSES: Final = """
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
    bytes INTEGER NOT NULL
);
CREATE INDEX responses_by_use ON responses (used_at, number);
CREATE INDEX responses_running ON responses (number) WHERE status IN ('queued', 'in_progress');
CREATE TABLE documents (
    number INTEGER PRIMARY KEY REFERENCES responses ON DELETE CASCADE,
    response BLOB NOT NULL,
    input BLOB NOT NULL,
    output BLOB NOT NULL
);
"""
_CONVERSATIONS_AND_COMPLETIONS: Final = """
ALTER TABLE responses ADD COLUMN conversation TEXT;
ALTER TABLE responses ADD COLUMN conversation_item TEXT;
CREATE INDEX responses_by_conversation ON responses (conversation) WHERE conversation IS NOT NULL;
CREATE TABLE conversations (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    tenant TEXT NOT NULL,
    model TEXT,
    created_at REAL NOT NULL,
    used_at REAL NOT NULL,
    active_item TEXT,
    metadata BLOB NOT NULL
);
CREATE INDEX conversations_by_use ON conversations (used_at, number);
CREATE TABLE conversation_items (
    number INTEGER PRIMARY KEY,
    conversation INTEGER NOT NULL REFERENCES conversations ON DELETE CASCADE,
    id TEXT NOT NULL,
    parent_id TEXT,
    created_at REAL NOT NULL,
    item BLOB NOT NULL,
    UNIQUE (conversation, id)
);
CREATE INDEX conversation_items_by_id ON conversation_items (id);
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
_RESPONSE_EVENTS: Final = """
CREATE TABLE response_events (
    number INTEGER PRIMARY KEY REFERENCES responses ON DELETE CASCADE,
    events BLOB NOT NULL
);
"""
_CONVERSATION_LISTS: Final = """
ALTER TABLE conversations ADD COLUMN settings BLOB;
CREATE INDEX conversations_by_tenant ON conversations (tenant, used_at, number);
CREATE TABLE item_outlines (
    number INTEGER PRIMARY KEY REFERENCES conversation_items ON DELETE CASCADE,
    text BLOB NOT NULL,
    item BLOB
);
INSERT INTO item_outlines SELECT number, folded_text(item), outline(item) FROM conversation_items;
"""
_ANSWERS: Final = """
ALTER TABLE conversation_items ADD COLUMN answer BLOB;
"""
SCHEMA_STEPS: Final = (_RESPONSES, _CONVERSATIONS_AND_COMPLETIONS + _RESPONSE_EVENTS, _CONVERSATION_LISTS, _ANSWERS)
"""SQL that upgrades a file from version n to n + 1, starting with 0, an empty file. Never change a step that was
released, because files of its version exist."""


def open_database(path: Path) -> FileConnection:
    """Open the file at `path`, creating it if it is missing, and create or upgrade its tables.

    The caller closes the connection, which is in autocommit mode and holds the file until then: only one gateway at a
    time can open it, while other programs may read it (`roundhouse backup` does). An upgrade that fails leaves the file
    as it was. The file's mode becomes 0600. Blocks.

    Raises:
        NewerDatabaseError: a newer version wrote the file, which is unchanged.
        sqlite3.OperationalError: with SQLITE_BUSY if another process holds the file for `BUSY_S` seconds.
        sqlite3.Error, OSError: the file cannot be opened, read or written.
    """
    db = open_connection(path, busy_s=BUSY_S, is_held=True)
    try:
        version = _version_of(db)
        if not version:
            db.execute("PRAGMA auto_vacuum = INCREMENTAL")  # counts before the first table only
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA journal_size_limit = 16777216")
        db.execute("PRAGMA synchronous = NORMAL")
        db.execute("PRAGMA foreign_keys = ON")
        with transaction(db):  # all steps, or none: a process that is killed leaves the file as it was
            if version < RESPONSES_SCHEMA_VERSION:
                _migrate_tables(db, version)
    except BaseException:
        db.close()
        raise
    return db


def _version_of(db: sqlite3.Connection) -> int:
    """Read the schema version; 0: the file is empty. Raises NewerDatabaseError before anything is written."""
    [version] = db.execute("PRAGMA user_version").fetchone()
    if version > RESPONSES_SCHEMA_VERSION:
        raise NewerDatabaseError(f"a newer Roundhouse wrote it (schema version {version})")
    return int(version)


def _migrate_tables(db: sqlite3.Connection, version: int) -> None:
    db.create_function("folded_text", 1, _folded_text, deterministic=True)
    db.create_function("outline", 1, _outline, deterministic=True)
    for step in SCHEMA_STEPS[version:]:
        for statement in step.split(";")[:-1]:
            db.execute(statement)
    db.execute(f"PRAGMA user_version = {RESPONSES_SCHEMA_VERSION}")


def _folded_text(item: bytes) -> bytes:
    return fold_text(text_of(json.loads(item)))


def _outline(item: bytes) -> bytes | None:
    outline = without_media(json.loads(item))
    return None if outline is None else json_bytes(outline)
