"""Files and folders that their owner alone may read."""

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
