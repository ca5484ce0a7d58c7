"""Collections of the vector store, and which versions are in which: statements for the catalog's thread."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from typing import Any, Literal

from retrieval.catalog.records import Collection
from retrieval.vector_store.base import CollectionSpec
from retrieval.vector_store.tokenizer import dump_options, load_options


def find_collection(db: sqlite3.Connection, state: Literal["active", "building"]) -> Collection | None:
    """Return the one collection in that state; None: there is none. Callers see to it that there is never a second.
    Blocks; raises sqlite3.Error if the catalog fails."""
    row = db.execute(
        "SELECT number, name, model, dimension, is_normalized, state, bm25 FROM collections WHERE state = ?", (state,)
    ).fetchone()
    return None if row is None else _read_collection(row)


def add_collection(
    db: sqlite3.Connection,
    spec: CollectionSpec,
    *,
    model: str | None,
    is_normalized: bool | None,
    state: Literal["active", "building"],
) -> Collection:
    """Store a new collection in the catalog, with nothing indexed in it, and return it. The vector store is not asked.
    The caller makes sure that no other collection has `state`. `model`, `is_normalized`: see `Collection`; both None
    for a collection of sparse vectors alone.

    Raises sqlite3.IntegrityError where one has that name. Call within a transaction (`CatalogDatabase.write`). Blocks;
    raises sqlite3.Error if the catalog fails otherwise.
    """
    cursor = db.execute(
        "INSERT INTO collections (name, model, dimension, is_normalized, state, bm25) VALUES (?, ?, ?, ?, ?, ?)",
        (spec.name, model, spec.dimension, is_normalized, state, json.dumps(dump_options(spec.bm25))),
    )
    assert cursor.lastrowid is not None
    return Collection(cursor.lastrowid, spec.name, model, spec.dimension, is_normalized, state, spec.bm25)


def activate_collection(db: sqlite3.Connection, number: int) -> Collection | None:
    """Make the collection `number`, which must be the building one, the active one. Return the collection that was
    active before; None: there was none. The catalog forgets it; the caller deletes it in the vector store. Call within
    a transaction (`CatalogDatabase.write`). Blocks.

    Raises:
        LookupError: a visible version is missing in the collection; nothing is changed.
        sqlite3.Error: the catalog fails.
    """
    if list_missing(db, number, 1):
        raise LookupError("visible versions are missing")
    active = find_collection(db, "active")
    if active is not None:
        forget_collection(db, active.number)
    db.execute("UPDATE collections SET state = 'active' WHERE number = ?", (number,))
    return active


def forget_collection(db: sqlite3.Connection, number: int) -> None:
    """Remove a collection from the catalog, with the notes of what is in it. Does nothing for an unknown number. The
    caller deletes the collection in the vector store. Call within a transaction (`CatalogDatabase.write`). Blocks;
    raises sqlite3.Error if the catalog fails."""
    db.execute("DELETE FROM collections WHERE number = ?", (number,))


def renew_collection(db: sqlite3.Connection, collection: Collection) -> Collection:
    """Give a collection a new number, with nothing indexed in it, because the vector store has lost its points. Return
    the collection with that number. Call within a transaction (`CatalogDatabase.write`). Blocks; raises sqlite3.Error
    if the catalog fails."""
    forget_collection(db, collection.number)
    return add_collection(
        db,
        collection.spec,
        model=collection.model,
        is_normalized=collection.is_normalized,
        state=collection.state,
    )


def has_visible(db: sqlite3.Connection) -> bool:
    """Return whether any document of any tenant has a visible version. Blocks; raises sqlite3.Error if the catalog
    fails."""
    return db.execute("SELECT 1 FROM documents WHERE live IS NOT NULL LIMIT 1").fetchone() is not None


def list_missing(db: sqlite3.Connection, number: int, limit: int, after: int = 0) -> list[int]:
    """Return the numbers of up to `limit` visible versions above `after` that are not noted as being in the collection,
    oldest first. A document whose version is not there is left out: nothing could ever be written of it. Blocks; raises
    sqlite3.Error if the catalog fails."""
    rows = db.execute(
        "SELECT live FROM documents WHERE live > ? AND NOT EXISTS "
        "(SELECT 1 FROM indexed i WHERE i.collection = ? AND i.version = live) "
        "AND EXISTS (SELECT 1 FROM versions v WHERE v.number = live) ORDER BY live LIMIT ?",
        (after, number, limit),
    )
    return [row[0] for row in rows]


def count_missing(db: sqlite3.Connection, number: int) -> int:
    """Return how many visible versions of all tenants are not noted as being in the collection; all, for an unknown
    one. Blocks; raises sqlite3.Error if the catalog fails."""
    [visible] = db.execute("SELECT count(*) FROM documents WHERE live IS NOT NULL").fetchone()
    [present] = db.execute(
        "SELECT count(*) FROM documents d JOIN indexed i ON i.version = d.live WHERE i.collection = ?", (number,)
    ).fetchone()
    return int(visible) - int(present)


def note_indexed(db: sqlite3.Connection, number: int, version: int) -> None:
    """Note that all points of the version `version` are in the collection `number` (`Collection.number`).

    Does nothing for a deleted version, one that is noted already, or a collection that the catalog has not. Call within
    a transaction (`CatalogDatabase.write`). Blocks; raises sqlite3.Error if the catalog fails."""
    db.execute(
        "INSERT OR IGNORE INTO indexed (collection, version) SELECT c.number, v.number FROM collections c, versions v "
        "WHERE c.number = ? AND v.number = ?",
        (number, version),
    )


def _read_collection(row: Sequence[Any]) -> Collection:
    number, name, model, dimension, is_normalized, state, bm25 = row
    options = load_options(None if bm25 is None else json.loads(bm25))
    is_unit = None if is_normalized is None else bool(is_normalized)
    return Collection(number, name, model, dimension, is_unit, state, options)
