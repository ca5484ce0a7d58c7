"""Texts and chunks of versions: statements for the catalog's thread."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any, Final

from common.sqlite_files import insert_rows
from retrieval.catalog.records import Chunk, FoundChunk
from retrieval.parsing.base import ParsedDocument

_CHUNK: Final = "c.version, c.ordinal, c.start, c.end, c.page, c.headings, c.text"


def save_parsed(db: sqlite3.Connection, version: int, parsed: ParsedDocument) -> bool:
    """Store the text and the chunks of a version in the state `parsing`, and set its state to `embedding`. Replaces
    what an earlier try stored. Returns False, and stores nothing, if the version is in another state (replaced, deleted
    or cancelled). Call within a transaction (`CatalogDatabase.write`). Blocks; raises sqlite3.Error if the catalog
    fails."""
    changed = db.execute(
        "UPDATE versions SET state = 'embedding', media_type = ?, chunks = ? WHERE number = ? AND state = 'parsing'",
        (parsed.media_type, len(parsed.chunks), version),
    )
    if not changed.rowcount:
        return False
    insert_rows(db, "INSERT OR REPLACE INTO texts (version, text)", [(version, parsed.text.encode())])
    db.execute("DELETE FROM chunks WHERE version = ?", (version,))
    db.executemany(
        "INSERT INTO chunks (version, ordinal, start, end, page, headings, text) VALUES (?, ?, ?, ?, ?, ?, ?)",
        (
            (version, ordinal, each.start, each.end, each.page, json.dumps(each.headings), each.text)
            for ordinal, each in enumerate(parsed.chunks)
        ),
    )
    return True


def resume_embedding(db: sqlite3.Connection, version: int) -> int | None:
    """Set the state of a claimed version to `embedding` if its chunks are known, and return their number, perhaps 0.
    They are known if an earlier try has stored them, or if the version has a twin (see `find_twin`), whose text and
    chunks are then copied. None: nothing changed, because the version must be parsed, or is not in the state `parsing`
    any more. Call within a transaction (`CatalogDatabase.write`). Blocks; raises sqlite3.Error if the catalog fails."""
    row = db.execute(
        "UPDATE versions SET state = 'embedding' WHERE number = ? AND state = 'parsing' AND chunks IS NOT NULL "
        "RETURNING chunks",
        (version,),
    ).fetchone()
    if row is not None:
        return int(row[0])
    twin = find_twin(db, version)
    return None if twin is None else _copy_parsed(db, version, twin)


def find_twin(db: sqlite3.Connection, version: int) -> int | None:
    """Return a visible version of the same tenant that was made of the same original, file name, type and chunking. Its
    chunks are the same, unless another version of Roundhouse cut them. As a rule, it is the version that this one
    replaces with other metadata. None: there is none. Blocks; raises sqlite3.Error if the catalog fails."""
    row = db.execute(
        "SELECT t.number FROM versions v JOIN versions t ON t.sha256 = v.sha256 AND t.tenant = v.tenant "
        "AND t.number != v.number AND t.state = 'ready' AND t.filename IS v.filename "
        "AND t.declared_type IS v.declared_type AND t.max_tokens = v.max_tokens "
        "AND t.overlap_tokens = v.overlap_tokens WHERE v.number = ? ORDER BY t.number DESC LIMIT 1",
        (version,),
    ).fetchone()
    return None if row is None else int(row[0])


def _copy_parsed(db: sqlite3.Connection, version: int, twin: int) -> int | None:
    """Copy a twin's text and chunks to a claimed version, and set its state to `embedding`. Return the number of its
    chunks; None: the version is garbage or deleted."""
    row = db.execute(
        "UPDATE versions SET state = 'embedding', (media_type, chunks) = "
        "(SELECT t.media_type, t.chunks FROM versions t WHERE t.number = ?) "
        "WHERE number = ? AND state = 'parsing' RETURNING chunks",
        (twin, version),
    ).fetchone()
    if row is None:
        return None
    db.execute(
        "INSERT OR REPLACE INTO texts (version, text) SELECT ?, text FROM texts WHERE version = ?", (version, twin)
    )
    db.execute(
        "INSERT INTO chunks (version, ordinal, start, end, page, headings, text) "
        "SELECT ?, ordinal, start, end, page, headings, text FROM chunks WHERE version = ?",
        (version, twin),
    )
    return int(row[0])


def read_chunks(db: sqlite3.Connection, version: int, *, first: int, limit: int) -> list[Chunk]:
    """Return up to `limit` chunks of a version by ordinal, from the ordinal `first` (which counts from 0) on. Empty
    after the last one, and for a version that is unknown or not parsed. Blocks; raises sqlite3.Error if the catalog
    fails."""
    rows = db.execute(
        f"SELECT {_CHUNK} FROM chunks c WHERE c.version = ? AND c.ordinal >= ? ORDER BY c.ordinal LIMIT ?",
        (version, first, limit),
    )
    return [_read_chunk(row) for row in rows]


def read_text(db: sqlite3.Connection, version: int) -> bytes | None:
    """Return a version's whole text in UTF-8; None: the version is not parsed, or the catalog does not have it. Blocks;
    raises sqlite3.Error if the catalog fails."""
    row = db.execute("SELECT text FROM texts WHERE version = ?", (version,)).fetchone()
    return None if row is None else bytes(row[0])


def text_size(db: sqlite3.Connection, version: int) -> int:
    """Return the size of a version's text in bytes of UTF-8; 0 where it is not parsed yet, or is deleted. Blocks;
    raises sqlite3.Error if the catalog fails."""
    row = db.execute("SELECT length(text) FROM texts WHERE version = ?", (version,)).fetchone()
    return 0 if row is None else int(row[0])


def find_visible(
    db: sqlite3.Connection, tenant: str, places: Iterable[tuple[int, int]]
) -> dict[tuple[int, int], FoundChunk]:
    """Return a tenant's chunks by `(version, ordinal)`, for those pairs in `places` whose version is visible now. Pairs
    of other tenants, of versions that are not visible, and without a chunk are missing in the answer. Blocks; raises
    sqlite3.Error if the catalog fails."""
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
