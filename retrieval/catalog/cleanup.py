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
    """Remove the original of that hash, after the version or file that needed it could not be stored. It stays where
    another version or an uploaded file needs it, it is pinned, or a backup is reading it. OSError and sqlite3.Error are
    ignored: the original then stays until the next start of the program, which removes unused ones. Raises ValueError
    for a string that is not 64 lower-case hex digits."""
    with contextlib.suppress(OSError, sqlite3.Error):
        await remove_unused_originals(catalog, originals, [sha256])


async def remove_unused_originals(catalog: CatalogDatabase, originals: Originals, hashes: Iterable[str]) -> int:
    """Remove the original files with these hashes, except those that a version or an uploaded file needs, that are
    pinned, or that a backup is reading (`Originals.take_postponed` names these later). Return how many were removed;
    one that was missing already counts, too.

    Raises OSError or sqlite3.Error at the first that fails; the rest is not tried. Raises ValueError for a string that
    is not 64 lower-case hex digits.
    """

    def remove(db: sqlite3.Connection, sha256: str) -> bool:
        # In the catalog's thread: no version can come to need the original between the question and the removal.
        return not is_original_used(db, sha256) and originals.remove_original(sha256)

    removed = 0
    for sha256 in hashes:
        removed += await catalog.read(partial(remove, sha256=sha256))
    return removed
