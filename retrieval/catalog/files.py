"""OpenAI's files: statements for the catalog's thread. Times are Unix times in seconds."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from typing import Final

from retrieval.catalog.paging import find_bound
from retrieval.catalog.records import DocumentKey
from retrieval.catalog.versions import delete_document

_COLUMNS: Final = "id, tenant, filename, purpose, media_type, sha256, bytes, created_at, expires_at"


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file that a client has uploaded."""

    id: str
    tenant: str
    filename: str
    purpose: str
    media_type: str | None
    """As the client said; None: it did not."""
    sha256: str
    bytes: int
    created_at: float
    expires_at: float | None
    """None: never."""


def add_file(db: sqlite3.Connection, file: StoredFile) -> None:
    """Store a new file. Raises sqlite3.IntegrityError where its id is taken."""
    values = (
        file.id,
        file.tenant,
        file.filename,
        file.purpose,
        file.media_type,
        file.sha256,
        file.bytes,
        file.created_at,
        file.expires_at,
    )
    db.execute(f"INSERT INTO files ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", values)


def find_file(db: sqlite3.Connection, tenant: str, file_id: str, now: float) -> StoredFile | None:
    """Return a tenant's file; None: there is none of that id, or it has expired."""
    row = db.execute(
        f"SELECT {_COLUMNS} FROM files WHERE tenant = ? AND id = ? AND coalesce(expires_at, ?) >= ?",
        (tenant, file_id, now, now),
    ).fetchone()
    return None if row is None else StoredFile(*row)


def list_files(
    db: sqlite3.Connection,
    tenant: str,
    now: float,
    *,
    after: str | None,
    limit: int,
    is_ascending: bool,
    purpose: str | None,
) -> list[StoredFile]:
    """Return up to `limit` files of a tenant by creation, those after the file `after`. Raises LookupError where there
    is no such file."""
    comparison, direction, bound = find_bound(db, "files", tenant, after, is_ascending=is_ascending)
    rows = db.execute(
        f"SELECT {_COLUMNS} FROM files WHERE tenant = ? AND number {comparison} ? AND coalesce(expires_at, ?) >= ? "
        f"AND purpose = coalesce(?, purpose) ORDER BY number {direction} LIMIT ?",
        (tenant, bound, now, now, purpose, limit),
    )
    return [StoredFile(*row) for row in rows]


def delete_file(db: sqlite3.Connection, tenant: str, file_id: str) -> str | None:
    """Delete a file, and its documents in all vector stores. Return its hash; None: there is none of that id."""
    row = db.execute("DELETE FROM files WHERE tenant = ? AND id = ? RETURNING sha256", (tenant, file_id)).fetchone()
    if row is None:
        return None
    spaces = db.execute("SELECT space FROM documents WHERE tenant = ? AND id = ? AND space != ''", (tenant, file_id))
    for (space,) in spaces.fetchall():
        delete_document(db, DocumentKey(tenant, space, file_id))
    return str(row[0])


def list_expired_files(db: sqlite3.Connection, now: float) -> list[tuple[str, str]]:
    """Return (tenant, id) of the files that have expired."""
    return db.execute("SELECT tenant, id FROM files WHERE expires_at < ?", (now,)).fetchall()


def delete_files(db: sqlite3.Connection, tenant: str) -> list[str]:
    """Delete all files of a tenant. Return their hashes."""
    return [row[0] for row in db.execute("DELETE FROM files WHERE tenant = ? RETURNING sha256", (tenant,))]
