"""An SQLite file as a place in a folder: who holds it, whether it is the one that was opened, what lies beside it."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Final, NamedTuple

_SIDE_FILES: Final = ("-wal", "-shm", "-journal")


class FileIdentity(NamedTuple):
    """Tells a file from any other that has its name."""

    device: int
    inode: int


def identify_file(path: Path) -> FileIdentity | None:
    """Which file has this name; None: none has. Raises OSError where that cannot be said."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return FileIdentity(status.st_dev, status.st_ino)


def remove_side_files(path: Path) -> None:
    """Remove what SQLite kept beside a file that has left its place. Raises OSError.

    Whatever comes to that place would take it for its own.
    """
    for suffix in _SIDE_FILES:
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def hold_file(path: Path) -> int:
    """Hold a file that exists for one program; the descriptor holds it, and so ends with the process.

    The lock is flock's, which SQLite does not use: others may still read the file through SQLite. To be closed after
    every connection of this process to the file, for that close gives SQLite's own locks back.

    Raises BlockingIOError: another program holds it. Raises OSError.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
