"""Removes originals that the catalog does not need any more."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from retrieval.catalog.database import CatalogDatabase
from retrieval.catalog.originals import Originals
from retrieval.catalog.versions import is_original_used


async def remove_unused_originals(catalog: CatalogDatabase, originals: Originals, hashes: Iterable[str]) -> int:
    """Remove those of the originals that no version and no file needs. Return how many. Pinned ones stay.

    Raises OSError or sqlite3.Error.
    """
    removed = 0
    for sha256 in hashes:
        if not await catalog.read(lambda db, sha256=sha256: is_original_used(db, sha256)):  # type: ignore[misc]
            removed += await asyncio.to_thread(originals.remove_original, sha256)
    return removed
