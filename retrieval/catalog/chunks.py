"""Texts and chunks of versions: statements for the catalog's thread."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any, Final

from retrieval.catalog.records import Chunk, FoundChunk
from retrieval.parsing.base import ParsedDocument

_CHUNK: Final = "c.version, c.ordinal, c.start, c.end, c.page, c.headings, c.text"


def save_parsed(db: sqlite3.Connection, version: int, parsed: ParsedDocument) -> bool:
    """Store the text and the chunks of a version, and set its state to `embedding`. False: the version is garbage or
    deleted, and nothing is stored. Replaces what an earlier try stored."""
    changed = db.execute(
        "UPDATE versions SET state = 'embedding', media_type = ?, chunks = ? WHERE number = ? AND state = 'parsing'",
        (parsed.media_type, len(parsed.chunks), version),
    )
    if not changed.rowcount:
        return False
    db.execute("INSERT OR REPLACE INTO texts (version, text) VALUES (?, ?)", (version, parsed.text.encode()))
    db.execute("DELETE FROM chunks WHERE version = ?", (version,))
    db.executemany(
        "INSERT INTO chunks (version, ordinal, start, end, page, headings, text) VALUES (?, ?, ?, ?, ?, ?, ?)",
        (
            (version, ordinal, each.start, each.end, each.page, json.dumps(each.headings), each.text)
            for ordinal, each in enumerate(parsed.chunks)
        ),
    )
    return True


def resume_embedding(db: sqlite3.Connection, version: int) -> bool:
    """Set the state of a claimed version to `embedding` where an earlier try has stored its chunks. False: it is to be
    parsed."""
    changed = db.execute(
        "UPDATE versions SET state = 'embedding' WHERE number = ? AND state = 'parsing' AND chunks IS NOT NULL",
        (version,),
    )
    return changed.rowcount > 0


def read_chunks(db: sqlite3.Connection, version: int, *, first: int, limit: int) -> list[Chunk]:
    """Return up to `limit` chunks of a version in order, from the ordinal `first` on."""
    rows = db.execute(
        f"SELECT {_CHUNK} FROM chunks c WHERE c.version = ? AND c.ordinal >= ? ORDER BY c.ordinal LIMIT ?",
        (version, first, limit),
    )
    return [_read_chunk(row) for row in rows]


def read_text(db: sqlite3.Connection, version: int) -> bytes | None:
    """Return a version's text in UTF-8; None: it has none yet, or is deleted."""
    row = db.execute("SELECT text FROM texts WHERE version = ?", (version,)).fetchone()
    return None if row is None else bytes(row[0])


def text_size(db: sqlite3.Connection, version: int) -> int:
    """Return the size of a version's text in bytes; 0 where it has none."""
    row = db.execute("SELECT length(text) FROM texts WHERE version = ?", (version,)).fetchone()
    return 0 if row is None else int(row[0])


def find_visible(
    db: sqlite3.Connection, tenant: str, places: Iterable[tuple[int, int]]
) -> dict[tuple[int, int], FoundChunk]:
    """Return the chunks of a tenant at (version, ordinal), by these; those whose version is not visible are missing."""
    found = {}
    for place in places:
        row = db.execute(
            f"SELECT {_CHUNK}, d.id, d.space, v.filename, v.metadata FROM chunks c "
            "JOIN versions v ON v.number = c.version JOIN documents d ON d.live = v.number "
            "WHERE c.version = ? AND c.ordinal = ? AND d.tenant = ?",
            (*place, tenant),
        ).fetchone()
        if row is not None:
            *chunk, document_id, space, filename, metadata = row
            found[place] = FoundChunk(_read_chunk(chunk), document_id, space, filename, json.loads(metadata))
    return found


def _read_chunk(row: Sequence[Any]) -> Chunk:
    version, ordinal, start, end, page, headings, text = row
    return Chunk(version, ordinal, start, end, page, tuple(json.loads(headings)), text)
