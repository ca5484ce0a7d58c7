"""Retrieval's documents in a backup: a copy of the catalog, and the originals, which are never copied before they are
archived. Vectors are left out; retrieval makes them again.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from common.private_files import give_to_owner
from common.sqlite_files import check_content
from common.state_files import CATALOG_NAME, ORIGINALS_FOLDER, RESTORED_NAME, RETRIEVAL_FOLDER
from controller.backup.files import copy_database, sync_folder, write_new
from controller.backup.manifest import (
    CATALOG_MEMBER,
    BackupError,
    DamagedArchiveError,
    DocumentsSummary,
    hash_of_original,
)

ASIDE_NAME: Final = f"{RETRIEVAL_FOLDER}.before-restore"
"""Name of the folder that a restore replaced."""
_LIST_NAME: Final = "originals"
_HASH: Final = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class DocumentsCopy:
    """What a backup takes of one retrieval program. Made by `open_documents`, and valid only inside its block."""

    catalog: Path
    """Copy of the catalog."""
    summary: DocumentsSummary
    list_path: Path
    """File with the hash of each original, a line each, ascending."""
    originals_folder: Path

    def list_originals(self) -> Iterator[tuple[str, Path]]:
        """Yield the SHA-256 (hex) and the path of each original, the file that a document was made of, ascending by
        hash. Raises OSError where the list cannot be read."""
        with self.list_path.open() as lines:
            for line in lines:
                sha256 = line.strip()
                yield sha256, self.originals_folder / sha256[:2] / sha256


@contextmanager
def open_documents(folder: Path, work_folder: Path) -> Iterator[DocumentsCopy | None]:
    """Context manager that copies the catalog to the work folder, lists the originals, and keeps retrieval from
    removing any of them within the block. None: there is no catalog. Retrieval may run; entering waits while it removes
    originals.

    `folder`: retrieval's state folder. `work_folder` must exist; the caller removes it. The list is made after the copy
    of the catalog, so it has every original that this copy names. Raises BackupError where the catalog cannot be copied
    or the folder of originals cannot be opened, or OSError where the originals cannot be listed or the work folder
    cannot be written.
    """
    source = folder / RETRIEVAL_FOLDER
    originals_folder = source / ORIGINALS_FOLDER
    if not (source / CATALOG_NAME).exists():
        yield None
        return
    try:
        descriptor = os.open(originals_folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise BackupError(f"{originals_folder} cannot be read: {error.strerror or error}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        [catalog] = copy_database(source / CATALOG_NAME, work_folder / CATALOG_NAME)
        list_path = work_folder / _LIST_NAME
        summary = _write_list(originals_folder, list_path)
        yield DocumentsCopy(catalog, summary, list_path, originals_folder)
    finally:
        os.close(descriptor)


def has_documents(folder: Path) -> bool:
    """Return whether a state folder of retrieval has at least one original, the file of a document. False where the
    folder is missing. Raises OSError."""
    return next(_scan_originals(folder / RETRIEVAL_FOLDER / ORIGINALS_FOLDER), None) is not None


class StagedDocuments:
    """Documents of one archive that are being restored to a state folder of retrieval: collected in a hidden staging
    folder inside it, and put in the place of its documents by `move_into_place`. Before that, its documents stay as
    they are. The maker calls `remove` in the end, also after an error."""

    def __init__(self, folder: Path) -> None:
        """`folder`: retrieval's state folder, which exists when something is taken."""
        self._folder = folder
        self._staged = folder / f".{RETRIEVAL_FOLDER}.{os.getpid()}.new"

    def take_member(self, member: str, chunks: Iterator[bytes]) -> None:
        """Write one member of the archive, the catalog or an original, to the staging folder. `member` is its name in
        the archive, and must be one of these. Raises OSError."""
        if member == CATALOG_MEMBER:
            path = self._staged / CATALOG_NAME
        else:
            sha256 = hash_of_original(member)
            assert sha256 is not None, "a member of documents is the catalog or an original"
            path = self._staged / ORIGINALS_FOLDER / sha256[:2] / sha256
        self._make_folder(path.parent)
        write_new(path, 0o600, chunks, is_synced=False)

    def check_catalog(self) -> None:
        """Check that the staged catalog, which must have been taken, is a sound SQLite database. Raises
        DamagedArchiveError where it is not."""
        try:
            with closing(sqlite3.connect(self._staged / CATALOG_NAME)) as db:
                check_content(db)
        except sqlite3.Error as error:
            raise DamagedArchiveError(f"{CATALOG_MEMBER} is damaged: {error}") from None

    def move_into_place(self) -> Path | None:
        """Sync the disks, and rename the staging folder to the folder of documents. An existing folder of documents is
        renamed first, to a name that ends in `.before-restore`; what an earlier restore left there is deleted. Return
        the new path of that existing folder; None: there was none. Blocks. Raises OSError; the existing folder may then
        have its new name already."""
        self._make_folder(self._staged / ORIGINALS_FOLDER)
        write_new(self._staged / RESTORED_NAME, 0o600, iter(()), is_synced=False)
        os.sync()  # a sync of each of many thousand files takes minutes
        target, aside = self._folder / RETRIEVAL_FOLDER, None
        if target.exists():
            aside = self._folder / ASIDE_NAME
            shutil.rmtree(aside, ignore_errors=True)
            target.rename(aside)
        self._staged.rename(target)
        sync_folder(self._folder)
        return aside

    def remove(self) -> None:
        """Remove what was staged and not moved into place. Nothing staged is no error; raises nothing."""
        shutil.rmtree(self._staged, ignore_errors=True)

    def _make_folder(self, folder: Path) -> None:
        if not folder.exists():
            if folder != self._staged:
                self._make_folder(folder.parent)
            folder.mkdir(mode=0o700)
            give_to_owner(folder)


def _write_list(originals_folder: Path, list_path: Path) -> DocumentsSummary:
    originals = size = 0
    with list_path.open("w") as lines:
        for path, file_bytes in _scan_originals(originals_folder):
            lines.write(f"{path.name}\n")
            originals += 1
            size += file_bytes
    return DocumentsSummary(originals=originals, bytes=size)


def _scan_originals(originals_folder: Path) -> Iterator[tuple[Path, int]]:
    """Yield path and size in bytes of each original, ascending by hash."""
    try:
        folders = sorted(each for each in originals_folder.iterdir() if len(each.name) == 2)
    except FileNotFoundError:
        return
    for folder in folders:
        for path in sorted(folder.iterdir()):
            if _HASH.fullmatch(path.name) and path.name.startswith(folder.name):
                yield path, path.stat().st_size
