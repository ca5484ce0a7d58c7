"""The SQLite file of what is stored: its tables, how it is opened, and what is done with a damaged one."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from common.sqlite_files import hold_file, remove_side_files
from common.state_files import RESPONSES_SCHEMA_VERSION

BUSY_S: Final = 2.0
"""How long a predecessor may take to let go of the file."""
HOLD_POLL_S: Final = 0.05
_DAMAGED: Final = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)

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
SCHEMA_STEPS: Final = (_RESPONSES, _CONVERSATIONS_AND_COMPLETIONS + _RESPONSE_EVENTS)
"""What makes of a file of version n one of version n + 1, from 0, an empty one. A step that a release has is never
changed: files of that version are there."""


class NewerDatabaseError(sqlite3.DatabaseError):
    """A newer Roundhouse wrote the file: it is neither read nor written."""


class HeldConnection(sqlite3.Connection):
    """A connection to a file that this process holds until the connection is closed."""

    held_descriptor: int | None = None

    def close(self) -> None:
        """Close the connection, and let go of the file."""
        super().close()
        if self.held_descriptor is not None:
            os.close(self.held_descriptor)
            self.held_descriptor = None


def open_database(path: Path) -> sqlite3.Connection:
    """The file, made if it is missing, readable by its owner alone, and held: one gateway at a time has it, and the
    hold ends with its process. Others may read it (`roundhouse backup` does). May raise sqlite3.Error and OSError."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    path.chmod(0o600)
    held_descriptor = _hold_within(path, BUSY_S)
    try:
        # Opened in one thread and used in another, one after the other.
        db = sqlite3.connect(
            path, timeout=BUSY_S, isolation_level=None, check_same_thread=False, factory=HeldConnection
        )
    except BaseException:
        os.close(held_descriptor)
        raise
    db.held_descriptor = held_descriptor
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


def _hold_within(path: Path, within_s: float) -> int:
    """Raises sqlite3.OperationalError (SQLITE_BUSY): another gateway holds the file."""
    deadline = time.monotonic() + within_s
    while True:
        try:
            return hold_file(path)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                error = sqlite3.OperationalError("database is locked: another gateway holds it")
                error.sqlite_errorcode = sqlite3.SQLITE_BUSY
                raise error from None
        time.sleep(HOLD_POLL_S)


def _version_of(db: sqlite3.Connection) -> int:
    """0: there is nothing in it. Raises NewerDatabaseError before anything is written."""
    [version] = db.execute("PRAGMA user_version").fetchone()
    if version > RESPONSES_SCHEMA_VERSION:
        raise NewerDatabaseError(f"a newer Roundhouse wrote it (schema version {version})")
    return int(version)


def _migrate_tables(db: sqlite3.Connection, version: int) -> None:
    for step in SCHEMA_STEPS[version:]:
        for statement in step.split(";")[:-1]:
            db.execute(statement)
    db.execute(f"PRAGMA user_version = {RESPONSES_SCHEMA_VERSION}")


@contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    """All of it, or nothing."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def is_damaged(error: BaseException) -> bool:
    """Whether the error says that the file's content is broken, which no further try mends."""
    code = getattr(error, "sqlite_errorcode", None)
    return code is not None and code & 0xFF in _DAMAGED


def move_aside(path: Path) -> Path:
    """Put a damaged file out of the way, over an earlier one. Where it is now. Raises OSError."""
    aside_path = path.with_name(f"{path.name}.damaged")
    path.replace(aside_path)
    remove_side_files(path)
    return aside_path
