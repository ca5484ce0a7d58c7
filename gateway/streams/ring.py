"""The newest bytes of one stream of server-sent events, by their offset in the whole stream. Pure."""

from __future__ import annotations

import re
from typing import Final

BLOCK_BYTES: Final = 64 * 1024
"""About so much is read at once: a reader that is far behind must not hold up the others."""
_BLANK_LINE: Final = re.compile(rb"\r?\n\r?\n")
_LONGEST_BLANK_LINE: Final = 4


class ByteRing:
    """Bytes `first_offset` to `end_offset` of a stream. What is appended is whole events, so its end is an event's."""

    __slots__ = ("_bytes", "first_offset")

    def __init__(self, first_offset: int = 0) -> None:
        self._bytes = bytearray()
        self.first_offset = first_offset
        """Offset of the first byte that is kept."""

    @property
    def size(self) -> int:
        """How many bytes are kept."""
        return len(self._bytes)

    @property
    def end_offset(self) -> int:
        """Offset after the last byte: how many bytes the stream has had."""
        return self.first_offset + len(self._bytes)

    def append(self, events: bytes) -> None:
        """Add whole events."""
        self._bytes += events

    def read(self, offset: int, most: int = BLOCK_BYTES) -> bytes:
        """Return the bytes from `offset` on, as far as a whole event ends within `most` bytes, but at least to the end
        of one event. Empty: there are none yet. `offset` is `first_offset` at least.
        """
        start = offset - self.first_offset
        assert start >= 0, "the reader has lost its place"
        kept = self._bytes
        end = len(kept)
        if end - start > most:
            end = _find_last_event_end(kept, start, start + most) or _find_event_end(kept, start + most)
        with memoryview(kept) as view:
            return bytes(view[start:end])

    def read_all(self) -> bytes:
        """Return all bytes that are kept."""
        return bytes(self._bytes)

    def drop_oldest(self, count: int) -> None:
        """Drop at least `count` bytes from the beginning: whole events, except of one that is all there is."""
        end = _find_event_end(self._bytes, count)
        if end >= len(self._bytes):
            end = min(count, len(self._bytes))
        del self._bytes[:end]
        self.first_offset += end

    def clear(self) -> None:
        """Drop all bytes."""
        self.first_offset += len(self._bytes)
        self._bytes = bytearray()


def _find_event_end(events: bytearray, position: int) -> int:
    """Return where the first event ends that ends at `position` or later; the end of `events` if none does."""
    for match in _BLANK_LINE.finditer(events, max(0, position - _LONGEST_BLANK_LINE)):
        if match.end() >= position:
            return match.end()
    return len(events)


def _find_last_event_end(events: bytearray, start: int, stop: int) -> int:
    """Return where the last event ends that ends after `start` and at `stop` or before; 0: none does."""
    after_lf = events.rfind(b"\n\n", start, stop) + 2
    after_crlf = events.rfind(b"\n\r\n", max(start, after_lf), stop) + 3
    return max(after_lf if after_lf > 1 else 0, after_crlf if after_crlf > 2 else 0)
