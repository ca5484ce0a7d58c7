"""OpenAI's vector stores and file batches: statements for the catalog's thread. Times are Unix times in seconds.

A vector store is a space of documents: the document of a file has the file's id. What it holds is in `versions`.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from retrieval.catalog.paging import PageRequest, cut_page, find_bound

DAY_S: Final = 86_400
_COLUMNS: Final = "id, tenant, name, description, metadata, created_at, last_active_at, expires_days"


@dataclass(frozen=True, slots=True)
class StoredVectorStore:
    """One of OpenAI's vector stores, without its files: those are documents of the space that has its id. `name` and
    `description` None: it has none. Times are Unix times in seconds."""

    id: str
    tenant: str
    name: str | None
    description: str | None
    metadata: Mapping[str, Any]
    created_at: float
    last_active_at: float
    expires_days: int | None
    """Days from `last_active_at` until it expires; None: it never does."""

    @property
    def expires_at(self) -> float | None:
        """Unix time in seconds when it expires, or has expired, unless it is used before; None: never."""
        return None if self.expires_days is None else self.last_active_at + self.expires_days * DAY_S


@dataclass(frozen=True, slots=True)
class FileBatch:
    """Files that were added to a vector store together. `files`: their ids, as the client sent them; some may have been
    removed from the vector store since. Their states are those of the documents with these ids. `created_at` is Unix
    time in seconds."""

    id: str
    vector_store: str
    tenant: str
    created_at: float
    files: Sequence[str]


def save_store(db: sqlite3.Connection, store: StoredVectorStore) -> None:
    """Insert a vector store. If its id exists, change the name, description, metadata, last activity and expiry of the
    stored one instead; its tenant and its time of creation stay. Call within a transaction (`CatalogDatabase.write`).
    Blocks; raises sqlite3.Error if the catalog fails."""
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
    """Return a tenant's vector store, also an expired one; None: the tenant has none of that id. Blocks; raises
    sqlite3.Error if the catalog fails."""
    row = db.execute(f"SELECT {_COLUMNS} FROM vector_stores WHERE tenant = ? AND id = ?", (tenant, store_id)).fetchone()
    return None if row is None else _read_store(row)


def list_stores(db: sqlite3.Connection, tenant: str, page: PageRequest) -> tuple[list[StoredVectorStore], bool]:
    """Return a page of a tenant's vector stores, also expired ones, in the order of creation that `page` asks for, and
    whether there are more behind it (with `before`: ahead of it). Raises LookupError where the tenant has no store with
    the id of the page's cursor. Blocks; raises sqlite3.Error if the catalog fails."""
    comparison, direction, bound = find_bound(db, "vector_stores", tenant, page)
    rows = db.execute(
        f"SELECT {_COLUMNS} FROM vector_stores WHERE tenant = ? AND number {comparison} ? "
        f"ORDER BY number {direction} LIMIT ?",
        (tenant, bound, page.limit + 1),
    )
    return cut_page([_read_store(row) for row in rows], page)


def touch_store(db: sqlite3.Connection, store_id: str, now: float) -> None:
    """Set a vector store's last activity to `now` (Unix seconds), so that it expires later. Does nothing for an unknown
    id. Call within a transaction (`CatalogDatabase.write`). Blocks; raises sqlite3.Error if the catalog fails."""
    db.execute("UPDATE vector_stores SET last_active_at = ? WHERE id = ?", (now, store_id))


def list_expired_stores(db: sqlite3.Connection, now: float) -> list[tuple[str, str]]:
    """Return (tenant, id) of all tenants' vector stores that expired before `now` (Unix time in seconds) and still have
    documents, in no order. Blocks; raises sqlite3.Error if the catalog fails."""
    return db.execute(
        "SELECT s.tenant, s.id FROM vector_stores s WHERE s.last_active_at + s.expires_days * ? < ? AND EXISTS "
        "(SELECT 1 FROM documents d WHERE d.tenant = s.tenant AND d.space = s.id)",
        (DAY_S, now),
    ).fetchall()


def forget_store(db: sqlite3.Connection, tenant: str, store_id: str) -> bool:
    """Delete a vector store and its batches. False: the tenant has none of that id. Its documents stay: the caller
    deletes them with `versions.delete_documents`, in the same transaction (`CatalogDatabase.write`). Blocks; raises
    sqlite3.Error if the catalog fails."""
    return db.execute("DELETE FROM vector_stores WHERE tenant = ? AND id = ?", (tenant, store_id)).rowcount > 0


def forget_stores(db: sqlite3.Connection, tenant: str) -> int:
    """Delete all vector stores of a tenant with their batches, but not their documents, and return how many they were.
    Call within a transaction (`CatalogDatabase.write`). Blocks; raises sqlite3.Error if the catalog fails."""
    return db.execute("DELETE FROM vector_stores WHERE tenant = ?", (tenant,)).rowcount


def add_batch(db: sqlite3.Connection, batch: FileBatch) -> None:
    """Insert a new batch. Raises sqlite3.IntegrityError where its id is taken, or its vector store does not exist. Call
    within a transaction (`CatalogDatabase.write`). Blocks; raises sqlite3.Error if the catalog fails otherwise."""
    db.execute(
        "INSERT INTO file_batches (id, vector_store, tenant, created_at, files) VALUES (?, ?, ?, ?, ?)",
        (batch.id, batch.vector_store, batch.tenant, batch.created_at, json.dumps(list(batch.files))),
    )


def find_batch(db: sqlite3.Connection, tenant: str, store_id: str, batch_id: str) -> FileBatch | None:
    """Return a batch of a tenant's vector store; None: that vector store of that tenant has none of that id. Blocks;
    raises sqlite3.Error if the catalog fails."""
    row = db.execute(
        "SELECT id, vector_store, tenant, created_at, files FROM file_batches "
        "WHERE tenant = ? AND vector_store = ? AND id = ?",
        (tenant, store_id, batch_id),
    ).fetchone()
    return None if row is None else FileBatch(row[0], row[1], row[2], row[3], tuple(dict.fromkeys(json.loads(row[4]))))


def _read_store(row: Sequence[Any]) -> StoredVectorStore:
    id_, tenant, name, description, metadata, created_at, last_active_at, expires_days = row
    return StoredVectorStore(
        id_, tenant, name, description, json.loads(metadata), created_at, last_active_at, expires_days
    )
