"""Documents and their versions: statements for the catalog's thread. `now` is Unix time in seconds.

A version is visible when it is its document's `live` one. The states change so:

    queued -> parsing -> embedding -> ready -> garbage -> (deleted)
       ^---------+----------+   |
                 +----------+---+-> failed -> garbage
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from retrieval.catalog.records import DocumentKey, NewVersion, StoredDocument, TenantTotals, Version
from retrieval.parsing.base import ChunkingOptions

_COLUMNS: Final = (
    "number, tenant, space, state, sha256, bytes, filename, declared_type, media_type, metadata, max_tokens, "
    "overlap_tokens, accepted_at, chunks, attempts, retry_at, error_code, error_message"
)
_VERSION: Final = ", ".join(f"v.{name}" for name in _COLUMNS.split(", "))
_DOCUMENT: Final = (
    f"SELECT d.number, d.tenant, d.space, d.id, d.created_at, d.live, l.chunks, {_VERSION} FROM documents d "
    "JOIN versions v ON v.number = d.newest LEFT JOIN versions l ON l.number = d.live"
)


CANCELLED: Final = "cancelled"
"""Error code of a version that a client has stopped."""


@dataclass(frozen=True, slots=True)
class SpaceTotals:
    """What a space holds."""

    states: Mapping[str, int]
    """Documents by the state of their newest version, or `cancelled`; states without any are missing."""
    text_bytes: int
    """Of the visible versions' texts."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """What became of a version that a client sent."""

    document: StoredDocument
    is_new: bool
    """False: the document has that version already, and nothing changed."""


def accept_version(db: sqlite3.Connection, new: NewVersion, now: float) -> Accepted:
    """Queue a version, as its document's newest one. A version of the document that waits or is being made becomes
    garbage. A version with the same fingerprint as the newest one changes nothing, but a failed one is queued again."""
    found = find_document(db, new.key)
    if found is not None and _fingerprint(db, found.newest.number) == new.fingerprint:
        if found.newest.state != "failed":
            return Accepted(found, is_new=False)
        db.execute(
            "UPDATE versions SET state = 'queued', attempts = 0, retry_at = NULL, error_code = NULL, "
            "error_message = NULL WHERE number = ?",
            (found.newest.number,),
        )
        return Accepted(_existing(db, new.key), is_new=True)
    if found is None:
        values = (new.key.tenant, new.key.space, new.key.id, now)
        cursor = db.execute(
            "INSERT INTO documents (tenant, space, id, created_at, newest) VALUES (?, ?, ?, ?, 0)", values
        )
        document = cursor.lastrowid
    else:
        document = found.number
        if found.newest.number != found.live:
            _make_garbage(db, [found.newest.number])
    version = _insert_version(db, document, new, now)
    db.execute("UPDATE documents SET newest = ? WHERE number = ?", (version, document))
    return Accepted(_existing(db, new.key), is_new=True)


def find_document(db: sqlite3.Connection, key: DocumentKey) -> StoredDocument | None:
    """Return the document; None: there is none of that key."""
    row = db.execute(
        f"{_DOCUMENT} WHERE d.tenant = ? AND d.space = ? AND d.id = ?", (key.tenant, key.space, key.id)
    ).fetchone()
    return None if row is None else _read_document(row)


def list_documents(
    db: sqlite3.Connection, tenant: str, space: str, *, after: int | None, is_ascending: bool
) -> Iterable[StoredDocument]:
    """Yield the documents of a space by creation, those after the document with the number `after` first. Read it
    within the thread, as far as needed."""
    comparison, direction = (">", "ASC") if is_ascending else ("<", "DESC")
    bound = (-1 if is_ascending else 2**62) if after is None else after
    rows = db.execute(
        f"{_DOCUMENT} WHERE d.tenant = ? AND d.space = ? AND d.number {comparison} ? ORDER BY d.number {direction}",
        (tenant, space, bound),
    )
    return (_read_document(row) for row in rows)


def delete_document(db: sqlite3.Connection, key: DocumentKey) -> bool:
    """Delete a document: it is invisible at once, and its versions become garbage. False: there is none of that key."""
    row = db.execute(
        "DELETE FROM documents WHERE tenant = ? AND space = ? AND id = ? RETURNING number",
        (key.tenant, key.space, key.id),
    ).fetchone()
    if row is None:
        return False
    db.execute("UPDATE versions SET state = 'garbage', document = NULL WHERE document = ?", (row[0],))
    return True


def delete_documents(db: sqlite3.Connection, tenant: str, space: str | None = None) -> int:
    """Delete all documents of a tenant, or of one space of it, as `delete_document` does. Return how many there
    were."""
    condition, values = ("tenant = ?", [tenant]) if space is None else ("tenant = ? AND space = ?", [tenant, space])
    count = db.execute(f"DELETE FROM documents WHERE {condition}", values).rowcount
    db.execute(f"UPDATE versions SET state = 'garbage', document = NULL WHERE {condition}", values)
    return count


def cancel_versions(db: sqlite3.Connection, keys: Iterable[DocumentKey]) -> None:
    """Stop making the newest versions of documents: they fail with the code `cancelled`. Those that are ready or failed
    stay as they are."""
    for key in keys:
        db.execute(
            "UPDATE versions SET state = 'failed', retry_at = NULL, error_code = ?, error_message = ? "
            "WHERE state IN ('queued', 'parsing', 'embedding') AND number = "
            "(SELECT newest FROM documents WHERE tenant = ? AND space = ? AND id = ?)",
            (CANCELLED, "The batch was cancelled.", key.tenant, key.space, key.id),
        )


def count_space(db: sqlite3.Connection, tenant: str, space: str) -> SpaceTotals:
    """Return the number of documents of a space by the state of their newest version, and the size of their texts."""
    rows = db.execute(
        "SELECT CASE WHEN v.error_code = ? THEN ? ELSE v.state END, count(*) FROM documents d "
        "JOIN versions v ON v.number = d.newest WHERE d.tenant = ? AND d.space = ? GROUP BY 1",
        (CANCELLED, CANCELLED, tenant, space),
    )
    states = dict(rows)
    [size] = db.execute(
        "SELECT coalesce(sum(length(t.text)), 0) FROM documents d JOIN texts t ON t.version = d.live "
        "WHERE d.tenant = ? AND d.space = ?",
        (tenant, space),
    ).fetchone()
    return SpaceTotals(states, int(size))


def list_tenants(db: sqlite3.Connection, tenant: str | None = None) -> list[TenantTotals]:
    """Return what each tenant has stored, by name; of `tenant` alone where it is given. A tenant without documents is
    missing."""
    condition, values = ("", ()) if tenant is None else ("WHERE d.tenant = ?", (tenant,))
    rows = db.execute(
        "SELECT d.tenant, count(*), coalesce(sum(l.chunks), 0), sum(v.bytes) FROM documents d "
        "JOIN versions v ON v.number = d.newest LEFT JOIN versions l ON l.number = d.live "
        f"{condition} GROUP BY d.tenant ORDER BY d.tenant",
        values,
    )
    return [TenantTotals(*row) for row in rows]


def claim_version(db: sqlite3.Connection, now: float, busy_tenants: Sequence[str]) -> Version | None:
    """Take the version that is due first, and set its state to `parsing`. None: none is due.

    Tenants in `busy_tenants` come after all others, so that a tenant with many documents delays nobody else's.
    """
    marks = ", ".join("?" * len(busy_tenants))
    row = db.execute(
        f"SELECT {_COLUMNS} FROM versions WHERE state = 'queued' AND coalesce(retry_at, 0) <= ? "
        f"ORDER BY tenant IN ({marks}), number LIMIT 1",
        (now, *busy_tenants),
    ).fetchone()
    if row is None:
        return None
    db.execute("UPDATE versions SET state = 'parsing' WHERE number = ?", (row[0],))
    return replace(_read_version(row), state="parsing")


def next_retry_at(db: sqlite3.Connection) -> float | None:
    """Return the Unix time in seconds when the next queued version is due (0: now); None: none is queued."""
    row = db.execute("SELECT min(coalesce(retry_at, 0)) FROM versions WHERE state = 'queued'").fetchone()
    return None if row[0] is None else float(row[0])


def find_state(db: sqlite3.Connection, version: int) -> str | None:
    """Return a version's state; None: it is deleted."""
    row = db.execute("SELECT state FROM versions WHERE number = ?", (version,)).fetchone()
    return None if row is None else str(row[0])


def find_key(db: sqlite3.Connection, version: int) -> DocumentKey | None:
    """Return the document of a version; None: the version is garbage or deleted."""
    row = db.execute(
        "SELECT d.tenant, d.space, d.id FROM versions v JOIN documents d ON d.number = v.document WHERE v.number = ?",
        (version,),
    ).fetchone()
    return None if row is None else DocumentKey(*row)


def find_version(db: sqlite3.Connection, version: int) -> Version | None:
    """Return a version; None: it is deleted."""
    row = db.execute(f"SELECT {_COLUMNS} FROM versions WHERE number = ?", (version,)).fetchone()
    return None if row is None else _read_version(row)


def retry_version(db: sqlite3.Connection, version: int, *, at: float, code: str, message: str) -> None:
    """Queue a version again after a failed try, for the Unix time `at`. Does nothing to garbage."""
    db.execute(
        "UPDATE versions SET state = 'queued', attempts = attempts + 1, retry_at = ?, error_code = ?, "
        "error_message = ? WHERE number = ? AND state IN ('parsing', 'embedding')",
        (at, code, message, version),
    )


def fail_version(db: sqlite3.Connection, version: int, *, code: str, message: str) -> None:
    """Park a version: it is not tried again until a client sends it again. Does nothing to garbage."""
    db.execute(
        "UPDATE versions SET state = 'failed', attempts = attempts + 1, retry_at = NULL, error_code = ?, "
        "error_message = ? WHERE number = ? AND state IN ('parsing', 'embedding')",
        (code, message, version),
    )


def withdraw_version(db: sqlite3.Connection, key: DocumentKey) -> None:
    """Undo the newest version of a document, if it failed: the visible one becomes the newest again; a document without
    one is deleted."""
    document = find_document(db, key)
    if document is None or document.newest.state != "failed":
        return
    if document.live is None:
        delete_document(db, key)
        return
    _make_garbage(db, [document.newest.number])
    db.execute("UPDATE documents SET newest = live WHERE number = ?", (document.number,))


def publish_version(db: sqlite3.Connection, version: int, collection: int) -> bool:
    """Make a version visible, whose points are all in the collection; the one visible before becomes garbage.

    False: it was replaced or deleted meanwhile, and stays garbage.
    """
    row = db.execute(
        "SELECT d.number, d.live FROM versions v JOIN documents d ON d.number = v.document "
        "WHERE v.number = ? AND v.state = 'embedding' AND d.newest = v.number",
        (version,),
    ).fetchone()
    if row is None:
        return False
    document, live = row
    db.execute(
        "UPDATE versions SET state = 'ready', error_code = NULL, error_message = NULL, retry_at = NULL "
        "WHERE number = ?",
        (version,),
    )
    db.execute("UPDATE documents SET live = ? WHERE number = ?", (version, document))
    db.execute("INSERT OR IGNORE INTO indexed (collection, version) VALUES (?, ?)", (collection, version))
    if live is not None:
        _make_garbage(db, [live])
    return True


def list_hidden(db: sqlite3.Connection, tenant: str) -> frozenset[int]:
    """Return the tenant's versions that may have points and are not visible."""
    rows = db.execute(
        "SELECT number FROM versions WHERE tenant = ? AND state IN ('embedding', 'garbage') "
        "UNION ALL SELECT number FROM versions WHERE tenant = ? AND state IN ('queued', 'failed') AND chunks > 0",
        (tenant, tenant),
    )
    return frozenset(row[0] for row in rows)


def list_garbage(db: sqlite3.Connection, limit: int) -> list[int]:
    """Return up to `limit` versions whose points are to be removed."""
    return [row[0] for row in db.execute("SELECT number FROM versions WHERE state = 'garbage' LIMIT ?", (limit,))]


def remove_garbage(db: sqlite3.Connection, versions: Sequence[int]) -> list[str]:
    """Delete garbage versions whose points are removed. Return the hashes of originals that no version needs now."""
    unused = []
    for version in versions:
        row = db.execute(
            "DELETE FROM versions WHERE number = ? AND state = 'garbage' RETURNING sha256", (version,)
        ).fetchone()
        if row is not None and not is_original_used(db, row[0]):
            unused.append(row[0])
    return unused


def is_original_used(db: sqlite3.Connection, sha256: str) -> bool:
    """Whether a version or a file needs the original of that hash."""
    query = "SELECT 1 FROM versions WHERE sha256 = ?1 UNION ALL SELECT 1 FROM files WHERE sha256 = ?1 LIMIT 1"
    return db.execute(query, (sha256,)).fetchone() is not None


def restart_versions(db: sqlite3.Connection) -> int:
    """Queue versions that an earlier process was making. Return how many. Call once, at start."""
    return db.execute("UPDATE versions SET state = 'queued' WHERE state IN ('parsing', 'embedding')").rowcount


def count_waiting(db: sqlite3.Connection) -> int:
    """Return the number of queued versions."""
    [count] = db.execute("SELECT count(*) FROM versions WHERE state = 'queued'").fetchone()
    return int(count)


def oldest_accepted_at(db: sqlite3.Connection) -> float | None:
    """Return the Unix time in seconds when the oldest version was accepted that is neither visible nor failed; None:
    there is none."""
    [accepted_at] = db.execute(
        "SELECT min(accepted_at) FROM versions WHERE state IN ('queued', 'parsing', 'embedding')"
    ).fetchone()
    return None if accepted_at is None else float(accepted_at)


def count_states(db: sqlite3.Connection) -> dict[str, int]:
    """Return the number of versions by state; states without any are missing."""
    return dict(db.execute("SELECT state, count(*) FROM versions GROUP BY state"))


def _insert_version(db: sqlite3.Connection, document: int | None, new: NewVersion, now: float) -> int:
    cursor = db.execute(
        "INSERT INTO versions (document, tenant, space, state, fingerprint, sha256, bytes, filename, declared_type, "
        "metadata, max_tokens, overlap_tokens, accepted_at) VALUES (?, ?, ?, 'queued', ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            document,
            new.key.tenant,
            new.key.space,
            new.fingerprint,
            new.sha256,
            new.bytes,
            new.filename,
            new.declared_type,
            json.dumps(new.metadata),
            new.chunking.max_tokens,
            new.chunking.overlap_tokens,
            now,
        ),
    )
    assert cursor.lastrowid is not None
    return cursor.lastrowid


def _make_garbage(db: sqlite3.Connection, versions: Iterable[int]) -> None:
    db.executemany(
        "UPDATE versions SET state = 'garbage', document = NULL WHERE number = ?", [(each,) for each in versions]
    )


def _fingerprint(db: sqlite3.Connection, version: int) -> str:
    [fingerprint] = db.execute("SELECT fingerprint FROM versions WHERE number = ?", (version,)).fetchone()
    return str(fingerprint)


def _existing(db: sqlite3.Connection, key: DocumentKey) -> StoredDocument:
    document = find_document(db, key)
    assert document is not None
    return document


def _read_document(row: Sequence[Any]) -> StoredDocument:
    number, tenant, space, id_, created_at, live, live_chunks, *version = row
    key = DocumentKey(tenant, space, id_)
    return StoredDocument(number, key, created_at, _read_version(version), live, live_chunks)


def _read_version(row: Iterable[Any]) -> Version:
    values = dict(zip(_COLUMNS.split(", "), row, strict=True))
    chunking = ChunkingOptions(values.pop("max_tokens"), values.pop("overlap_tokens"))
    metadata = json.loads(values.pop("metadata"))
    return Version(chunking=chunking, metadata=metadata, **values)
