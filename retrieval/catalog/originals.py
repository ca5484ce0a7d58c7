"""The files that clients sent, by the hash of their content. A file is durable before the catalog speaks of it."""

from __future__ import annotations

import contextlib
import fcntl
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

from common.atomic_write import PRIVATE_MODE, sync_folder

_HASH: Final = re.compile(r"[0-9a-f]{64}")
_TEMPORARY: Final = "incoming"


class Originals:
    """The folder of the files that clients sent, one per content, named by its SHA-256. Methods block on the disk, so
    call them in a thread; several threads may. One object, in one process, per folder."""

    def __init__(self, folder: Path) -> None:
        """Create the folder where it is missing, and remove the unfinished files of an earlier process. Blocks.

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
        self._postponed: set[str] = set()

    def begin_original(self) -> IncomingOriginal:
        """Create an empty file to receive an original of unknown hash, and return it. Use it as a context manager: in
        the block, `write` the content, then call `keep` with the hash pinned. Blocks. Raises OSError."""
        return IncomingOriginal(self._incoming / secrets.token_hex(16), self)

    def path_of(self, sha256: str) -> Path:
        """Return where the original of that hash is, or would be: the disk is not asked. Raises ValueError for what is
        not 64 lower-case hex digits."""
        if not _HASH.fullmatch(sha256):
            raise ValueError("not a hash")
        return self._folder / sha256[:2] / sha256

    @contextlib.contextmanager
    def pin(self, sha256: str) -> Iterator[None]:
        """Return a context manager in whose block `remove_original` leaves the original of that hash alone. The block
        must contain `keep` and the commit of the version or file that needs the original. The original need not exist.
        Several pins of one hash may be open at once. Does not touch the disk, but may wait for a `remove_original` in
        another thread."""
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
        """Remove an original, and return True; also where it is missing. The caller has made sure that the catalog does
        not need it, and that this does not change meanwhile.

        False: the original stays, because it is pinned, or because a backup is reading the folder. In the second case
        its hash is remembered for `take_postponed`. Blocks. Raises OSError, and ValueError for a string that is not 64
        lower-case hex digits.
        """
        path = self.path_of(sha256)
        with self._lock:
            if self._pins.get(sha256):
                return False
            if not self._remove_unread(path):
                self._postponed.add(sha256)
                return False
        return True

    def take_postponed(self) -> list[str]:
        """Return the hashes that `remove_original` left because a backup was reading the folder, in no order, and
        forget them. Nothing is removed: the caller asks again whether the catalog needs each, and removes the others.
        Does not touch the disk, but may wait for a `remove_original` in another thread."""
        with self._lock:
            postponed = list(self._postponed)
            self._postponed.clear()
        return postponed

    def _remove_unread(self, path: Path) -> bool:
        descriptor = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink(missing_ok=True)
        except BlockingIOError:
            return False
        finally:
            os.close(descriptor)
        return True

    def list_originals(self) -> Iterator[str]:
        """Yield the hashes of all originals in the folder, in no order; unfinished files are not among them. The folder
        is read during the iteration, which blocks, and may raise OSError."""
        for path in self._folder.glob("??/*"):
            if _HASH.fullmatch(path.name):
                yield path.name


class IncomingOriginal:
    """A file that is being received, made by `Originals.begin_original`. Use it as a context manager: at the end of the
    block, the file is closed, and removed unless it was kept. Methods block on the disk."""

    def __init__(self, path: Path, originals: Originals) -> None:
        self._path = path
        self._originals = originals
        self._hash = hashlib.sha256()
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._file = os.fdopen(os.open(path, flags, PRIVATE_MODE), "wb", buffering=0)
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
        """Append `part` to the file, whole, and count it in `bytes` and `sha256`. Blocks. Raises OSError (errno ENOSPC:
        the disk is full); the file may then hold bytes of `part` that are not counted, so do not write or keep it."""
        view = memoryview(part)
        while view:
            view = view[self._file.write(view) :]
        self._hash.update(part)
        self.bytes += len(part)

    @property
    def sha256(self) -> str:
        """SHA-256 of the bytes that were written so far, in lower-case hex."""
        return self._hash.hexdigest()

    def keep(self) -> str:
        """Move the file to its place among the originals, durably, and return its hash. Replaces an original of the
        same hash. Call once, after the last `write`, with the hash pinned (`Originals.pin`). Blocks. Raises OSError;
        the original may then be in its place or not."""
        os.fsync(self._file.fileno())
        target = self._originals.path_of(self.sha256)
        target.parent.mkdir(exist_ok=True, mode=0o700)
        self._path.replace(target)
        for folder in (target.parent, target.parent.parent):
            sync_folder(folder)
        return self.sha256
