"""The files that clients sent, by the hash of their content. A file is durable before the catalog speaks of it."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Final

_HASH: Final = re.compile(r"[0-9a-f]{64}")
_TEMPORARY: Final = "incoming"


class Originals:
    """A folder of originals. Methods wait for the disk, so call them in a thread."""

    def __init__(self, folder: Path) -> None:
        """Create the folder where it is missing, and remove what an earlier process has not finished writing.

        Raises OSError.
        """
        self._folder = folder
        self._incoming = folder / _TEMPORARY
        self._incoming.mkdir(parents=True, exist_ok=True, mode=0o700)
        for path in self._incoming.iterdir():
            path.unlink()
        self._pins: Counter[str] = Counter()
        self._lock = threading.Lock()
        """Held while pins change, and while an original is removed that has none."""

    def begin_original(self) -> IncomingOriginal:
        """Begin a new file. Write its content, and then `keep` it. Raises OSError."""
        return IncomingOriginal(self._incoming / secrets.token_hex(16), self)

    def path_of(self, sha256: str) -> Path:
        """Return where the original of that hash is, or would be. Raises ValueError for what is no hash."""
        if not _HASH.fullmatch(sha256):
            raise ValueError("not a hash")
        return self._folder / sha256[:2] / sha256

    @contextlib.contextmanager
    def pin(self, sha256: str) -> Iterator[None]:
        """Keep an original from being removed within the block: the catalog does not speak of it yet."""
        with self._lock:
            self._pins[sha256] += 1
        try:
            yield
        finally:
            with self._lock:
                self._pins[sha256] -= 1
                if not self._pins[sha256]:
                    del self._pins[sha256]

    def remove_original(self, sha256: str) -> bool:
        """Remove an original that the catalog does not need. False: it is pinned, and stays. A missing one is no error.

        Raises OSError.
        """
        with self._lock:
            if self._pins.get(sha256):
                return False
            self.path_of(sha256).unlink(missing_ok=True)
        return True

    def list_originals(self) -> Iterator[str]:
        """Yield the hashes of all files, in no order."""
        for path in self._folder.glob("??/*"):
            if _HASH.fullmatch(path.name):
                yield path.name


class IncomingOriginal:
    """A file that is being received. Use it as a context manager: without `keep` it is removed at the end."""

    def __init__(self, path: Path, originals: Originals) -> None:
        self._path = path
        self._originals = originals
        self._hash = hashlib.sha256()
        self._file = path.open("xb", buffering=0)
        self.bytes = 0
        """Bytes written so far."""

    def __enter__(self) -> IncomingOriginal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._file.close()
        self._path.unlink(missing_ok=True)

    def write(self, part: bytes) -> None:
        """Append to the file. Raises OSError, where the disk is full with errno ENOSPC."""
        view = memoryview(part)
        while view:
            view = view[self._file.write(view) :]
        self._hash.update(part)
        self.bytes += len(part)

    @property
    def sha256(self) -> str:
        """Hash of what was written so far, in hex."""
        return self._hash.hexdigest()

    def keep(self) -> str:
        """Make the file durable under its hash, and return the hash. Raises OSError."""
        os.fsync(self._file.fileno())
        target = self._originals.path_of(self.sha256)
        target.parent.mkdir(exist_ok=True, mode=0o700)
        self._path.replace(target)
        for folder in (target.parent, target.parent.parent):
            _sync_folder(folder)
        return self.sha256


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
