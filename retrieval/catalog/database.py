"""The thread that owns the catalog's connection. The event loop never waits for the disk."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from common.sqlite_files import transaction
from retrieval.catalog.schema import FILE_NAME, open_catalog_file

Result = TypeVar("Result")


class CatalogDatabase:
    """Owns the connection to the catalog's SQLite file, and runs functions on it: one at a time, in a thread of its
    own, in the order of the calls. Open from construction to `close`."""

    def __init__(self, folder: Path) -> None:
        """Open the catalog in `folder`, which must exist, and hold it for this process. Blocks. Raises what
        `open_catalog_file` raises."""
        self._db = open_catalog_file(folder / FILE_NAME)
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="catalog")

    async def read(self, work: Callable[[sqlite3.Connection], Result]) -> Result:
        """Call `work` in the thread, without a transaction, and return what it returns. Its statements see one state of
        the catalog, because nothing else runs meanwhile.

        `work` must not return an open cursor, and must write nothing. A cancelled call does not stop `work`. Raises
        what `work` raises (sqlite3.Error if the disk fails), and RuntimeError after `close`.
        """
        return await asyncio.get_running_loop().run_in_executor(self._executor, work, self._db)

    async def write(self, work: Callable[[sqlite3.Connection], Result], *, is_durable: bool = True) -> Result:
        """Call `work` in the thread within a transaction, and return what it returns. The transaction is durable on
        return. `work` must not begin or end a transaction, and must return no open cursor.

        `is_durable` False: the transaction is committed, but becomes durable only with the next durable one. Until
        then, a loss of power may undo it, with later ones that are not durable. Use it for what a restart does again
        anyway.

        Raises what `work` raises, after a rollback; sqlite3.Error if the disk fails; RuntimeError after `close`. A
        caller that is cancelled does not know whether the transaction was committed.
        """

        def in_transaction(db: sqlite3.Connection) -> Result:
            if is_durable:
                with transaction(db):
                    return work(db)
            db.execute("PRAGMA synchronous = NORMAL")
            try:
                with transaction(db):
                    return work(db)
            finally:
                db.execute("PRAGMA synchronous = FULL")

        return await asyncio.get_running_loop().run_in_executor(self._executor, in_transaction, self._db)

    def close(self) -> None:
        """Wait until all work that was handed over has run, and close the file. Blocks. `read` and `write` raise
        RuntimeError from then on."""
        self._executor.shutdown(wait=True)
        self._db.close()
