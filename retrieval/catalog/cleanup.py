"""Removes originals that the catalog does not need any more."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterable
from functools import partial

from retrieval.catalog.database import CatalogDatabase
from retrieval.catalog.originals import Originals
from retrieval.catalog.versions import is_original_used


async def discard_original(catalog: CatalogDatabase, originals: Originals, sha256: str) -> None:
    """Remove an original that was to be stored, after a failure, unless something needs it. Where even that fails, it
    stays until the next start of the program (see `GarbageCollector.remove_leftovers`); nothing is raised."""
    with contextlib.suppress(OSError, sqlite3.Error):
        await remove_unused_originals(catalog, originals, [sha256])


async def remove_unused_originals(catalog: CatalogDatabase, originals: Originals, hashes: Iterable[str]) -> int:
    """Remove the original files with these hashes, but those that a version or an uploaded file needs or that are
    pinned. Return how many were removed; one that was missing already counts, too.

    Raises OSError or sqlite3.Error at the first that fails; the rest is not tried. Raises ValueError for what is no
    hash.
    """

    def remove(db: sqlite3.Connection, sha256: str) -> bool:
        # In the catalog's thread: no version can come to need the original between the question and the removal.
        return not is_original_used(db, sha256) and originals.remove_original(sha256)

    removed = 0
    for sha256 in hashes:
        removed += await catalog.read(partial(remove, sha256=sha256))
    return removed
