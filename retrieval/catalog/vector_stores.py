"""OpenAI's vector stores and file batches: statements for the catalog's thread. Times are Unix times in seconds.

A vector store is a space of documents: the document of a file has the file's id. What it holds is in `versions`.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from retrieval.catalog.paging import find_bound

DAY_S: Final = 86_400
_COLUMNS: Final = "id, tenant, name, description, metadata, created_at, last_active_at, expires_days"


@dataclass(frozen=True, slots=True)
class StoredVectorStore:
    """A vector store, without what it holds."""

    id: str
    tenant: str
    name: str | None
    description: str | None
    metadata: Mapping[str, Any]
    created_at: float
    last_active_at: float
    expires_days: int | None
    """Days after its last activity; None: it does not expire."""

    @property
    def expires_at(self) -> float | None:
        """When it expires unless it is used before; None: never."""
        return None if self.expires_days is None else self.last_active_at + self.expires_days * DAY_S


@dataclass(frozen=True, slots=True)
class FileBatch:
    """Files that were added to a vector store together."""

    id: str
    vector_store: str
    tenant: str
    created_at: float
    files: Sequence[str]


def save_store(db: sqlite3.Connection, store: StoredVectorStore) -> None:
    """Store a vector store, new or changed."""
    values = (
        store.id,
        store.tenant,
        store.name,
        store.description,
        json.dumps(store.metadata),
        store.created_at,
        store.last_active_at,
        store.expires_days,
    )
    db.execute(
        f"INSERT INTO vector_stores ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET "
        "name = excluded.name, description = excluded.description, metadata = excluded.metadata, "
        "last_active_at = excluded.last_active_at, expires_days = excluded.expires_days",
        values,
    )


def find_store(db: sqlite3.Connection, tenant: str, store_id: str) -> StoredVectorStore | None:
    """Return a tenant's vector store, also an expired one; None: there is none of that id."""
    row = db.execute(f"SELECT {_COLUMNS} FROM vector_stores WHERE tenant = ? AND id = ?", (tenant, store_id)).fetchone()
    return None if row is None else _read_store(row)


def list_stores(
    db: sqlite3.Connection, tenant: str, *, after: str | None, limit: int, is_ascending: bool
) -> list[StoredVectorStore]:
    """Return up to `limit` vector stores by creation, those after the store `after`. Raises LookupError where there is
    no such store."""
    comparison, direction, bound = find_bound(db, "vector_stores", tenant, after, is_ascending=is_ascending)
    rows = db.execute(
        f"SELECT {_COLUMNS} FROM vector_stores WHERE tenant = ? AND number {comparison} ? "
        f"ORDER BY number {direction} LIMIT ?",
        (tenant, bound, limit),
    )
    return [_read_store(row) for row in rows]


def touch_store(db: sqlite3.Connection, store_id: str, now: float) -> None:
    """Note that a vector store is used."""
    db.execute("UPDATE vector_stores SET last_active_at = ? WHERE id = ?", (now, store_id))


def list_expired_stores(db: sqlite3.Connection, now: float) -> list[tuple[str, str]]:
    """Return (tenant, id) of vector stores that have expired and still hold documents."""
    return db.execute(
        "SELECT s.tenant, s.id FROM vector_stores s WHERE s.last_active_at + s.expires_days * ? < ? AND EXISTS "
        "(SELECT 1 FROM documents d WHERE d.tenant = s.tenant AND d.space = s.id)",
        (DAY_S, now),
    ).fetchall()


def forget_store(db: sqlite3.Connection, tenant: str, store_id: str) -> None:
    """Delete a vector store and its batches. Its documents are deleted by `versions.delete_documents`."""
    db.execute("DELETE FROM vector_stores WHERE tenant = ? AND id = ?", (tenant, store_id))


def forget_stores(db: sqlite3.Connection, tenant: str) -> None:
    """Delete all vector stores of a tenant, as `forget_store` does."""
    db.execute("DELETE FROM vector_stores WHERE tenant = ?", (tenant,))


def add_batch(db: sqlite3.Connection, batch: FileBatch) -> None:
    """Store a new batch."""
    db.execute(
        "INSERT INTO file_batches (id, vector_store, tenant, created_at, files) VALUES (?, ?, ?, ?, ?)",
        (batch.id, batch.vector_store, batch.tenant, batch.created_at, json.dumps(list(batch.files))),
    )


def find_batch(db: sqlite3.Connection, tenant: str, store_id: str, batch_id: str) -> FileBatch | None:
    """Return a batch of a tenant's vector store; None: there is none of that id."""
    row = db.execute(
        "SELECT id, vector_store, tenant, created_at, files FROM file_batches "
        "WHERE tenant = ? AND vector_store = ? AND id = ?",
        (tenant, store_id, batch_id),
    ).fetchone()
    return None if row is None else FileBatch(row[0], row[1], row[2], row[3], tuple(json.loads(row[4])))


def _read_store(row: Sequence[Any]) -> StoredVectorStore:
    id_, tenant, name, description, metadata, created_at, last_active_at, expires_days = row
    return StoredVectorStore(
        id_, tenant, name, description, json.loads(metadata), created_at, last_active_at, expires_days
    )
