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
    """Most objects on the page."""
    is_ascending: bool
    """True: the page has the oldest object first; False: the newest."""
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
        """Whether to read rows by rising `number`, so that reading leads away from the cursor: `is_ascending`, or its
        opposite with `before`. `cut_page` then puts the rows into the client's order."""
        return self.is_ascending if self.before is None else not self.is_ascending


def find_bound(db: sqlite3.Connection, table: str, tenant: str, page: PageRequest) -> tuple[str, str, int]:
    """Return (comparison, direction, number) for `WHERE tenant = ? AND number COMPARISON ? ORDER BY number DIRECTION`:
    `>` and `ASC`, or `<` and `DESC`, and the parameter of the comparison. The caller reads one row more than the page's
    limit, and gives them to `cut_page`. `table` is put into the SQL as it is. Blocks.

    Raises:
        LookupError: the tenant has no row with the id of the page's cursor.
        sqlite3.Error: the catalog fails.
    """
    comparison, direction, number = (">", "ASC", -1) if page.reads_ascending else ("<", "DESC", 2**62)
    if page.cursor is not None:
        row = db.execute(f"SELECT number FROM {table} WHERE tenant = ? AND id = ?", (tenant, page.cursor)).fetchone()
        if row is None:
            raise LookupError(page.cursor)
        [number] = row
    return comparison, direction, number


def cut_page(rows: Sequence[Item], page: PageRequest) -> tuple[list[Item], bool]:
    """Return the first `page.limit` of `rows`, in the order that the client wants, and whether there are more rows.

    `rows` were read as `find_bound` says: from the page's cursor away, and one more than the limit where there is one.
    With `before`, more rows means objects ahead of the page, else objects behind it."""
    kept = list(rows[: page.limit])
    return kept if page.before is None else kept[::-1], len(rows) > page.limit


def cut_list(
    items: Sequence[Item], page: PageRequest, id_of: Callable[[Item], str], matches: Callable[[Item], bool]
) -> tuple[list[Item], bool]:
    """Return the page of those `items` for which `matches` is true, in the order that the client wants, and whether
    there are more: with `before`, ahead of the page, else behind it. `items` is the whole list, the oldest first.

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
