"""Ring buffer with the newest bytes of one event stream, addressed by offset in the whole stream. Pure."""

from __future__ import annotations

import re
from typing import Final

BLOCK_BYTES: Final = 64 * 1024
"""Bytes that one `read` returns at most, unless one event is longer. Bounds the time that a reader far behind takes
from the event loop."""
_BLANK_LINE: Final = re.compile(rb"\r?\n\r?\n")
_LONGEST_BLANK_LINE: Final = 4


class ByteRing:
    """The kept bytes of a stream: offsets `first_offset` (inclusive) to `end_offset` (exclusive). It does not limit
    itself: the owner calls `drop_oldest`. Its end is the end of an event, since only whole events are appended."""

    __slots__ = ("_bytes", "first_offset")

    def __init__(self, first_offset: int = 0) -> None:
        self._bytes = bytearray()
        self.first_offset = first_offset
        """Offset of the first kept byte; grows when old bytes are dropped."""

    @property
    def size(self) -> int:
        """Number of kept bytes."""
        return len(self._bytes)

    @property
    def end_offset(self) -> int:
        """Offset after the last byte: the length of the stream so far, dropped bytes included."""
        return self.first_offset + len(self._bytes)

    def append(self, events: bytes) -> None:
        """Append whole events. The caller must not append a part of an event."""
        self._bytes += events

    def read(self, offset: int, most: int = BLOCK_BYTES) -> bytes:
        """Return bytes from `offset` on, up to the end of the last event that ends within `most` bytes; a single longer
        event is returned whole. Empty: `offset` is the end of the stream so far.

        `offset` must be at least `first_offset` (AssertionError otherwise), and may lie within an event.
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
        """Return a copy of all kept bytes."""
        return bytes(self._bytes)

    def drop_oldest(self, count: int) -> None:
        """Drop the oldest whole events that together have at least `count` bytes. Where this would drop everything,
        drop exactly `count` bytes instead, and so a part of the last event."""
        end = _find_event_end(self._bytes, count)
        if end >= len(self._bytes):
            end = min(count, len(self._bytes))
        del self._bytes[:end]
        self.first_offset += end

    def clear(self) -> None:
        """Drop all bytes. `end_offset` stays."""
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
