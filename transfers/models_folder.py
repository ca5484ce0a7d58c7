"""The models folder, with the rights and records of downloads."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import logging
import os
import re
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from common.atomic_write import sync_folder
from contract.downloads import DownloadRecord
from contract.errors import RoundhouseError
from contract.model_reference import validate_file_path

log = logging.getLogger(__name__)


def adopt_rights(descriptor: int, like: Path) -> None:
    """Give a new file or folder the owner and the mode of the folder `like`; a file is not made executable.
    `descriptor`: of the new one. If this process may not give files away, the owner stays. Blocks on the disk. Raises
    OSError."""
    wanted, own = like.stat(), os.fstat(descriptor)
    if (own.st_uid, own.st_gid) != (wanted.st_uid, wanted.st_gid):
        with suppress(PermissionError):
            os.fchown(descriptor, wanted.st_uid, wanted.st_gid)
    mode = stat.S_IMODE(wanted.st_mode) & 0o777
    os.fchmod(descriptor, mode if stat.S_ISDIR(own.st_mode) else mode & 0o666)


_ID: Final = re.compile(r"dl_[0-9a-f]{24}", re.ASCII)


def make_download_id(reference: str, *, include_pickle: bool) -> str:
    """Return the id of a download, `dl_` and 24 hex digits: always the same for the same `reference` (in its canonical
    form) and `include_pickle`."""
    digest = hashlib.sha256(f"{reference}\n{include_pickle}".encode()).hexdigest()
    return f"dl_{digest[:24]}"


class RecordStore:
    """The records of downloads, one file each in one folder. The folder and the files have the owner and the rights of
    the folder above, because the controller reads them. Methods block on the disk."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read_all(self) -> list[DownloadRecord]:
        """Return all records, by id. One that cannot be read is left out, with a warning in the log. What a kill left
        of a record that was being written is removed. The folder is made if it is missing. Blocks. Raises OSError."""
        self._make_folder()
        for unfinished in self._folder.glob(".dl_*.new"):
            unfinished.unlink(missing_ok=True)
        records = []
        for path in sorted(self._folder.glob("dl_*.json")):
            try:
                record = DownloadRecord.model_validate_json(path.read_bytes())
            except (OSError, ValidationError) as error:
                log.warning("the record of a download cannot be read: %s: %s", path, error)
                continue
            if record.id == path.stem and _ID.fullmatch(record.id):
                records.append(record)
        return records

    def write(self, record: DownloadRecord) -> None:
        """Store a record, over one with the same id. It is on disk when this returns; a reader sees the old record or
        the new one. `read_all` must have made the folder. Two threads must not write the same record at the same time.
        Blocks. Raises OSError; the old record is then unchanged, or the new one is in place and may be lost by a power
        failure, where the folder itself cannot be synced."""
        path = self._folder / f"{record.id}.json"
        new_path = path.with_name(f".{path.name}.new")
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            with os.fdopen(os.open(new_path, flags, 0o600), "wb") as file:
                file.write(record.model_dump_json(indent=1).encode())
                file.flush()
                adopt_rights(file.fileno(), self._folder)
                os.fsync(file.fileno())
            new_path.replace(path)
            sync_folder(self._folder)
        except OSError:
            new_path.unlink(missing_ok=True)
            raise

    def remove(self, download: str) -> None:
        """Remove a record if it is there. Blocks. Raises OSError."""
        (self._folder / f"{download}.json").unlink(missing_ok=True)

    def _make_folder(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            adopt_rights(descriptor, self._folder.parent)
        finally:
            os.close(descriptor)


OWN_FOLDER: Final = ".roundhouse"
"""Hidden folder of the downloads' own files, in the models folder, so that a rename never crosses file systems."""
_FOLDER_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class ModelsFolder:
    """The models folder, as its only writer uses it. No symbolic link below it is followed, and no file is overwritten.
    A `target` is a path below the folder. Methods block on the disk."""

    def __init__(self, path: Path, keep_free_bytes: int) -> None:
        """Name the folder; the disk is not touched. `keep_free_bytes`: bytes of the disk that downloads leave free."""
        self.path = path
        self.own = path / OWN_FOLDER
        self._keep_free_bytes = keep_free_bytes
        self._lock: int | None = None

    def open(self, holder: str = "") -> None:
        """Make the folder of the downloads' own files, and take its lock, which lasts until `close`. Does not wait for
        the lock. `holder`: who takes it, in words, which `read_holder` then returns. Blocks on the disk.

        Raises:
            BlockingIOError: another process has the lock.
            OSError: the folder cannot be written.
        """
        self.own.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(self.own, _FOLDER_FLAGS)
        try:
            adopt_rights(descriptor, self.path)  # the controller reads the records in it
        finally:
            os.close(descriptor)
        self._lock = os.open(self.own / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.close()
            raise
        with suppress(OSError):  # a full disk must not keep out whoever can remove something
            # Over the last holder's words, and only then cut: a file that is emptied first may not get its room back.
            os.pwrite(self._lock, holder.encode(), 0)
            os.ftruncate(self._lock, len(holder.encode()))

    def read_holder(self) -> str:
        """Return who has the lock, as `open` was told; empty where that cannot be read. Blocks on the disk."""
        try:
            return (self.own / "lock").read_text(errors="replace").strip()
        except OSError:
            return ""

    def close(self) -> None:
        """Give the lock back. Does nothing if the folder is not open."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def measure_free(self) -> int:
        """Return the bytes of the disk that downloads may take, at least 0. Blocks. Raises OSError."""
        return max(0, shutil.disk_usage(self.path).free - self._keep_free_bytes)

    def partial_path(self, download: str, file: str) -> Path:
        """Return the path of the partial file for a file of a download. Its folder is made; the file need not exist.
        `file`: the file's path at the source. Blocks. Raises OSError."""
        folder = self.own / "partial" / download
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        return folder / hashlib.sha256(file.encode()).hexdigest()[:32]

    def remove_partials(self, download: str) -> None:
        """Remove the partial files of a download: what was fetched and is not in its place yet. Does nothing if there
        are none. Blocks. Raises OSError."""
        with suppress(FileNotFoundError):
            shutil.rmtree(self.own / "partial" / download)

    def list_partials(self) -> list[str]:
        """Return the ids, sorted, of the downloads that have partial files: fetched bytes that are not in their place
        yet. Blocks. Raises OSError."""
        with suppress(FileNotFoundError):
            return sorted(path.name for path in (self.own / "partial").iterdir())
        return []

    def find_file(self, target: str) -> os.stat_result | None:
        """Return the status of the file at a path below the models folder; None: nothing is there. Blocks.

        Raises:
            RoundhouseError: `models_file_conflict`: it is no regular file, a link or file is on the way to it, or the
                path is not valid for a model.
            OSError: the folder cannot be read.
        """
        try:
            with self._open_parent(target, makes=False) as (parent, name):
                status = os.stat(name, dir_fd=parent, follow_symlinks=False)
        except FileNotFoundError:
            return None
        if not stat.S_ISREG(status.st_mode):
            raise _conflict(target, "is no regular file")
        return status

    @contextmanager
    def open_file(self, target: str) -> Iterator[int]:
        """Return a context manager that yields a descriptor of the file for reading. It blocks. Raises OSError
        (FileNotFoundError if nothing is there), or RoundhouseError `models_file_conflict` if a link or file is on the
        way to it or the path is not valid for a model."""
        with self._open_parent(target, makes=False) as (parent, name):
            descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def place_file(self, partial: Path, target: str, *, replaces: bool = False) -> os.stat_result:
        """Move a partial file to its place, and return its status. `replaces`: in place of a file that is there. The
        file appears there whole and durably, with the models folder's owner and mode (not executable). Folders on the
        way are made. Blocks.

        Raises:
            RoundhouseError: `models_file_conflict`: something is there, a link or file is on the way to it, or the path
                is not valid for a model. The partial file stays.
            OSError: the folder cannot be written.
        """
        descriptor = os.open(partial, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            adopt_rights(descriptor, self.path)
            os.fsync(descriptor)
            with self._open_parent(target, makes=True) as (parent, name):
                if replaces:
                    os.rename(partial, name, dst_dir_fd=parent)
                else:
                    _move_new(partial, name, parent, target)
                os.fsync(parent)
            return os.fstat(descriptor)
        finally:
            os.close(descriptor)

    def remove_file(self, target: str) -> None:
        """Remove a file, and the folders above it that are empty then. Blocks. Raises OSError (FileNotFoundError if
        nothing is there), or RoundhouseError `models_file_conflict` if a link or file is on the way to it or the path
        is not valid for a model."""
        with self._open_parent(target, makes=False) as (parent, name):
            os.unlink(name, dir_fd=parent)
            os.fsync(parent)
        folders = target.split("/")[:-1]
        while folders:
            try:
                with self._open_parent("/".join(folders), makes=False) as (parent, name):
                    os.rmdir(name, dir_fd=parent)
            except (OSError, RoundhouseError):
                return
            folders.pop()

    @contextmanager
    def _open_parent(self, target: str, *, makes: bool) -> Iterator[tuple[int, str]]:
        """Yield a descriptor of the folder that `target` is in, and the name there. Each folder on the way is opened in
        the one before, so that nobody can put a link in between."""
        if (problem := validate_file_path(target)) is not None or target.partition("/")[0] == OWN_FOLDER:
            raise _conflict(target, f"cannot be a path of a model: {problem or 'it is a folder of the downloads'}")
        *folders, name = target.split("/")
        current = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for count, folder in enumerate(folders, 1):
                below = self._open_folder(current, folder, "/".join(folders[:count]), makes=makes)
                os.close(current)
                current = below
            yield current, name
        finally:
            os.close(current)

    def _open_folder(self, parent: int, name: str, target: str, *, makes: bool) -> int:
        try:
            return os.open(name, _FOLDER_FLAGS, dir_fd=parent)
        except FileNotFoundError:
            if not makes:
                raise
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENOTDIR):
                raise _conflict(target, "is no folder, but a symbolic link or a file") from None
            raise
        with suppress(FileExistsError):  # another download made it
            os.mkdir(name, 0o700, dir_fd=parent)
        descriptor = os.open(name, _FOLDER_FLAGS, dir_fd=parent)
        try:
            adopt_rights(descriptor, self.path)
            os.fsync(parent)
        except OSError:
            os.close(descriptor)
            raise
        return descriptor


def _move_new(partial: Path, name: str, parent: int, target: str) -> None:
    """Move without writing over anything: a link is refused where the name is taken, a rename is not."""
    try:
        os.link(partial, name, dst_dir_fd=parent, follow_symlinks=False)
    except FileExistsError:
        raise _conflict(target, "is there already, and is something else") from None
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK):
            raise
        # A file system without hard links: nobody else writes here, so a look is enough.
        with suppress(FileNotFoundError):
            os.stat(name, dir_fd=parent, follow_symlinks=False)
            raise _conflict(target, "is there already, and is something else") from None
        os.rename(partial, name, dst_dir_fd=parent)
    else:
        partial.unlink()


def _conflict(target: str, problem: str) -> RoundhouseError:
    return RoundhouseError("models_file_conflict", f"{target!r:.300} in the models folder {problem}.")
