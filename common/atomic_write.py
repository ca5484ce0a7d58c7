"""Writing whole files so that a crash leaves the old content or the new one."""

from __future__ import annotations

import os
from pathlib import Path


def write_atomic(path: Path, content: bytes, *, durable: bool = True, mode: int = 0o600) -> None:
    """Replace a file, or make it. Raises OSError; the old file is then unchanged.

    `durable`: the content is on disk before it replaces the old one, so that it outlives a power cut. `mode`: the
    permissions of the new file; by default its owner alone may read it.
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
    """Write over an existing file in place. Use it where a full disk has no room for the second file of `write_atomic`.

    The content must be shorter than a page: then a killed process leaves the old or the new content. A power cut may
    leave neither. Raises OSError; the old content is then unchanged.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.pwrite(descriptor, content, 0)
        os.ftruncate(descriptor, len(content))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
