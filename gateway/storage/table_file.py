"""The opened file that all tables of stored objects share: its clock, its room, and what becomes of the oldest rows."""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Callable, Sequence
from sqlite3 import DatabaseError
from typing import Any, Final

SWEPT_AT_ONCE: Final = 100
"""Rows of a table: a longer transaction would keep requests waiting."""

_DELETABLE: Final = {
    "responses": "status NOT IN ('queued', 'in_progress')",
    "completions": "true",
    "conversations": "true",
}
"""The tables whose rows are stored objects, and which of their rows may be deleted."""
_OLDEST_OF: Final = "SELECT * FROM (SELECT '{0}', number, used_at FROM {0} WHERE {1} ORDER BY used_at, number LIMIT 1)"
_FIND_OLDEST: Final = (
    f"{' UNION ALL '.join(_OLDEST_OF.format(*each) for each in _DELETABLE.items())} ORDER BY 3, 2 LIMIT 1"
)


class DatabaseFullError(DatabaseError):
    """There is no room for what is to be stored, whatever else goes."""


class TableFile:
    """Belongs to one thread at a time. Every method waits for the disk, and may raise sqlite3.Error."""

    def __init__(
        self, db: sqlite3.Connection, *, max_bytes: int, retention_s: float, clock: Callable[[], float]
    ) -> None:
        """`clock` gives Unix time."""
        self.db = db
        self.clock = clock
        self._retention_s = retention_s
        self._page_size = self.read_pragma("page_size")
        self._max_pages = max_bytes // self._page_size

    def cutoff(self) -> float:
        """What was last used before this time is kept no longer."""
        return self.clock() - self._retention_s

    def read_pragma(self, name: str) -> int:
        """The number that a pragma tells."""
        return int(self.db.execute(f"PRAGMA {name}").fetchone()[0])

    def find_next_number(self, table: str) -> int:
        """The number after the largest of a table."""
        [number] = self.db.execute(f"SELECT coalesce(max(number), 0) FROM {table}").fetchone()  # noqa: S608 - ours
        return int(number) + 1

    def count_rows(self, table: str) -> int:
        """How many rows a table has."""
        [count] = self.db.execute(f"SELECT count(*) FROM {table}").fetchone()  # noqa: S608 - ours
        return int(count)

    def count_used_bytes(self) -> int:
        """Bytes of the file, without what is free in it."""
        return self._used_pages() * self._page_size

    def run_with_rows(self, statement: str, rows: Sequence[tuple[Any, ...]], *extra_values: Any) -> None:
        """One statement for all rows: SQLite gives up Python's lock for each, and waits for it again."""
        values = ", ".join([f"({', '.join('?' * len(rows[0]))})"] * len(rows))
        self.db.execute(statement.format(values), [*itertools.chain.from_iterable(rows), *extra_values])

    def make_room(self, size: int, rows: int) -> None:
        """Delete the stored objects that were used longest ago, of whatever kind, until so many bytes fit.

        Raises:
            DatabaseFullError: they do not fit, whatever else goes.
        """
        pages = size // self._page_size + 8 * rows  # a few for what is around each
        if pages > self._max_pages:
            raise DatabaseFullError("it is larger than all that may be stored")
        while self._used_pages() + pages > self._max_pages:
            oldest = self.db.execute(_FIND_OLDEST).fetchone()
            if oldest is None:
                raise DatabaseFullError("all that is stored still runs")
            table, number, _ = oldest
            self.db.execute(f"DELETE FROM {table} WHERE number = ?", (number,))  # noqa: S608 - ours

    def delete_expired(self) -> bool:
        """Delete some of what is kept no longer. Whether there may be more."""
        cutoff, has_more = self.cutoff(), False
        for table, condition in _DELETABLE.items():
            expired = f"SELECT number FROM {table} WHERE used_at < ? AND {condition} LIMIT ?"  # noqa: S608 - ours
            statement = f"DELETE FROM {table} WHERE number IN ({expired})"  # noqa: S608 - ours
            has_more |= self.db.execute(statement, (cutoff, SWEPT_AT_ONCE)).rowcount == SWEPT_AT_ONCE
        return has_more

    def _used_pages(self) -> int:
        return self.read_pragma("page_count") - self.read_pragma("freelist_count")
