"""The writes that arrive while a copy of a shard is optimized, kept in a file until the copy gets them."""

from __future__ import annotations

import struct
import tempfile
from pathlib import Path
from typing import Final

_LENGTH: Final = struct.Struct("<I")


class WriteLog:
    """Keeps encoded requests in their order. The file has no name, so a killed program leaves nothing."""

    def __init__(self, folder: Path) -> None:
        """Make the file in `folder`."""
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - close() closes it
        self._end = 0
        self._read = 0
        self._pending = 0

    @property
    def pending_bytes(self) -> int:
        """Size of what `take` has not returned yet."""
        return self._end - self._read

    @property
    def pending_count(self) -> int:
        """How many requests `take` has not returned yet."""
        return self._pending

    def append(self, frame: bytes) -> None:
        """Note a request."""
        self._file.seek(self._end)
        self._file.write(_LENGTH.pack(len(frame)) + frame)
        self._end = self._file.tell()
        self._pending += 1

    def take(self) -> bytes | None:
        """Return the oldest request that was not returned yet; None: there is none."""
        if self._read == self._end:
            return None
        self._file.seek(self._read)
        (length,) = _LENGTH.unpack(self._file.read(_LENGTH.size))
        frame = self._file.read(length)
        self._read = self._file.tell()
        self._pending -= 1
        return frame

    def close(self) -> None:
        """Remove the file."""
        self._file.close()
