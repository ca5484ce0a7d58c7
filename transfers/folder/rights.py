"""Owner and rights of what downloads make: those of the folder that it is made in."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path


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
