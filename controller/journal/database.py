"""The journal's SQLite file. Every method may raise sqlite3.Error.

The only writer is the controller that holds the state folder's lock. Other processes may read the file at any time
(`sqlite3 state/journal.db`): with SQLite's write-ahead log, readers do not block the writer. A power cut may lose the
newest entries (`synchronous` is NORMAL) but never damages the file.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, get_args

from common.sqlite_files import NewerDatabaseError, check_content, open_connection, transaction
from controller.schema.journal import HISTORY_KINDS, RETENTION_CLASSES, EventKind, JournalEntry
from controller.schema.status import SCHEMA_VERSION

log = logging.getLogger(__name__)

BUSY_S: Final = 0.05
"""Seconds that SQLite waits at most for another process's lock. The wait blocks the event loop."""

_TABLES: Final = """
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS entries (
    id INTEGER PRIMARY KEY,
    at REAL NOT NULL,
    kind TEXT NOT NULL,
    model TEXT,
    actor TEXT NOT NULL,
    message TEXT NOT NULL,
    details TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS entries_by_model ON entries (model, id);
CREATE INDEX IF NOT EXISTS entries_by_kind ON entries (kind, id);
"""
_COLUMNS: Final = "id, at, kind, model, actor, message, details"


def _in_kinds(kinds: Iterable[EventKind]) -> str:
    return f"kind IN ({', '.join(map(repr, sorted(kinds)))})"


# The last class is what is in none of the others: a kind that only a newer version knows is pruned, too.
_CLASSES: Final = (*map(_in_kinds, RETENTION_CLASSES[:-1]), f"NOT {_in_kinds(HISTORY_KINDS)}")


# `+`: rows are read by their ids, not by the index of kinds.
_IS_KNOWN: Final = "+" + _in_kinds(get_args(EventKind))
"""Which entries are of kinds that this version knows."""


class JournalBounds(NamedTuple):
    """Ids in a journal file: of the oldest and the newest entry that it holds, and of the newest entry that it once
    held and no longer holds (`lost_id`). 0: there is no such entry."""

    oldest_id: int = 0
    newest_id: int = 0
    lost_id: int = 0
    """Id of the newest entry that the journal once had and no longer has."""


class JournalDatabase:
    """An open journal file. `EventLog` uses it through a `DatabaseFile`. Every method may raise sqlite3.Error, and
    blocks: it reads or writes the file, and waits up to 0.05 s (`BUSY_S`) for another process's lock."""

    def __init__(self, path: Path) -> None:
        """Open the file, and make it if it is missing. Reads the whole file to check it. Raises sqlite3.Error (one that
        `is_damaged` for a damaged file, NewerDatabaseError for one of a newer Roundhouse) and OSError."""
        self._db = open_connection(path, busy_s=BUSY_S)
        try:
            self._prepare_tables()
        except BaseException:
            self._db.close()
            raise

    def _prepare_tables(self) -> None:
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = NORMAL")
        check_content(self._db)
        tables = {name for (name,) in self._db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        row = "meta" in tables and self._db.execute("SELECT value FROM meta WHERE key = 'schema_version'").fetchone()
        if row and row[0] > SCHEMA_VERSION:
            raise NewerDatabaseError(f"it was written by a newer Roundhouse (schema_version {row[0]})")
        if not row:
            self._db.executescript(_TABLES)
            self._db.execute("INSERT INTO meta VALUES ('schema_version', ?)", (SCHEMA_VERSION,))

    def is_in_place(self) -> bool:
        """Whether the path still leads to the opened file; False if the file was deleted or replaced. Raises OSError
        where that cannot be read."""
        return self._db.is_in_place()

    def read_bounds(self) -> JournalBounds:
        """Return the oldest, the newest and the newest lost id; each 0 where there is none. Blocks. Raises
        sqlite3.Error."""
        row = self._db.execute(
            "SELECT (SELECT min(id) FROM entries), (SELECT max(id) FROM entries),"
            " (SELECT value FROM meta WHERE key = 'lost')"
        ).fetchone()
        return JournalBounds(*(each or 0 for each in row))

    def insert_entries(self, entries: Iterable[JournalEntry], *, keep: int | None, lost: int) -> None:
        """Write the entries in one transaction, all or none, and raise `JournalBounds.lost_id` to at least `lost` (0:
        leave it). Blocks. Raises sqlite3.Error; for an id that exists already, sqlite3.IntegrityError.

        With `keep`, delete all but the newest `keep` entries of each of the `RETENTION_CLASSES`; None deletes nothing.
        """
        rows = [_to_row(entry) for entry in entries]
        with transaction(self._db):
            self._db.executemany("INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
            if keep is not None:
                lost = max(lost, *(self._prune_entries(condition, keep) for condition in _CLASSES))
            if lost:
                self._db.execute(
                    "INSERT INTO meta VALUES ('lost', ?)"
                    " ON CONFLICT (key) DO UPDATE SET value = max(value, excluded.value)",
                    (lost,),
                )

    def _prune_entries(self, condition: str, keep: int) -> int:
        """Delete all but the newest `keep` entries that match. Return the newest deleted id; 0 means none was."""
        row = self._db.execute(
            f"SELECT id FROM entries WHERE {condition} ORDER BY id DESC LIMIT 1 OFFSET ?",  # noqa: S608
            (keep,),
        ).fetchone()
        if row is None:
            return 0
        self._db.execute(f"DELETE FROM entries WHERE {condition} AND id <= ?", row)  # noqa: S608
        return int(row[0])

    def read_after(self, entry_id: int, limit: int) -> list[JournalEntry]:
        """Return at most `limit` entries with ids above `entry_id`, oldest first. Entries of kinds that this version
        does not know are left out. Blocks. Raises sqlite3.Error."""
        rows = self._db.execute(
            f"SELECT {_COLUMNS} FROM entries WHERE id > ? AND {_IS_KNOWN} ORDER BY id LIMIT ?",  # noqa: S608
            (entry_id, limit),
        )
        return list(_parse_rows(rows))

    def read_page(self, kinds: Sequence[str], model: str | None, before: int | None, limit: int) -> list[JournalEntry]:
        """Return at most `limit` entries, newest first. Entries of kinds that this version does not know are left out.
        Blocks. Raises sqlite3.Error.

        `kinds` and `model` select entries; an empty `kinds` and a `model` of None select all. `before` is an id: only
        entries with smaller ones are returned; None: no bound.
        """
        conditions, values = [_IS_KNOWN], list[Any]()
        if kinds:
            conditions.append(f"kind IN ({', '.join('?' * len(kinds))})")
            values += kinds
        if model is not None:
            conditions.append("model = ?")
            values.append(model)
        if before is not None:
            conditions.append("id < ?")
            values.append(before)
        rows = self._db.execute(
            f"SELECT {_COLUMNS} FROM entries WHERE {' AND '.join(conditions)} ORDER BY id DESC LIMIT ?",  # noqa: S608
            (*values, limit),
        )
        return list(_parse_rows(rows))

    def close(self) -> None:
        """Close the file. SQLite then merges its write-ahead log into it. May be called repeatedly; no other method
        afterwards."""
        self._db.close()


def _to_row(entry: JournalEntry) -> tuple[Any, ...]:
    details = json.dumps(entry.details, ensure_ascii=False, separators=(",", ":"))
    return entry.id, entry.at, entry.kind, entry.model, entry.actor, entry.message, details


def _parse_rows(rows: Iterable[tuple[Any, ...]]) -> Iterator[JournalEntry]:
    for entry_id, at, kind, model, actor, message, details in rows:
        try:
            yield JournalEntry(
                id=entry_id, at=at, kind=kind, model=model, actor=actor, message=message, details=json.loads(details)
            )
        except ValueError as error:
            # Of a kind that another version has; the others are worth no less.
            log.debug("entry %s is left out: %s", entry_id, error)
