"""The writes that arrive while a copy of a shard is optimized, kept in a file until the copy gets them."""

from __future__ import annotations

import errno
import struct
import tempfile
from pathlib import Path
from typing import Final

_LENGTH: Final = struct.Struct("<I")


class WriteLog:
    """A queue of encoded requests in a temporary file, first in, first out. `append` and `take` block on the disk.

    The file has no name, so a killed program leaves nothing. The owner calls `close`.
    """

    def __init__(self, folder: Path) -> None:
        """Create the file on the disk of `folder`, which must exist. Blocks. Raises OSError if that fails."""
        # Without a buffer, so that a full disk fails the request that does not fit, and neither `take` nor `close`.
        self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115 - close() closes it
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
        """Add a request at the end of the queue. Blocks: writes to the file. Raises OSError if the disk is full or
        fails; the request is then not in the queue, and the queue stays usable."""
        record = _LENGTH.pack(len(frame)) + frame
        self._file.seek(self._end)
        left = memoryview(record)
        while left:
            left = left[self._file.write(left) :]
        self._end += len(record)
        self._pending += 1

    def take(self) -> bytes | None:
        """Remove the oldest request from the queue, and return it; None if the queue is empty. Blocks: reads the file.
        Raises OSError if the file cannot be read; the request then stays in the queue."""
        if self._read == self._end:
            return None
        self._file.seek(self._read)
        (length,) = _LENGTH.unpack(self._read_bytes(_LENGTH.size))
        frame = self._read_bytes(length)
        self._read += _LENGTH.size + length
        self._pending -= 1
        return frame

    def close(self) -> None:
        """Close the file, which frees its space. No method may be called afterwards but `close`."""
        self._file.close()

    def _read_bytes(self, size: int) -> bytes:
        parts = []
        while size:
            part = self._file.read(size)
            if not part:
                raise OSError(errno.EIO, "the log of writes became shorter")
            parts.append(part)
            size -= len(part)
        return b"".join(parts)
