"""Which bytes of a file are still to be fetched. Pure."""

from __future__ import annotations

from collections.abc import Iterable

Segment = tuple[int, int]
"""First byte, and the byte after the last one."""


def plan_segments(size: int, done: Iterable[Segment], segment_bytes: int) -> list[Segment]:
    """Return the bytes of a file that no segment of `done` has, as segments of at most `segment_bytes` (at least 1), in
    ascending order. `done` may be in any order, and its segments may touch or overlap. `size`: bytes of the file."""
    missing, position = [], 0
    for start, end in [*sorted(done), (size, size)]:
        while position < min(start, size):
            stop = min(position + segment_bytes, start, size)
            missing.append((position, stop))
            position = stop
        position = max(position, end)
    return missing
