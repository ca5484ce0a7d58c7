"""Collections of the vector store, and which versions are in which: statements for the catalog's thread."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any, Literal

from retrieval.catalog.records import Collection


def find_collection(db: sqlite3.Connection, state: Literal["active", "building"]) -> Collection | None:
    """Return the collection in that state; None: there is none. There is never more than one."""
    row = db.execute(
        "SELECT number, name, model, dimension, is_normalized, state FROM collections WHERE state = ?", (state,)
    ).fetchone()
    return None if row is None else _read_collection(row)


def add_collection(
    db: sqlite3.Connection,
    *,
    name: str,
    model: str | None,
    dimension: int | None,
    is_normalized: bool | None,
    state: Literal["active", "building"],
) -> Collection:
    """Note a new collection, and return it. Raises sqlite3.IntegrityError where one has that name."""
    cursor = db.execute(
        "INSERT INTO collections (name, model, dimension, is_normalized, state) VALUES (?, ?, ?, ?, ?)",
        (name, model, dimension, is_normalized, state),
    )
    assert cursor.lastrowid is not None
    return Collection(cursor.lastrowid, name, model, dimension, is_normalized, state)


def activate_collection(db: sqlite3.Connection, number: int) -> Collection | None:
    """Make the building collection the active one, unless a visible version is missing in it. Return the collection
    that was active before and is forgotten now; None: there was none.

    Raises:
        LookupError: a visible version is missing; nothing is changed.
    """
    if list_missing(db, number, 1):
        raise LookupError("visible versions are missing")
    active = find_collection(db, "active")
    if active is not None:
        forget_collection(db, active.number)
    db.execute("UPDATE collections SET state = 'active' WHERE number = ?", (number,))
    return active


def forget_collection(db: sqlite3.Connection, number: int) -> None:
    """Remove a collection and what is noted as being in it."""
    db.execute("DELETE FROM collections WHERE number = ?", (number,))


def forget_content(db: sqlite3.Connection, number: int) -> None:
    """Note that a collection is empty, because the vector store has lost it."""
    db.execute("DELETE FROM indexed WHERE collection = ?", (number,))


def list_missing(db: sqlite3.Connection, number: int, limit: int) -> list[int]:
    """Return up to `limit` visible versions that are not in the collection, the oldest first."""
    rows = db.execute(
        "SELECT v.number FROM documents d JOIN versions v ON v.number = d.live WHERE NOT EXISTS "
        "(SELECT 1 FROM indexed i WHERE i.collection = ? AND i.version = v.number) ORDER BY v.number LIMIT ?",
        (number, limit),
    )
    return [row[0] for row in rows]


def count_missing(db: sqlite3.Connection, number: int) -> int:
    """Return how many visible versions are not in the collection."""
    [visible] = db.execute("SELECT count(*) FROM documents WHERE live IS NOT NULL").fetchone()
    [present] = db.execute(
        "SELECT count(*) FROM documents d JOIN indexed i ON i.version = d.live WHERE i.collection = ?", (number,)
    ).fetchone()
    return int(visible) - int(present)


def note_indexed(db: sqlite3.Connection, number: int, version: int) -> None:
    """Note that all points of a version are in the collection. Does nothing for a deleted version."""
    db.execute(
        "INSERT OR IGNORE INTO indexed (collection, version) SELECT ?, number FROM versions WHERE number = ?",
        (number, version),
    )


def _read_collection(row: Sequence[Any]) -> Collection:
    number, name, model, dimension, is_normalized, state = row
    return Collection(number, name, model, dimension, None if is_normalized is None else bool(is_normalized), state)
