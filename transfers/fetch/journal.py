"""The journal beside a partial file: whose content it is, and which ranges are on disk."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from transfers.fetch.segments import Segment


class FetchJournal:
    """The journal of one partial file: the content's identity, then one line per range that is done. A line that was
    cut off by a kill is left out. Methods block on the disk; `add` may be called from several threads."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()

    def read(self, identity: str, size: int) -> list[Segment]:
        """Return the ranges that are done, in the order in which they were noted. Empty if there is no journal, or one
        of other content (another `identity`). A range beyond `size` bytes is left out. Blocks. Raises OSError."""
        try:
            text = self._path.read_text("utf-8", errors="replace")
        except FileNotFoundError:
            return []
        lines = text.split("\n")[:-1]  # what follows the last newline is cut off
        if not lines or lines[0] != identity:
            return []
        found = (_parse_line(line) for line in lines[1:])
        return [each for each in found if each is not None and 0 <= each[0] < each[1] <= size]

    def begin(self, identity: str) -> None:
        """Write a journal without ranges over whatever is there. `identity`: one line of text. Durable on return.
        Blocks. Raises OSError."""
        self._write(f"{identity}\n", os.O_TRUNC)

    def add(self, segment: Segment) -> None:
        """Note a range whose bytes are on disk. Durable on return. Blocks. Raises OSError."""
        with self._lock:
            # A line of its own, whatever a kill left of the one before.
            self._write(f"\n{segment[0]} {segment[1]}\n", os.O_APPEND)

    def remove(self) -> None:
        """Remove the file if it is there. Blocks. Raises OSError."""
        self._path.unlink(missing_ok=True)

    def _write(self, text: str, flag: int) -> None:
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | flag, 0o600)
        try:
            data = text.encode()
            while data:
                data = data[os.write(descriptor, data) :]
            os.fdatasync(descriptor)
        finally:
            os.close(descriptor)


def _parse_line(line: str) -> Segment | None:
    start, _, end = line.partition(" ")
    if not (start.isascii() and start.isdigit() and end.isascii() and end.isdigit()):
        return None
    return int(start), int(end)
