"""Files of backups and restores: copies that are consistent, and new files that are durable."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

from common.private_files import PRIVATE_MODE, give_to_owner
from common.sqlite_files import check_content, open_existing
from controller.backup.manifest import BackupError

BUSY_S: Final = 5.0
"""Seconds to wait for a database that another program has locked."""


def sync_folder(folder: Path) -> None:
    """Sync a folder to disk, so that renames in it survive a power failure. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def copy_database(source: Path, copy: Path) -> list[Path]:
    """Copy an SQLite database to the file `copy` as of its last committed transaction, while others write to it.
    Returns the copy in a list, empty where there is no database. The copy is readable by its owner alone.

    Raises BackupError where the database cannot be read, is damaged, or is locked by another program for 5 s
    (`BUSY_S`), and where the copy cannot be written.
    """
    if not source.exists():
        return []
    write_new(copy, PRIVATE_MODE, iter(()), is_synced=False)
    try:
        with (
            closing(open_existing(source, busy_s=BUSY_S)) as db,
            closing(sqlite3.connect(copy)) as target,
        ):
            # `backup` would wait for ever for a program that has locked the file; a read waits for BUSY_S.
            db.execute("BEGIN")
            db.execute("SELECT count(*) FROM sqlite_master").fetchone()
            db.backup(target)
            check_content(target)
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code == sqlite3.SQLITE_FULL:
            raise BackupError(f"there is no room for a copy of {source} beside the backup") from error
        raise BackupError(f"{source} cannot be copied ({error})") from error
    return [copy]


def write_new(path: Path, mode: int, chunks: Iterator[bytes], *, is_synced: bool = True) -> None:
    """Write `chunks` to a new file at `path`; an existing one is removed first. Syncs the file to disk, unless
    `is_synced` is False because the caller does that. Of `mode` only the read and write permissions count, and the
    owner always has both. Run by root, the file gets the owner of its folder. Raises OSError, and then may leave a
    partial file."""
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE_MODE)
    with os.fdopen(descriptor, "wb") as file:
        for chunk in chunks:
            file.write(chunk)
        os.fchmod(descriptor, mode & 0o666 | 0o600)
        give_to_owner(path)
        file.flush()
        if is_synced:
            os.fsync(descriptor)
