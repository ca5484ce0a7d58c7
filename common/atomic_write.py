"""Files that are replaced whole, and files that only their owner reads."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

PRIVATE_MODE: Final = 0o600
"""Permissions of a file with a secret."""
OTHERS: Final = 0o007
"""What users may do who are neither the owner nor in the group."""


def narrow_file(path: Path) -> None:
    """Take a regular file from everybody but its owner (`PRIVATE_MODE`) if other users of the host may use it. A file
    that only its group may use besides stays as it is: an operator shares it so. Never raises; a symbolic link, and a
    file that is missing or belongs to another user, stays. Blocks."""
    with suppress(OSError):
        # Not by a descriptor: closing one would give up this process' locks of a database.
        mode = path.lstat().st_mode
        if stat.S_ISREG(mode) and mode & OTHERS:
            path.chmod(PRIVATE_MODE)


def narrow_files(folder: Path) -> None:
    """Call `narrow_file` for each file directly in a folder that Roundhouse keeps its state in. Never raises. Blocks.
    For a program's start: earlier versions, restored backups and copies may have left files that others can read."""
    with suppress(OSError):
        for path in folder.iterdir():
            narrow_file(path)


def is_open_to_others(folder: Path) -> bool:
    """Return whether other users of the host may list, enter or change a folder. False if it cannot be looked at."""
    try:
        return bool(folder.stat().st_mode & OTHERS)
    except OSError:
        return False


def give_to_owner(path: Path) -> None:
    """Give a file or folder to the owner (user and group) of the folder that it is in, if this program runs as root;
    otherwise do nothing. Raises OSError, also where root may not give files away (capability CHOWN)."""
    owner = path.parent.stat()
    if os.geteuid() == 0 and (owner.st_uid, owner.st_gid) != (0, 0):
        os.chown(path, owner.st_uid, owner.st_gid)


def write_atomic(
    path: Path, content: bytes, *, durable: bool = True, mode: int = PRIVATE_MODE, is_given_to_owner: bool = False
) -> None:
    """Replace a file, or create it: other processes see the old content or the new one, never a part. Blocks.

    `durable`: the content is on disk before it replaces the old one, so that a power cut leaves one of the two. `mode`:
    the permissions of the new file, whatever those of the old one and the umask are; by default its owner alone may
    read it. `is_given_to_owner`: see `give_to_owner`. The file's folder must exist. A symbolic link at `path` is itself
    replaced. Raises OSError if the file cannot be written; the old file is then unchanged. Threads must not write the
    same path at the same time. A process that is killed in between may leave `.NAME.PID.new` beside the file.
    """
    new_path = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        descriptor = os.open(new_path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, PRIVATE_MODE)
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(descriptor, mode)
            if is_given_to_owner:
                give_to_owner(new_path)
            file.write(content)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        new_path.replace(path)
    except OSError:
        new_path.unlink(missing_ok=True)
        raise


def sync_folder(folder: Path) -> None:
    """Sync a folder to disk, so that names and renames in it survive a power failure. Blocks. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def overwrite(path: Path, content: bytes) -> None:
    """Write over an existing file in place, and wait until the content is on disk.

    Use it where a full disk has no room for the second file of `write_atomic`.

    The content must be shorter than a page (4 KiB), which is not checked. A process that is killed in between may leave
    the new content followed by the rest of a longer old one, and a power cut may leave neither. Raises OSError if the
    file does not exist or cannot be written; the old content is unchanged unless the error comes after the write.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.pwrite(descriptor, content, 0)
        os.ftruncate(descriptor, len(content))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
