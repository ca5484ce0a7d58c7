"""Where a page of a table begins: for tables with `number`, `tenant` and `id`."""

from __future__ import annotations

import sqlite3


def find_bound(
    db: sqlite3.Connection, table: str, tenant: str, after: str | None, *, is_ascending: bool
) -> tuple[str, str, int]:
    """Return comparison, direction and number, for `number COMPARISON ? ... ORDER BY number DIRECTION`.

    `after`: id of the last row of the page before; None: the first page.

    Raises:
        LookupError: the tenant has no row `after`.
    """
    comparison, direction, number = (">", "ASC", -1) if is_ascending else ("<", "DESC", 2**62)
    if after is not None:
        row = db.execute(f"SELECT number FROM {table} WHERE tenant = ? AND id = ?", (tenant, after)).fetchone()
        if row is None:
            raise LookupError(after)
        [number] = row
    return comparison, direction, number
