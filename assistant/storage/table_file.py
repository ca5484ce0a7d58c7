"""The opened database file that all tables share: queries, size limit, and deletion of old rows."""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Callable, Sequence
from sqlite3 import DatabaseError
from typing import Any, Final

SWEPT_AT_ONCE: Final = 100
"""Rows per table that one transaction deletes; a longer one would keep requests waiting."""

_DELETABLE: Final = {
    "responses": "status NOT IN ('queued', 'in_progress')",
    "completions": "true",
    "conversations": "true",
}
"""The tables of stored objects, and the SQL condition under which their rows may be deleted."""
_OLDEST_OF: Final = "SELECT * FROM (SELECT '{0}', number, used_at FROM {0} WHERE {1} ORDER BY used_at, number LIMIT 1)"
_FIND_OLDEST: Final = (
    f"{' UNION ALL '.join(_OLDEST_OF.format(*each) for each in _DELETABLE.items())} ORDER BY 3, 2 LIMIT 1"
)


class DatabaseFullError(DatabaseError):
    """A sqlite3.DatabaseError: objects do not fit into the database, even after all objects that may be deleted were
    deleted."""


class TableFile:
    """The connection to the database, and queries for any table. Use it from one thread at a time.

    Methods wait for the disk, and may raise sqlite3.Error; so may making one, which reads the page size.
    """

    def __init__(
        self,
        db: sqlite3.Connection,
        *,
        max_bytes: int,
        retention_s: float,
        clock: Callable[[], float],
        expiry_clock: Callable[[], float],
    ) -> None:
        """`db`: an opened connection, which the caller closes. `max_bytes`: maximum bytes of the file, rounded down to
        whole pages. `retention_s`: seconds that an object is stored after its last use. `clock`: Unix time in
        seconds that uses are stamped with. `expiry_clock`: Unix time in seconds by which objects expire."""
        self.db = db
        self.clock = clock
        self._expiry_clock = expiry_clock
        self._retention_s = retention_s
        self._page_size = self.read_pragma("page_size")
        self._max_pages = max_bytes // self._page_size

    def cutoff(self) -> float:
        """Return a Unix time in seconds: objects whose last use (`used_at`) is before it have expired."""
        return self._expiry_clock() - self._retention_s

    def read_pragma(self, name: str) -> int:
        """Return the value of a SQLite pragma whose value is an integer. Blocks; may raise sqlite3.Error."""
        return int(self.db.execute(f"PRAGMA {name}").fetchone()[0])

    def find_next_number(self, table: str) -> int:
        """Return the next free `number` of a table: the highest plus one, or 1 for an empty table.

        Blocks; raises sqlite3.Error if the database fails.
        """
        [number] = self.db.execute(f"SELECT coalesce(max(number), 0) FROM {table}").fetchone()  # noqa: S608 - ours
        return int(number) + 1

    def count_rows(self, table: str) -> int:
        """Return the number of rows of a table, including expired rows that are not deleted yet.

        Blocks; raises sqlite3.Error if the database fails.
        """
        [count] = self.db.execute(f"SELECT count(*) FROM {table}").fetchone()  # noqa: S608 - ours
        return int(count)

    def count_used_bytes(self) -> int:
        """Return the bytes of the file without its unused pages. Blocks; raises sqlite3.Error if the database fails."""
        return self._used_pages() * self._page_size

    def run_with_rows(self, statement: str, rows: Sequence[tuple[Any, ...]], *extra_values: Any) -> None:
        """Run one SQL statement for many rows.

        The `{}` in `statement` is replaced by placeholders for the rows' values.

        `rows`: at least one row, all of the same length. `extra_values`: values of the placeholders after `{}`. SQLite
        releases Python's lock in each statement and waits for it again, so that one statement is faster than many.
        Blocks; raises sqlite3.Error if the database fails.
        """
        values = ", ".join([f"({', '.join('?' * len(rows[0]))})"] * len(rows))
        self.db.execute(statement.format(values), [*itertools.chain.from_iterable(rows), *extra_values])

    def make_room(self, size: int, rows: int) -> None:
        """Delete the least recently used objects of any kind and tenant, until `size` bytes in `rows` rows fit.

        Deletes nothing if they fit already. Blocks. Call within a transaction, so that an error deletes nothing.
        Running responses are never deleted.

        Raises:
            DatabaseFullError: the rows alone are too large, or only running responses are left to delete.
            sqlite3.Error: the database fails.
        """
        pages = size // self._page_size + 8 * rows  # 8 pages per row for indexes and partly filled pages
        if pages > self._max_pages:
            raise DatabaseFullError("it is larger than all that may be stored")
        while self._used_pages() + pages > self._max_pages:
            oldest = self.db.execute(_FIND_OLDEST).fetchone()
            if oldest is None:
                raise DatabaseFullError("all that is stored still runs")
            table, number, _ = oldest
            self.db.execute(f"DELETE FROM {table} WHERE number = ?", (number,))  # noqa: S608 - ours

    def delete_expired(self) -> bool:
        """Delete up to `SWEPT_AT_ONCE` expired objects of each table, but no running responses.

        Returns True if a table may have more. Call within a transaction. Blocks; raises sqlite3.Error if the database
        fails.
        """
        cutoff, has_more = self.cutoff(), False
        for table, condition in _DELETABLE.items():
            expired = f"SELECT number FROM {table} WHERE used_at < ? AND {condition} LIMIT ?"  # noqa: S608 - ours
            statement = f"DELETE FROM {table} WHERE number IN ({expired})"  # noqa: S608 - ours
            has_more |= self.db.execute(statement, (cutoff, SWEPT_AT_ONCE)).rowcount == SWEPT_AT_ONCE
        return has_more

    def _used_pages(self) -> int:
        return self.read_pragma("page_count") - self.read_pragma("freelist_count")
