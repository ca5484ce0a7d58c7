"""What the process gives up at its start, before it talks to anybody: root's rights, and resources."""

from __future__ import annotations

import logging
import os
import resource
from pathlib import Path
from typing import Final

log = logging.getLogger(__name__)

MEMORY_BYTES: Final = 4 * 1024**3
"""Largest address space of the process, in bytes. Downloads are written as they come, so that it needs far less."""
OPEN_FILES: Final = 1024


def limit_resources() -> None:
    """Limit address space and open files of this process, and write no core files, which may hold a token. A limit that
    is lower already stays. Raises OSError or ValueError if the kernel refuses."""
    for kind, limit in (
        (resource.RLIMIT_AS, MEMORY_BYTES),
        (resource.RLIMIT_NOFILE, OPEN_FILES),
        (resource.RLIMIT_CORE, 0),
    ):
        hard = resource.getrlimit(kind)[1]
        lowest = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(kind, (lowest, lowest))


def become_owner(models: Path, writable: Path | None) -> None:
    """If this process is root, become the owner of the models folder, for good. Downloaded files then belong to the
    operator, and a fault in the code that reads strangers' bytes does not have root's rights. Does nothing if the
    folder belongs to root, or the process is not root.

    `writable`: a folder that belongs to root so far; it is created, and its owner and that of the files in it changed,
    before. None: there is none. Blocks on the disk. A container needs the capabilities CHOWN, SETUID and SETGID for
    this.

    Raises:
        OSError: the models folder cannot be looked at, or the kernel refuses.
    """
    owner = models.stat()
    if os.geteuid() != 0 or owner.st_uid == 0:
        return
    if writable is not None:
        writable.mkdir(parents=True, exist_ok=True)
        for path in (writable, *writable.iterdir()):
            os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)
    os.setgroups([])
    os.setresgid(owner.st_gid, owner.st_gid, owner.st_gid)
    os.setresuid(owner.st_uid, owner.st_uid, owner.st_uid)
    log.info("running as the owner of %s: user %d, group %d", models, owner.st_uid, owner.st_gid)
