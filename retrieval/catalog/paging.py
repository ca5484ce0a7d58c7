"""Pages of lists: where a page begins, in tables with `number`, `tenant` and `id`, and in lists."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class PageRequest:
    """Which part of a list, in the order of creation, a client wants. At most one of `after` and `before` is set; with
    neither, it is the first page."""

    limit: int
    is_ascending: bool
    after: str | None = None
    """Id of the last object of the page before this one."""
    before: str | None = None
    """Id of the first object of the page behind this one."""

    @property
    def cursor(self) -> str | None:
        """The id that bounds the page; None: nothing does."""
        return self.after if self.before is None else self.before

    @property
    def reads_ascending(self) -> bool:
        """The direction in which rows are read, from the cursor away. `cut_page` turns them round again."""
        return self.is_ascending if self.before is None else not self.is_ascending


def find_bound(db: sqlite3.Connection, table: str, tenant: str, page: PageRequest) -> tuple[str, str, int]:
    """Return comparison, direction and number, for `number COMPARISON ? ... ORDER BY number DIRECTION`. The caller
    reads one row more than the page's limit, and gives them to `cut_page`.

    Raises:
        LookupError: the tenant has no row with the id of the page's cursor.
    """
    comparison, direction, number = (">", "ASC", -1) if page.reads_ascending else ("<", "DESC", 2**62)
    if page.cursor is not None:
        row = db.execute(f"SELECT number FROM {table} WHERE tenant = ? AND id = ?", (tenant, page.cursor)).fetchone()
        if row is None:
            raise LookupError(page.cursor)
        [number] = row
    return comparison, direction, number


def cut_page(rows: Sequence[Item], page: PageRequest) -> tuple[list[Item], bool]:
    """Return the page of rows that were read from its cursor away, in the order that the client wants, and whether more
    follow in the direction of reading."""
    kept = list(rows[: page.limit])
    return kept if page.before is None else kept[::-1], len(rows) > page.limit


def cut_list(
    items: Sequence[Item], page: PageRequest, id_of: Callable[[Item], str], matches: Callable[[Item], bool]
) -> tuple[list[Item], bool]:
    """Return the page of those of `items`, the oldest first, that match, and whether more follow, as `cut_page` does.

    Raises:
        LookupError: no item, whether it matches or not, has the id of the page's cursor.
    """
    read = list(items) if page.reads_ascending else list(items)[::-1]
    if page.cursor is not None:
        ids = [id_of(item) for item in read]
        if page.cursor not in ids:
            raise LookupError(page.cursor)
        read = read[ids.index(page.cursor) + 1 :]
    return cut_page([item for item in read if matches(item)], page)
