"""The writes that arrive while a copy of a shard is optimized, kept in a file until the copy gets them."""

from __future__ import annotations

import struct
import tempfile
from pathlib import Path
from typing import Final

_LENGTH: Final = struct.Struct("<I")


class WriteLog:
    """A queue of encoded requests in a temporary file, first in, first out. Methods block.

    The file has no name, so a killed program leaves nothing. The owner calls `close`.
    """

    def __init__(self, folder: Path) -> None:
        """Create the file on the disk of `folder`, which must exist. Raises OSError where that fails."""
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - close() closes it
        self._end = 0
        self._read = 0
        self._pending = 0

    @property
    def pending_bytes(self) -> int:
        """Bytes of the requests that `take` has not returned yet, and 4 more for each."""
        return self._end - self._read

    @property
    def pending_count(self) -> int:
        """How many requests `take` has not returned yet."""
        return self._pending

    def append(self, frame: bytes) -> None:
        """Add a request at the end. Raises OSError where the disk is full."""
        self._file.seek(self._end)
        self._file.write(_LENGTH.pack(len(frame)) + frame)
        self._end = self._file.tell()
        self._pending += 1

    def take(self) -> bytes | None:
        """Return the oldest request that was not returned yet, and remove it from the queue; None where it is empty."""
        if self._read == self._end:
            return None
        self._file.seek(self._read)
        (length,) = _LENGTH.unpack(self._file.read(_LENGTH.size))
        frame = self._file.read(length)
        self._read = self._file.tell()
        self._pending -= 1
        return frame

    def close(self) -> None:
        """Close the file, which frees its space. No method may be called afterwards but `close`."""
        self._file.close()
