"""Figures of all resumable streams. Pure."""

from __future__ import annotations

from typing import NamedTuple


class StreamTotals(NamedTuple):
    """Counts, since the start where they only grow."""

    live: int
    ended: int
    """Streams that are kept after their end."""
    readers: int
    bytes: int
    """Of memory, room for live ones to grow included."""
    evicted: int
    refused: int
    reads: int
    """How often a stream was asked for again."""
    recovered: int
    """Of an earlier process."""
    lost_files: int
