"""OpenAI's files: statements for the catalog's thread. Times are Unix times in seconds."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from typing import Final

from retrieval.catalog.paging import PageRequest, find_bound
from retrieval.catalog.records import DocumentKey
from retrieval.catalog.versions import delete_document

_COLUMNS: Final = "id, tenant, filename, purpose, media_type, sha256, bytes, created_at, expires_at"


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file that a client has uploaded to `/v1/files`, without its content, which `Originals` has under the hash
    `sha256`. `bytes`: its size. Times are Unix times in seconds."""

    id: str
    tenant: str
    filename: str
    purpose: str
    media_type: str | None
    """The type that the client declared; None: it declared none of use."""
    sha256: str
    bytes: int
    created_at: float
    expires_at: float | None
    """None: the file never expires."""


def add_file(db: sqlite3.Connection, file: StoredFile) -> None:
    """Store a new file. Raises sqlite3.IntegrityError where its id is taken. Call within a transaction
    (`CatalogDatabase.write`). Blocks; raises sqlite3.Error if the catalog fails otherwise."""
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
    """Return a tenant's file; None: the tenant has none of that id, or the file expired before `now` (Unix time in
    seconds). Blocks; raises sqlite3.Error if the catalog fails."""
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
    """Return the first `limit` files of a tenant, in the order of creation: oldest first if `is_ascending`, else newest
    first. Files that expired before `now` (Unix time in seconds) are left out.

    `after`: id of the file behind which the result begins, in the same order; it may have expired. None: begin with the
    first file. `purpose`: only files of this purpose; None: of any. Blocks.

    Raises:
        LookupError: the tenant has no file with the id `after`.
        sqlite3.Error: the catalog fails.
    """
    comparison, direction, bound = find_bound(db, "files", tenant, PageRequest(limit, is_ascending, after))
    rows = db.execute(
        f"SELECT {_COLUMNS} FROM files WHERE tenant = ? AND number {comparison} ? AND coalesce(expires_at, ?) >= ? "
        f"AND purpose = coalesce(?, purpose) ORDER BY number {direction} LIMIT ?",
        (tenant, bound, now, now, purpose, limit),
    )
    return [StoredFile(*row) for row in rows]


def delete_file(db: sqlite3.Connection, tenant: str, file_id: str) -> str | None:
    """Delete a file, also an expired one, and its documents in all vector stores. Return the hash of its original;
    None: the tenant has no file of that id, and nothing changed.

    The versions of the documents become garbage. After the commit, the caller removes the original if nothing else
    needs it (`remove_unused_originals`). Call within a transaction (`CatalogDatabase.write`). Blocks; raises
    sqlite3.Error if the catalog fails.
    """
    row = db.execute("DELETE FROM files WHERE tenant = ? AND id = ? RETURNING sha256", (tenant, file_id)).fetchone()
    if row is None:
        return None
    spaces = db.execute("SELECT space FROM documents WHERE tenant = ? AND id = ? AND space != ''", (tenant, file_id))
    for (space,) in spaces.fetchall():
        delete_document(db, DocumentKey(tenant, space, file_id))
    return str(row[0])


def list_expired_files(db: sqlite3.Connection, now: float) -> list[tuple[str, str]]:
    """Return (tenant, id) of all tenants' files that expired before `now` (Unix time in seconds) and are not deleted,
    in no order. Blocks; raises sqlite3.Error if the catalog fails."""
    return db.execute("SELECT tenant, id FROM files WHERE expires_at < ?", (now,)).fetchall()


def delete_files(db: sqlite3.Connection, tenant: str) -> list[str]:
    """Delete all files of a tenant, but not their documents in vector stores. Return the hashes of their originals, one
    per file. The caller removes the originals that nothing else needs. Call within a transaction
    (`CatalogDatabase.write`). Blocks; raises sqlite3.Error if the catalog fails."""
    return [row[0] for row in db.execute("DELETE FROM files WHERE tenant = ? RETURNING sha256", (tenant,))]
