"""The hashes of a whole file."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

_CHUNK: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class FileHash:
    """The hashes that identify a file's content, in lower-case hex."""

    sha256: str
    git_sha1: str
    """Id of the content as a git object."""


def hash_file(descriptor: int, size: int, check_stop: Callable[[], None]) -> FileHash:
    """Return the hashes of a file's content, read from its beginning to its end. `size`: the file's size in bytes,
    which the git id depends on. Blocks. `check_stop` is called for every MiB; what it raises is raised. Raises OSError.
    """
    sha256 = hashlib.sha256()
    # Not for security: it is the name that git gives the content.
    git_sha1 = hashlib.sha1(f"blob {size}\0".encode(), usedforsecurity=False)
    position = 0
    while chunk := os.pread(descriptor, _CHUNK, position):
        check_stop()
        sha256.update(chunk)
        git_sha1.update(chunk)
        position += len(chunk)
    return FileHash(sha256.hexdigest(), git_sha1.hexdigest())
