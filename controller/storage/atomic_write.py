"""Files that are replaced as a whole: a crash leaves the old one or the new one."""

from __future__ import annotations

import os
from pathlib import Path


def write_atomic(path: Path, content: bytes, *, durable: bool = True) -> None:
    """Replace a file, readable by its owner alone. Raises OSError; the old file then stands as it was.

    `durable`: on disk before it replaces the old one, so that it outlives a power cut.
    """
    new_path = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        descriptor = os.open(new_path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        new_path.replace(path)
    except OSError:
        new_path.unlink(missing_ok=True)
        raise
