"""Writes a backup of an installation while its controller and gateway run. Each file is copied at a moment of its
own."""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from common.sqlite_files import check_content, open_existing
from controller import __version__
from controller.backup.archive import describe_file, write_archive
from controller.backup.manifest import (
    DESIRED_FOLDER,
    IDENTITY,
    JOURNAL,
    RESPONSES,
    RESPONSES_FOLDER,
    STATE_FILES,
    STATE_FOLDER,
    BackupError,
    Manifest,
)
from controller.config.read import read_folder
from controller.storage.state_dir import Identity

BUSY_S: Final = 5.0
"""Seconds to wait for a database that another program has locked."""


def write_backup(path: Path, *, desired: Path, state: Path, responses: Path, now: float) -> Manifest:
    """Back up an installation to the file `path`, which is replaced only by a complete archive, and return its
    manifest. `now` is Unix time. The programs may run meanwhile. Needs room for a copy of all files beside `path`.

    `desired`, `state` and `responses` are the folders of the desired-state files, of the controller's state, and of
    `responses.db`. Raises BackupError, also where a folder cannot be read or `path` cannot be written, and then leaves
    no partial file.
    """
    try:
        work_folder = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    except OSError as error:
        raise BackupError(f"{path} cannot be written: {error.strerror or error}") from error
    try:
        files = _collect(work_folder, desired, state, responses)
        manifest = Manifest(
            version=__version__,
            made_at=now,
            instance=_read_instance(work_folder / STATE_FOLDER / IDENTITY),
            members={member: describe_file(file) for member, file in files.items()},
        )
        archive_path = work_folder / "archive"
        write_archive(archive_path, manifest, files)
        archive_path.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        raise BackupError(f"{path} cannot be written: {error.strerror or error}") from error
    finally:
        shutil.rmtree(work_folder, ignore_errors=True)
    return manifest


def sync_folder(folder: Path) -> None:
    """Sync a folder to disk, so that renames in it survive a power failure. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _collect(work_folder: Path, desired: Path, state: Path, responses: Path) -> dict[str, Path]:
    """Copy all files of the backup to `work_folder`. Returns the copies by member name.

    Raises BackupError, or OSError where the work folder cannot be written.
    """
    for name in (STATE_FOLDER, RESPONSES_FOLDER, DESIRED_FOLDER):
        (work_folder / name).mkdir()
    copies = [*_copy_declarations(desired, work_folder / DESIRED_FOLDER)]
    for name in STATE_FILES:
        copies += _copy_state_file(state / name, work_folder / STATE_FOLDER / name)
    for source, folder in ((state / JOURNAL, STATE_FOLDER), (responses / RESPONSES, RESPONSES_FOLDER)):
        copies += copy_database(source, work_folder / folder / source.name)
    if work_folder / STATE_FOLDER / IDENTITY not in copies:
        raise BackupError(f"{state} is no state folder of a Roundhouse: it has no {IDENTITY}")
    return {str(copy.relative_to(work_folder)): copy for copy in copies}


def _copy_declarations(desired: Path, folder: Path) -> list[Path]:
    """Copy the desired-state files. Raises BackupError where they cannot be read."""
    snapshot = read_folder(desired)
    if snapshot.problems:
        raise BackupError("; ".join(str(problem) for problem in snapshot.problems))
    copies = [folder / name for name in snapshot.files]
    for copy, content in zip(copies, snapshot.files.values(), strict=True):
        copy.write_bytes(content)
        copy.chmod(_permissions(desired / copy.name))
    return copies


def _permissions(path: Path) -> int:
    try:
        return path.stat().st_mode & 0o666 | 0o600
    except OSError:  # it was replaced or removed meanwhile
        return 0o600


def _copy_state_file(source: Path, copy: Path) -> list[Path]:
    """Copy one file. Returns the copy, or nothing where the file does not exist. Raises BackupError, or OSError where
    the copy cannot be written."""
    try:
        content = source.read_bytes()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise BackupError(f"{source} cannot be read: {error.strerror or error}") from error
    copy.write_bytes(content)
    copy.chmod(0o600)
    return [copy]


def _read_instance(path: Path) -> str:
    try:
        return Identity.model_validate_json(path.read_bytes()).instance
    except ValidationError:
        raise BackupError(f"{path.name} of the state folder is damaged: restore it or move it away") from None


def copy_database(source: Path, copy: Path) -> list[Path]:
    """Copy an SQLite database to the file `copy` as of its last committed transaction, while others write to it.
    Returns the copy in a list, empty where there is no database. The copy is readable by its owner alone.

    Raises BackupError where the database cannot be read, is damaged, or is locked by another program for BUSY_S
    seconds, and where the copy cannot be written.
    """
    if not source.exists():
        return []
    try:
        with (
            closing(open_existing(source, busy_s=BUSY_S)) as db,
            closing(sqlite3.connect(copy)) as target,
        ):
            # `backup` would wait for ever for somebody who has the file to himself; a read waits for BUSY_S.
            db.execute("BEGIN")
            db.execute("SELECT count(*) FROM sqlite_master").fetchone()
            db.backup(target)
            check_content(target)
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code == sqlite3.SQLITE_FULL:
            raise BackupError(f"there is no room for a copy of {source} beside the backup") from error
        hint = (
            ": a gateway of an earlier version has it to itself; stop that one first"
            if code == sqlite3.SQLITE_BUSY
            else ""
        )
        raise BackupError(f"{source} cannot be copied ({error}){hint}") from error
    copy.chmod(0o600)
    return [copy]
