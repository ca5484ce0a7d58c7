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
    """Runs work on the catalog's connection, in one thread and in the order of the calls."""

    def __init__(self, folder: Path) -> None:
        """Open the catalog in `folder`, which exists. Blocks. Raises what `open_catalog_file` raises."""
        self._db = open_catalog_file(folder / FILE_NAME)
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="catalog")

    async def read(self, work: Callable[[sqlite3.Connection], Result]) -> Result:
        """Return what `work` returns, called in the thread without a transaction. Raises what `work` raises."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, work, self._db)

    async def write(self, work: Callable[[sqlite3.Connection], Result]) -> Result:
        """Return what `work` returns, called in the thread within a transaction, which is durable on return.

        Raises what `work` raises, after a rollback; sqlite3.Error where the disk fails. A caller that is cancelled does
        not know whether the transaction was committed.
        """

        def in_transaction(db: sqlite3.Connection) -> Result:
            with transaction(db):
                return work(db)

        return await asyncio.get_running_loop().run_in_executor(self._executor, in_transaction, self._db)

    def close(self) -> None:
        """Wait for running work, and close the file. Blocks. No method may be called afterwards."""
        self._executor.shutdown(wait=True)
        self._db.close()
