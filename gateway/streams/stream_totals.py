"""Counts of all resumable streams of a gateway, for its metrics. Pure."""

from __future__ import annotations

from typing import NamedTuple


class StreamTotals(NamedTuple):
    """Counts at one moment. `live`, `ended`, `readers` and `bytes` are current; the others grow since the gateway's
    start."""

    live: int
    ended: int
    """Streams that have ended and are still kept."""
    readers: int
    """Readers of all streams now, the clients of their requests included."""
    bytes: int
    """Memory that counts against `ROUNDHOUSE_STREAMS_MAX_MIB`: kept bytes, overhead, and the reserved room of live
    streams."""
    evicted: int
    """Ended streams removed before their TTL to make room."""
    refused: int
    """Streams refused with `streams_full`."""
    reads: int
    """GET requests that read a stream."""
    recovered: int
    """Streams of an earlier process that were taken over at the start."""
    lost_files: int
    """Streams whose file could not be written, so that they do not survive the gateway."""
