"""Files that are replaced as a whole: a crash leaves the old one or the new one. And one way around that."""

from __future__ import annotations

import os
from pathlib import Path


def write_atomic(path: Path, content: bytes, *, durable: bool = True, mode: int = 0o600) -> None:
    """Replace a file, by default readable by its owner alone. Raises OSError; the old file then stands as it was.

    `durable`: on disk before it replaces the old one, so that it outlives a power cut.
    """
    new_path = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        descriptor = os.open(new_path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(descriptor, mode)
            file.write(content)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        new_path.replace(path)
    except OSError:
        new_path.unlink(missing_ok=True)
        raise


def overwrite(path: Path, content: bytes) -> None:
    """Write over a file that exists, which most file systems can do where they have no room for a second one.

    For content below a page only: a killed process leaves the old or the new; a power cut may leave neither. Raises
    OSError; the old content then stands as it was.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.pwrite(descriptor, content, 0)
        os.ftruncate(descriptor, len(content))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
