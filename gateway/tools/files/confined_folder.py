"""One folder, and nothing outside of it: paths are walked part by part, no symbolic link is followed, and no file is
opened that has a second name (a hard link).

Each part is opened relative to the one before (`openat` with `O_NOFOLLOW`), so a link or a folder that is put in the
way meanwhile leads nowhere else. Only the standard library: it runs in a process of its own.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterator
from typing import Final

DEEPEST: Final = 32
"""Folders within each other."""
LONGEST_PATH: Final = 1024
"""Characters."""
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_NEW_FILE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class FileProblem(Exception):  # noqa: N818 - it is a problem of the path, which is told to the model
    """What was asked for cannot be done. The text says why, in words for the model that asked."""


def split_path(path: str) -> list[str]:
    """Return the parts of a path within the folder, without empty ones and `.`; none: the folder itself. Nothing is
    looked at.

    Raises:
        FileProblem: it begins with `/`, has a part `..`, a NUL, more than `LONGEST_PATH` characters or `DEEPEST` parts.
    """
    if len(path) > LONGEST_PATH or "\0" in path:
        raise FileProblem("This is no path.")
    if path.startswith("/"):
        raise FileProblem("The path begins with `/`. Paths are relative to the folder of this tool.")
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise FileProblem("The path has `..`, which leads out of a folder.")
    if len(parts) > DEEPEST:
        raise FileProblem(f"The path has more than {DEEPEST} parts.")
    return parts


class ConfinedFolder:
    """Opens files and folders within one folder, by paths that `split_path` made."""

    def __init__(self, root: str) -> None:
        """`root`: the declared folder, which is opened anew for each call; it may itself be named by a link, for the
        operator declared it."""
        self._root = root

    @contextlib.contextmanager
    def open_folder(self, parts: list[str], *, creates: bool = False) -> Iterator[int]:
        """Open a folder, and give its descriptor, which is closed with the context. `creates`: parts that are missing
        are made, and stay.

        Raises:
            FileProblem: it is not there, is no folder, or a part of its path is a link; or the system refuses.
        """
        descriptor = self._open_root()
        try:
            for number, part in enumerate(parts, start=1):
                following = _open_part(descriptor, part, "/".join(parts[:number]), creates=creates)
                os.close(descriptor)
                descriptor = following
            yield descriptor
        finally:
            os.close(descriptor)

    @contextlib.contextmanager
    def open_file(self, parts: list[str]) -> Iterator[int]:
        """Open a regular file for reading, and give its descriptor, which is closed with the context.

        Raises:
            FileProblem: it is not there, or is a folder, a link, a file with several hard links, a device, a pipe or a
            socket; or the system refuses.
        """
        if not parts:
            raise FileProblem("The path names the folder itself, and no file.")
        with self.open_folder(parts[:-1]) as folder:
            descriptor = open_regular_file(folder, parts[-1], "/".join(parts))
            try:
                yield descriptor
            finally:
                os.close(descriptor)

    def write_file(self, parts: list[str], data: bytes, *, may_replace: bool) -> bool:
        """Write a whole file, and wait until it is on the disk: whoever reads it sees the old content or the new one.
        Missing folders are made. A file that is replaced keeps its permissions; a new one may be read by everybody.

        Returns whether a file was replaced. If the process is killed meanwhile, a file `.<hex digits>.tmp` may stay.

        Raises:
            FileProblem: there is something at the path which is no regular file or has several hard links, or a file
                although `may_replace` is False; or the system refuses.
        """
        if not parts:
            raise FileProblem("The path names the folder itself, and no file.")
        name, shown = parts[-1], "/".join(parts)
        with self.open_folder(parts[:-1], creates=True) as folder:
            mode = _find_mode(folder, name, shown)
            if mode is not None and not may_replace:
                raise FileProblem(f"{shown} exists. Set `replace` to write it anew.")
            temporary = f".{secrets.token_hex(8)}.tmp"
            try:
                _write_new_file(folder, temporary, data, 0o644 if mode is None else mode)
                # The name itself is replaced: a link that was put there meanwhile is not followed.
                os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
                os.fsync(folder)
            except OSError as error:
                raise FileProblem(f"{shown} cannot be written: {error.strerror}.") from None
            finally:
                with contextlib.suppress(OSError):
                    os.unlink(temporary, dir_fd=folder)
        return mode is not None

    def _open_root(self) -> int:
        try:
            return os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise FileProblem(f"The folder of this tool cannot be opened: {error.strerror}.") from None


def open_regular_file(folder: int, name: str, shown: str) -> int:
    """Open a regular file in the folder of this descriptor for reading, and return its descriptor, which the caller
    closes. `name`: one part of a path. `shown`: its path in errors.

    Raises FileProblem: it is not there, is no regular file (also a link), has several hard links, or must not be read.
    """
    try:
        # Opening a device or a pipe may already do something, so it is looked at before, and again after.
        _check_regular(os.stat(name, dir_fd=folder, follow_symlinks=False), shown)
        descriptor = os.open(name, _FILE, dir_fd=folder)
    except OSError as error:
        raise _path_problem(error, shown) from None
    try:
        _check_regular(os.fstat(descriptor), shown)
    except FileProblem:
        os.close(descriptor)
        raise
    return descriptor


def _check_regular(status: os.stat_result, shown: str) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise FileProblem(f"{shown} is a folder.")
    if stat.S_ISLNK(status.st_mode):
        raise FileProblem(f"{shown} is a link, and links are not followed.")
    if not stat.S_ISREG(status.st_mode):
        raise FileProblem(f"{shown} is no regular file.")
    if status.st_nlink > 1:
        # The other name may be anywhere on this disk: a hard link into the folder would lead out of it.
        raise FileProblem(f"{shown} has a second name (a hard link), maybe outside this folder, and is not opened.")


def _open_part(folder: int, part: str, shown: str, *, creates: bool) -> int:
    try:
        if creates:
            with contextlib.suppress(FileExistsError):
                os.mkdir(part, 0o755, dir_fd=folder)
        return os.open(part, _FOLDER, dir_fd=folder)
    except OSError as error:
        raise _path_problem(error, shown) from None


def _path_problem(error: OSError, shown: str) -> FileProblem:
    if error.errno == errno.ENOENT:
        return FileProblem(f"{shown} does not exist.")
    if error.errno in (errno.ELOOP, errno.ENOTDIR):
        return FileProblem(f"{shown} is no folder, or a link, and links are not followed.")
    return FileProblem(f"{shown} cannot be opened: {error.strerror}.")


def _find_mode(folder: int, name: str, shown: str) -> int | None:
    """Return the permissions of the file that is there; None: there is none."""
    try:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _path_problem(error, shown) from None
    _check_regular(status, shown)
    return stat.S_IMODE(status.st_mode) & 0o777


def _write_new_file(folder: int, name: str, data: bytes, mode: int) -> None:
    descriptor = os.open(name, _NEW_FILE, 0o600, dir_fd=folder)
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        os.fchmod(descriptor, mode)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
