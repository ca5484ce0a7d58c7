"""An SQLite file as a place in a folder: whether what was opened is still there, and what lies beside it."""

from __future__ import annotations

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
