"""OpenAI's files: uploaded once, and added to vector stores by their ids."""

from __future__ import annotations

import asyncio
import secrets
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Final

from common.trusted_clock import TrustedClock
from controller.schema.errors import RoundhouseError
from retrieval.catalog.cleanup import discard_original
from retrieval.catalog.database import CatalogDatabase
from retrieval.catalog.files import StoredFile, add_file, delete_file, find_file, list_expired_files, list_files
from retrieval.catalog.originals import IncomingOriginal, Originals
from retrieval.documents.service import check_content, storage_error

SHORTEST_LIFE_S: Final = 3_600
LONGEST_LIFE_S: Final = 2_592_000


class FileService:
    """Keeps the files that clients uploaded to `/v1/files`, of all tenants. Vector stores make documents of them.

    Methods that take a file's id raise RoundhouseError `file_not_found` for a file that the tenant does not have. Apart
    from `add_file`, they raise sqlite3.Error and OSError as they come. A call that is cancelled may still be carried
    out.
    """

    def __init__(
        self,
        catalog: CatalogDatabase,
        originals: Originals,
        *,
        clock: TrustedClock,
        on_garbage: Callable[[], None],
        on_deleted: Callable[[str], None],
    ) -> None:
        """`on_garbage`: called after a deletion. `on_deleted`: called after a deletion with the tenant whose documents
        were deleted."""
        self._catalog = catalog
        self._originals = originals
        self._clock = clock
        self._on_garbage = on_garbage
        self._on_deleted = on_deleted

    async def add_file(
        self,
        tenant: str,
        incoming: IncomingOriginal,
        *,
        filename: str,
        media_type: str | None,
        purpose: str,
        expires_after_s: int | None,
    ) -> StoredFile:
        """Store a file durably, whose whole content is in `incoming`, and return it with its new id. `expires_after_s`:
        seconds from now; None: it never expires. `media_type`: as the client declared it; None: not at all.

        Raises:
            RoundhouseError: `document_empty`, `storage_full`, `storage_failed`.
        """
        check_content(incoming)
        now = self._clock.read_latest()
        expires_at = None if expires_after_s is None else now + expires_after_s
        file = StoredFile(
            f"file-{secrets.token_hex(16)}",
            tenant,
            filename,
            purpose,
            media_type,
            incoming.sha256,
            incoming.bytes,
            now,
            expires_at,
        )
        try:
            with self._originals.pin(file.sha256):
                await asyncio.to_thread(incoming.keep)
                await self._catalog.write(lambda db: add_file(db, file))
        except (OSError, sqlite3.Error) as error:
            await discard_original(self._catalog, self._originals, file.sha256)
            raise storage_error(error) from None
        return file

    async def find_file(self, tenant: str, file_id: str) -> StoredFile:
        """Return a file. Raises RoundhouseError `file_not_found`, also once the file has expired, and sqlite3.Error."""
        now = self._clock.read_earliest()
        file = await self._catalog.read(lambda db: find_file(db, tenant, file_id, now))
        if file is None:
            raise file_not_found(file_id)
        return file

    async def list_files(
        self, tenant: str, *, after: str | None, limit: int, is_ascending: bool, purpose: str | None
    ) -> tuple[list[StoredFile], bool]:
        """Return up to `limit` files of a tenant that have not expired, oldest first if `is_ascending`, else newest
        first, and whether more follow. `after`: only those that follow the file with that id; None: from the first on.
        `purpose` None: any.

        Raises RoundhouseError `invalid_request` if the tenant has no file `after`, and sqlite3.Error.
        """
        now = self._clock.read_earliest()
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
        """Delete a file, also an expired one, with its documents in all vector stores; then remove its original unless
        something else needs it. Raises RoundhouseError `file_not_found`, also for a second call, and sqlite3.Error. An
        original that cannot be removed stays until the next start."""
        sha256 = await self._catalog.write(lambda db: delete_file(db, tenant, file_id))
        if sha256 is None:
            raise file_not_found(file_id)
        self._on_deleted(tenant)
        self._on_garbage()
        await discard_original(self._catalog, self._originals, sha256)

    async def delete_expired(self) -> int:
        """Delete the files of all tenants that have expired, with their documents in all vector stores, and their
        originals unless something else needs them. Return how many. Call regularly. Raises at the first that fails:
        sqlite3.Error, or RoundhouseError `file_not_found` for a file that was deleted meanwhile. The next call goes
        on."""
        now = self._clock.read_earliest()
        expired = await self._catalog.read(lambda db: list_expired_files(db, now))
        for tenant, file_id in expired:
            await self.delete_file(tenant, file_id)
        return len(expired)

    def original_of(self, file: StoredFile) -> Path:
        """Return the path of the file's content. It may be removed at any time after the file was deleted."""
        return self._originals.path_of(file.sha256)


def file_not_found(file_id: str) -> RoundhouseError:
    """Return the RoundhouseError `file_not_found` for a file's id; the caller raises it."""
    return RoundhouseError("file_not_found", f"There is no file {file_id!r:.100}.", param="file_id")
