"""OpenAI's files: uploaded once, and added to vector stores by their ids."""

from __future__ import annotations

import asyncio
import secrets
import sqlite3
from collections.abc import AsyncIterable, Callable
from pathlib import Path
from typing import Final

from controller.schema.errors import RoundhouseError
from retrieval.catalog.cleanup import remove_unused_originals
from retrieval.catalog.database import CatalogDatabase
from retrieval.catalog.files import StoredFile, add_file, delete_file, find_file, list_expired_files, list_files
from retrieval.catalog.originals import Originals
from retrieval.documents.service import receive_original, storage_error

SHORTEST_LIFE_S: Final = 3_600
LONGEST_LIFE_S: Final = 2_592_000


class FileService:
    """Files of all tenants. Methods raise RoundhouseError `file_not_found` for a file that the tenant does not have."""

    def __init__(
        self,
        catalog: CatalogDatabase,
        originals: Originals,
        *,
        max_bytes: int,
        clock: Callable[[], float],
        on_garbage: Callable[[], None],
        on_visible_change: Callable[[str], None],
    ) -> None:
        """`max_bytes`: of a file. `clock`: Unix time in seconds. `on_garbage`: called after a deletion.
        `on_visible_change`: called with the tenant whose documents were deleted."""
        self._catalog = catalog
        self._originals = originals
        self._max_bytes = max_bytes
        self._clock = clock
        self._on_garbage = on_garbage
        self._on_visible_change = on_visible_change

    async def add_file(
        self,
        tenant: str,
        content: AsyncIterable[bytes],
        *,
        filename: str,
        media_type: str | None,
        purpose: str,
        expires_after_s: int | None,
    ) -> StoredFile:
        """Store a file durably.

        Raises:
            RoundhouseError: `document_empty`, `document_too_large`, `storage_full`, `storage_failed`.
        """
        try:
            with await asyncio.to_thread(self._originals.begin_original) as incoming:
                await receive_original(incoming, content, self._max_bytes)
                sha256, now = incoming.sha256, self._clock()
                with self._originals.pin(sha256):
                    await asyncio.to_thread(incoming.keep)
                    expires_at = None if expires_after_s is None else now + expires_after_s
                    file = StoredFile(
                        f"file-{secrets.token_hex(16)}",
                        tenant,
                        filename,
                        purpose,
                        media_type,
                        sha256,
                        incoming.bytes,
                        now,
                        expires_at,
                    )
                    await self._catalog.write(lambda db: add_file(db, file))
        except (OSError, sqlite3.Error) as error:
            raise storage_error(error) from None
        return file

    async def find_file(self, tenant: str, file_id: str) -> StoredFile:
        """Return a file."""
        now = self._clock()
        file = await self._catalog.read(lambda db: find_file(db, tenant, file_id, now))
        if file is None:
            raise file_not_found(file_id)
        return file

    async def list_files(
        self, tenant: str, *, after: str | None, limit: int, is_ascending: bool, purpose: str | None
    ) -> tuple[list[StoredFile], bool]:
        """Return a page of files, and whether more follow. Raises `invalid_request` where `after` is no file."""
        now = self._clock()
        try:
            files = await self._catalog.read(
                lambda db: list_files(
                    db, tenant, now, after=after, limit=limit + 1, is_ascending=is_ascending, purpose=purpose
                )
            )
        except LookupError:
            message = f"`after` must be the id of a file; it is {after!r:.100}."
            raise RoundhouseError("invalid_request", message, param="after") from None
        return files[:limit], len(files) > limit

    async def delete_file(self, tenant: str, file_id: str) -> None:
        """Delete a file, and what vector stores have made of it."""
        sha256 = await self._catalog.write(lambda db: delete_file(db, tenant, file_id))
        if sha256 is None:
            raise file_not_found(file_id)
        self._on_visible_change(tenant)
        self._on_garbage()
        await remove_unused_originals(self._catalog, self._originals, [sha256])

    async def delete_expired(self) -> int:
        """Delete the files that have expired. Return how many."""
        now = self._clock()
        expired = await self._catalog.read(lambda db: list_expired_files(db, now))
        for tenant, file_id in expired:
            await self.delete_file(tenant, file_id)
        return len(expired)

    def original_of(self, file: StoredFile) -> Path:
        """Return the file's content on disk."""
        return self._originals.path_of(file.sha256)


def file_not_found(file_id: str) -> RoundhouseError:
    """Return `file_not_found` for an id."""
    return RoundhouseError("file_not_found", f"There is no file {file_id!r:.100}.", param="file_id")
