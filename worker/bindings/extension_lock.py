"""A torch extension that is compiled when it is first imported: by one worker at a time, whatever a killed one left."""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from worker.errors import LoadError


@contextmanager
def lock_extension(name: str) -> Iterator[None]:
    """Held around the import. torch waits for ever for the `lock` file that a killed compile left in the extension's
    folder; a lock of ours ends with its process, so with it held, that file is nobody's. Raises LoadError."""
    own_root = os.environ.get("TORCH_EXTENSIONS_DIR")
    python = f"py{sys.version_info.major}{sys.version_info.minor}"
    root = Path(own_root or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "torch_extensions"))
    try:
        root.mkdir(parents=True, exist_ok=True)
        with (root / f"{name}.roundhouse").open("w") as lock_file:
            fcntl.flock(lock_file, fcntl.LOCK_EX)
            for stale_lock in root.glob(f"{name}/lock" if own_root else f"{python}*/{name}/lock"):
                stale_lock.unlink(missing_ok=True)
            yield
    except OSError as error:
        raise LoadError(f"cannot use {root}, where torch keeps what it compiles: {error.strerror or error}") from None
