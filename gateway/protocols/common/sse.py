"""Finds where server-sent events start and end. Pure."""

from __future__ import annotations

import re

from gateway.protocols.common.dialect import HOLD_LIMIT, EventTooLongError

_BLANK_LINE = re.compile(rb"\r?\n\r?\n")


class EventCutter:
    """Base of classes that cut a byte stream into whole events, wherever its chunks are cut. Line ends are LF or CRLF.
    One instance serves one stream and holds the bytes of the event that is not whole yet."""

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held = b""

    def _cut_events(self, chunk: bytes) -> bytes:
        """Return the events that `chunk` completes, in one piece, and hold the rest.

        Raises:
            EventTooLongError: an event does not end within `HOLD_LIMIT` bytes.
        """
        held_bytes = self._held
        if not held_bytes and chunk.endswith(b"\n\n"):
            return chunk
        buffer = held_bytes + chunk
        # The held bytes contain no end of an event, so the first one starts within their last 3 bytes at the earliest.
        end = end_of_events(buffer, max(0, len(held_bytes) - 3))
        if len(buffer) - end > HOLD_LIMIT:
            raise EventTooLongError(f"an event of more than {HOLD_LIMIT} bytes")
        self._held = buffer[end:]
        return buffer[:end]

    def _take_held(self) -> bytes:
        """Return the held bytes, closed by a blank line, and forget them. They are the last event of a stream that left
        the blank line out, or a part of an event."""
        held_bytes, self._held = self._held, b""
        held_bytes = held_bytes.rstrip(b"\r\n")
        return held_bytes + b"\n\n" if held_bytes else b""


def split_events(events: bytes) -> list[bytes]:
    """Return the events, each with the blank line that ends it; the last one may lack it. The parts joined are
    `events` again; empty bytes give an empty list."""
    ends = [match.end() for match in _BLANK_LINE.finditer(events)]
    starts = [0, *ends]
    return [part for start, end in zip(starts, [*ends, len(events)], strict=True) if (part := events[start:end])]


def last_event(events: bytes) -> bytes:
    """Return the last event that is neither empty nor comments alone, with its blank line if it has one; empty bytes
    if there is none."""
    end = len(events)
    while end:
        start = end_of_events(events[:end].rstrip())
        event = events[start:end]
        if any(line and not line.startswith(b":") for line in event.splitlines()):
            return event
        end = start
    return b""


def data_of(event: bytes) -> bytes:
    """Return the data of an event: the values of its `data:` lines, joined by LF. Empty if it has none."""
    return b"\n".join(line[5:].removeprefix(b" ") for line in event.splitlines() if line.startswith(b"data:"))


def end_of_events(buffer: bytes, start: int = 0) -> int:
    """Return the offset behind the last blank line in `buffer`, where the last whole event ends; 0 if there is none.

    Only line ends at or behind the offset `start` are searched.
    """
    # The line before the blank one ends with "\n" in both styles, so these two cover them.
    after_lf = buffer.rfind(b"\n\n", start) + 2
    after_crlf = buffer.rfind(b"\n\r\n", start) + 3
    return max(after_lf if after_lf > 1 else 0, after_crlf if after_crlf > 2 else 0)
