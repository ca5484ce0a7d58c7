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
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from retrieval.catalog.conditions import SqlCondition
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
    """How much one space of a tenant holds: its documents by state, and the size of their texts."""

    states: Mapping[str, int]
    """Number of documents by the state of their newest version; `cancelled` for one that failed with that code. States
    without any document are missing."""
    text_bytes: int
    """Size of the visible versions' texts in UTF-8."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """What `accept_version` did with a version that a client sent."""

    document: StoredDocument
    is_new: bool
    """Whether a version was queued, or a failed one queued again. False: the document's newest version is equal and not
    failed; nothing changed."""


def accept_version(db: sqlite3.Connection, new: NewVersion, now: float) -> Accepted:
    """Queue a version as its document's newest one, creating the document where there is none. Return the document, and
    whether anything changed.

    The newest version until then becomes garbage unless it is visible; a visible one stays so until `publish_version`.
    If the newest version has the same fingerprint, no version is made. If that version failed, it is queued again
    without its error and its count of tries, but keeps its number and `accepted_at`; otherwise nothing changes. `now`:
    Unix time in seconds. Call within a transaction (`CatalogDatabase.write`). Blocks; raises sqlite3.Error if the
    catalog fails.
    """
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
    """Return the document with its newest version; None: there is none of that key. Blocks; raises sqlite3.Error if the
    catalog fails."""
    row = db.execute(
        f"{_DOCUMENT} WHERE d.tenant = ? AND d.space = ? AND d.id = ?", (key.tenant, key.space, key.id)
    ).fetchone()
    return None if row is None else _read_document(row)


def scan_documents(
    db: sqlite3.Connection,
    tenant: str,
    space: str,
    *,
    after: int | None,
    is_ascending: bool,
    where: SqlCondition,
    most: int,
) -> tuple[list[StoredDocument], int | None]:
    """Look at the next documents of a space, `most` at most, in the order of creation: oldest first if `is_ascending`,
    else newest first. Return those for which `where` holds, and the `after` of the next call; None: there are no
    further documents. The list may be empty before the end.

    `after`: number of the document behind which to begin; None: begin with the first. `where`: a condition over the
    newest versions, which its SQL calls `v`. `most`: at least 1. Blocks; raises sqlite3.Error if the catalog fails.
    """
    comparison, direction = (">", "ASC") if is_ascending else ("<", "DESC")
    bound = (-1 if is_ascending else 2**62) if after is None else after
    row = db.execute(
        f"SELECT number FROM documents WHERE tenant = ? AND space = ? AND number {comparison} ? "
        f"ORDER BY number {direction} LIMIT 1 OFFSET ?",
        (tenant, space, bound, most - 1),
    ).fetchone()
    last = None if row is None else int(row[0])
    first_number, last_number = (bound, 2**62 if last is None else last)
    if not is_ascending:
        first_number, last_number = (-1 if last is None else last), bound
    rows = db.execute(
        f"{_DOCUMENT} WHERE d.tenant = ? AND d.space = ? AND d.number BETWEEN ? AND ? AND d.number != ? "
        f"AND ({where.sql}) ORDER BY d.number {direction}",
        (tenant, space, first_number, last_number, bound, *where.values),
    )
    return [_read_document(row) for row in rows], last


def delete_document(db: sqlite3.Connection, key: DocumentKey) -> bool:
    """Delete a document: with the commit no search finds it, and its versions become garbage for the garbage collector.
    False: there is none of that key. Call within a transaction (`CatalogDatabase.write`). Blocks; raises sqlite3.Error
    if the catalog fails."""
    row = db.execute(
        "DELETE FROM documents WHERE tenant = ? AND space = ? AND id = ? RETURNING number",
        (key.tenant, key.space, key.id),
    ).fetchone()
    if row is None:
        return False
    db.execute("UPDATE versions SET state = 'garbage', document = NULL WHERE document = ?", (row[0],))
    return True


def delete_documents(db: sqlite3.Connection, tenant: str, space: str | None = None) -> int:
    """Delete all documents of a tenant, in `space`, or in all spaces if it is None: with the commit no search finds
    them, and their versions become garbage. `space` "" means the documents of no vector store. Return how many
    documents there were. Call within a transaction (`CatalogDatabase.write`). Blocks; raises sqlite3.Error if the
    catalog fails."""
    condition, values = ("tenant = ?", [tenant]) if space is None else ("tenant = ? AND space = ?", [tenant, space])
    of_documents = f"document IN (SELECT number FROM documents WHERE {condition})"
    db.execute(f"UPDATE versions SET state = 'garbage', document = NULL WHERE {of_documents}", values)
    return db.execute(f"DELETE FROM documents WHERE {condition}", values).rowcount


def cancel_versions(db: sqlite3.Connection, keys: Iterable[DocumentKey]) -> None:
    """Set the newest versions of these documents to `failed` with the code `cancelled`, where they are queued, parsing
    or embedding. The message says that the batch was cancelled. Others and unknown keys are left alone; an older
    visible version stays visible. A task that is at work on one finds out at its next write. Call within
    `CatalogDatabase.write`, which commits. Blocks; raises sqlite3.Error if the catalog fails."""
    for key in keys:
        db.execute(
            "UPDATE versions SET state = 'failed', retry_at = NULL, error_code = ?, error_message = ? "
            "WHERE state IN ('queued', 'parsing', 'embedding') AND number = "
            "(SELECT newest FROM documents WHERE tenant = ? AND space = ? AND id = ?)",
            (CANCELLED, "The batch was cancelled.", key.tenant, key.space, key.id),
        )


def count_space(db: sqlite3.Connection, tenant: str, space: str) -> SpaceTotals:
    """Return the number of documents of a tenant's space by state, and the size of their visible texts; without
    documents, no states and 0. Blocks; raises sqlite3.Error if the catalog fails."""
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
    """Return how much each tenant has stored, in all spaces, by the tenant's name; None: all tenants, else `tenant`
    alone. A tenant without documents is missing, so that the list may be empty. Blocks; raises sqlite3.Error if the
    catalog fails."""
    condition, values = ("", ()) if tenant is None else ("WHERE d.tenant = ?", (tenant,))
    rows = db.execute(
        "SELECT d.tenant, count(*), coalesce(sum(l.chunks), 0), sum(v.bytes) FROM documents d "
        "JOIN versions v ON v.number = d.newest LEFT JOIN versions l ON l.number = d.live "
        f"{condition} GROUP BY d.tenant ORDER BY d.tenant",
        values,
    )
    return [TenantTotals(*row) for row in rows]


class DocumentCount(NamedTuple):
    """How many documents a tenant has, and of how many a version can be searched."""

    documents: int
    searchable: int


def count_documents(db: sqlite3.Connection, tenant: str | None, space: str) -> dict[str, DocumentCount]:
    """Return how many documents each tenant has in a space, by the tenant's name; None: all tenants, else `tenant`
    alone. A tenant without any is missing. Blocks; raises sqlite3.Error if the catalog fails."""
    condition, values = ("", ()) if tenant is None else ("tenant = ? AND ", (tenant,))
    rows = db.execute(
        f"SELECT tenant, count(*), count(live) FROM documents WHERE {condition}space = ? GROUP BY tenant",
        (*values, space),
    )
    return {tenant: DocumentCount(*counts) for tenant, *counts in rows}


_NEXT_OF_TENANTS: Final = """
WITH RECURSIVE tenants (tenant) AS (
    SELECT min(tenant) FROM versions WHERE state = 'queued'
    UNION ALL
    SELECT (SELECT min(v.tenant) FROM versions v WHERE v.state = 'queued' AND v.tenant > t.tenant) FROM tenants t
    WHERE t.tenant IS NOT NULL
)
SELECT t.tenant,
    (SELECT v.number FROM versions v WHERE v.state = 'queued' AND v.tenant = t.tenant AND v.retry_at IS NULL
        ORDER BY v.number LIMIT 1),
    (SELECT v.number FROM versions v WHERE v.state = 'queued' AND v.tenant = t.tenant AND v.retry_at <= ?
        ORDER BY v.retry_at, v.number LIMIT 1)
FROM tenants t WHERE t.tenant IS NOT NULL
"""
"""Of each tenant with queued versions the first one that never failed, and the one whose retry is due for longest.
Looks at a few entries of an index per tenant, however long the queue is."""


def claim_version(db: sqlite3.Connection, now: float, busy_tenants: Sequence[str]) -> Version | None:
    """Take a queued version whose `retry_at` has come, set its state to `parsing`, and return it. None: none is due.

    Of each tenant, either the first version that never failed is next, or the one whose retry is due for longest,
    whichever has the smaller number; of the tenants, the one whose next version has the smallest number. Tenants in
    `busy_tenants` come after all others, so that a tenant with many documents delays nobody else's. `now`: Unix time in
    seconds. The caller ends the claim with `publish_version`, `retry_version` or `fail_version`; `restart_versions`
    does it after a crash. Call within a transaction (`CatalogDatabase.write`). Blocks; raises sqlite3.Error if the
    catalog fails.
    """
    due = [
        (tenant in busy_tenants, number)
        for tenant, *numbers in db.execute(_NEXT_OF_TENANTS, (now,))
        for number in numbers
        if number is not None
    ]
    if not due:
        return None
    _, number = min(due)
    row = db.execute(
        f"UPDATE versions SET state = 'parsing' WHERE number = ? RETURNING {_COLUMNS}", (number,)
    ).fetchone()
    return _read_version(row)


def next_retry_at(db: sqlite3.Connection) -> float | None:
    """Return the Unix time in seconds when the next queued version is due: 0 for one that never failed, or a time that
    may be past. None: none is queued. Blocks; raises sqlite3.Error if the catalog fails."""
    row = db.execute(
        "SELECT coalesce(retry_at, 0) FROM versions WHERE state = 'queued' ORDER BY retry_at LIMIT 1"
    ).fetchone()
    return None if row is None else float(row[0])


def last_retry_at(db: sqlite3.Connection) -> float:
    """Return the Unix time in seconds when the last queued version is due that failed before; 0: none failed. Blocks;
    raises sqlite3.Error if the catalog fails."""
    [last] = db.execute("SELECT coalesce(max(retry_at), 0) FROM versions WHERE state = 'queued'").fetchone()
    return float(last)


def hasten_retries(db: sqlite3.Connection, now: float, latest: float) -> None:
    """Make the queued versions due `now` that are due only after `latest`, both Unix time in seconds. Call within a
    transaction (`CatalogDatabase.write`). Blocks; raises sqlite3.Error if the catalog fails."""
    db.execute("UPDATE versions SET retry_at = ? WHERE state = 'queued' AND retry_at > ?", (now, latest))


def find_state(db: sqlite3.Connection, version: int) -> str | None:
    """Return a version's `VersionState`; None: the catalog has no such version any more. Blocks; raises sqlite3.Error
    if the catalog fails."""
    row = db.execute("SELECT state FROM versions WHERE number = ?", (version,)).fetchone()
    return None if row is None else str(row[0])


def find_key(db: sqlite3.Connection, version: int) -> DocumentKey | None:
    """Return the key of the document that a version belongs to; None: the version is garbage, or removed. Blocks;
    raises sqlite3.Error if the catalog fails."""
    row = db.execute(
        "SELECT d.tenant, d.space, d.id FROM versions v JOIN documents d ON d.number = v.document WHERE v.number = ?",
        (version,),
    ).fetchone()
    return None if row is None else DocumentKey(*row)


def find_version(db: sqlite3.Connection, version: int) -> Version | None:
    """Return a version, also a garbage one; None: the catalog has no such version any more. Blocks; raises
    sqlite3.Error if the catalog fails."""
    row = db.execute(f"SELECT {_COLUMNS} FROM versions WHERE number = ?", (version,)).fetchone()
    return None if row is None else _read_version(row)


def retry_version(db: sqlite3.Connection, version: int, *, at: float, code: str, message: str) -> None:
    """Queue a version again after a failed try, to be claimed from the Unix time `at` (seconds) on. Counts the try, and
    stores the error's code and message. Does nothing where the version is not parsing or embedding, as after it was
    replaced, deleted or cancelled. Call within a transaction (`CatalogDatabase.write`). Blocks; raises sqlite3.Error if
    the catalog fails."""
    db.execute(
        "UPDATE versions SET state = 'queued', attempts = attempts + 1, retry_at = ?, error_code = ?, "
        "error_message = ? WHERE number = ? AND state IN ('parsing', 'embedding')",
        (at, code, message, version),
    )


def fail_version(db: sqlite3.Connection, version: int, *, code: str, message: str) -> None:
    """Set a version to `failed`: it is not tried again until a client sends it again. Counts the try, and stores the
    error's code and message. Does nothing where the version is not parsing or embedding, as after it was replaced,
    deleted or cancelled. Call within a transaction (`CatalogDatabase.write`). Blocks; raises sqlite3.Error if the
    catalog fails."""
    db.execute(
        "UPDATE versions SET state = 'failed', attempts = attempts + 1, retry_at = NULL, error_code = ?, "
        "error_message = ? WHERE number = ? AND state IN ('parsing', 'embedding')",
        (code, message, version),
    )


def withdraw_version(db: sqlite3.Connection, key: DocumentKey) -> None:
    """Undo the newest version of a document if it failed: it becomes garbage, and the visible version is the newest
    again; a document without a visible version is deleted. Does nothing for another state or an unknown key. Call
    within a transaction (`CatalogDatabase.write`). Blocks; raises sqlite3.Error if the catalog fails."""
    document = find_document(db, key)
    if document is None or document.newest.state != "failed":
        return
    if document.live is None:
        delete_document(db, key)
        return
    _make_garbage(db, [document.newest.number])
    db.execute("UPDATE documents SET newest = live WHERE number = ?", (document.number,))


def note_left_out(db: sqlite3.Connection, version: int, notice: str | None) -> None:
    """Store as a version's `notice` what searches will not find of it; None: they find all of it. Does nothing unless
    the version is `embedding` or `ready`. Call it after the version's points were written, within a transaction
    (`CatalogDatabase.write`). Blocks; raises sqlite3.Error if the catalog fails."""
    db.execute(
        "UPDATE versions SET error_code = NULL, error_message = ? WHERE number = ? AND state IN ('embedding', 'ready')",
        (notice, version),
    )


def publish_version(db: sqlite3.Connection, version: int, collection: int) -> bool:
    """Make a version visible: with the commit, searches find it, and the version visible before becomes garbage. The
    caller has written all its points to the collection with the number `collection`, which this also notes. Raises
    sqlite3.IntegrityError where the catalog has no such collection.

    Returns False, and changes nothing, if the version is not embedding any more, or not its document's newest one
    (replaced, deleted, cancelled or published already). Call within a transaction (`CatalogDatabase.write`). Blocks;
    raises sqlite3.Error if the catalog fails otherwise.
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
        "UPDATE versions SET state = 'ready', error_message = CASE WHEN error_code IS NULL THEN error_message END, "
        "error_code = NULL, retry_at = NULL WHERE number = ?",
        (version,),
    )
    db.execute("UPDATE documents SET live = ? WHERE number = ?", (version, document))
    db.execute("INSERT OR IGNORE INTO indexed (collection, version) VALUES (?, ?)", (collection, version))
    if live is not None:
        _make_garbage(db, [live])
    return True


def list_hidden(db: sqlite3.Connection, tenant: str) -> frozenset[int]:
    """Return the numbers of a tenant's versions that may have points in the vector store and are not visible, for
    `SearchScope.hidden_versions`. A version that is parsed again after a failed try may be missing: what a search finds
    must still be checked (`chunks.find_visible`). Blocks; raises sqlite3.Error if the catalog fails."""
    rows = db.execute(
        "SELECT number FROM versions WHERE tenant = ? AND state IN ('embedding', 'garbage') "
        "UNION ALL SELECT number FROM versions WHERE tenant = ? AND chunks > 0 "
        "AND state IN ('queued', 'parsing', 'failed')",
        (tenant, tenant),
    )
    return frozenset(row[0] for row in rows)


def list_garbage(db: sqlite3.Connection, limit: int) -> list[int]:
    """Return the numbers of up to `limit` garbage versions of all tenants, in no order. Empty: there is no garbage.
    Blocks; raises sqlite3.Error if the catalog fails."""
    return [row[0] for row in db.execute("SELECT number FROM versions WHERE state = 'garbage' LIMIT ?", (limit,))]


def remove_garbage(db: sqlite3.Connection, versions: Sequence[int]) -> list[str]:
    """Delete garbage versions with their texts and chunks; the caller has removed their points from the vector store.
    Versions that are not garbage stay. Return the hashes of the deleted versions' originals that no version and no file
    needs now: the caller removes these files after the commit. Call within a transaction (`CatalogDatabase.write`).
    Blocks; raises sqlite3.Error if the catalog fails."""
    unused = []
    for version in versions:
        row = db.execute(
            "DELETE FROM versions WHERE number = ? AND state = 'garbage' RETURNING sha256", (version,)
        ).fetchone()
        if row is not None and not is_original_used(db, row[0]):
            unused.append(row[0])
    return unused


def is_original_used(db: sqlite3.Connection, sha256: str) -> bool:
    """Return whether a version, also a garbage one, or an uploaded file needs the original of that hash. Blocks; raises
    sqlite3.Error if the catalog fails."""
    query = "SELECT 1 FROM versions WHERE sha256 = ?1 UNION ALL SELECT 1 FROM files WHERE sha256 = ?1 LIMIT 1"
    return db.execute(query, (sha256,)).fetchone() is not None


def restart_versions(db: sqlite3.Connection) -> int:
    """Set all versions that are parsing or embedding, as an earlier process left them, to `queued`. Return how many.
    Call once, before the first `claim_version`. Call within a transaction (`CatalogDatabase.write`). Blocks; raises
    sqlite3.Error if the catalog fails."""
    return db.execute("UPDATE versions SET state = 'queued' WHERE state IN ('parsing', 'embedding')").rowcount


def count_waiting(db: sqlite3.Connection) -> int:
    """Return the number of queued versions of all tenants, those that wait for a retry included. Blocks; raises
    sqlite3.Error if the catalog fails."""
    [count] = db.execute("SELECT count(*) FROM versions WHERE state = 'queued'").fetchone()
    return int(count)


def oldest_accepted_at(db: sqlite3.Connection) -> float | None:
    """Return the Unix time in seconds when the oldest version was accepted that is queued, parsing or embedding; None:
    there is none. Blocks; raises sqlite3.Error if the catalog fails."""
    # One state each: SQLite then reads the first entry of the index `versions_unready`, and else all of them.
    oldest = "SELECT min(accepted_at) FROM versions WHERE state != 'ready' AND state = ?"
    found = [db.execute(oldest, (state,)).fetchone()[0] for state in ("queued", "parsing", "embedding")]
    return min((float(each) for each in found if each is not None), default=None)


def count_states(db: sqlite3.Connection) -> dict[str, int]:
    """Return the number of versions of all tenants by `VersionState`; states without any version are missing. Blocks;
    raises sqlite3.Error if the catalog fails."""
    counts = dict(db.execute("SELECT state, count(*) FROM versions WHERE state != 'ready' GROUP BY state"))
    [ready] = db.execute("SELECT count(*) FROM versions WHERE state = 'ready'").fetchone()
    return {**counts, "ready": ready} if ready else counts


def count_chunks(db: sqlite3.Connection) -> int:
    """Return the number of chunks of the searchable versions, of all tenants. Blocks; raises sqlite3.Error if the
    catalog fails."""
    [chunks] = db.execute("SELECT coalesce(sum(chunks), 0) FROM versions WHERE state = 'ready'").fetchone()
    return int(chunks)


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
