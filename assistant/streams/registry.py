"""Registry of all resumable streams: ids by tenant, memory limits, TTL. Pure: the time is an argument.

Each stream belongs to one tenant. No method reveals another tenant's streams: looking up another tenant's id takes the
same steps as looking up an id that nobody has.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import takewhile
from math import inf
from typing import Final, NamedTuple

from assistant.streams.stream import ResumableStream, StreamState, stream_replaced, stream_stopped, streams_full
from gateway.protocols.common.stream_ids import list_prefixes


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


OVERHEAD_BYTES: Final = 4 * 1024
"""Bytes of memory that each stream is charged in addition to its events."""
ROOM_STEP_BYTES: Final = 64 * 1024
"""Step in bytes by which the room of a live stream grows, so that not every event asks the registry."""

REMEMBERED_REMOVALS: Final = 10_000
"""Most ids of removed streams that are remembered, so that a repeated DELETE succeeds."""


class StreamRegistry:
    """All streams of a gateway, which together use at most `max_bytes`. Each live stream reserves room. When a live
    stream needs more room or a new stream begins, the streams that ended longest ago are removed first. One per
    gateway, used from the event loop alone."""

    def __init__(self, *, ring_bytes: int, max_bytes: int, ttl_s: float) -> None:
        """`ring_bytes`: most bytes that are kept of one stream, its newest. `max_bytes`: most bytes of all. `ttl_s`:
        seconds that a stream is kept after its end."""
        self.ring_bytes = ring_bytes
        self.ttl_s = ttl_s
        self._max_bytes = max_bytes
        self._tenants: dict[str, dict[str, ResumableStream]] = {}
        self._variants: dict[tuple[str, str], set[str]] = {}
        """Key: tenant and id. Value: the tenant's ids that begin with that id and `::`."""
        self._ended: dict[ResumableStream, None] = {}
        """Ended streams, the one that ended longest ago first."""
        self._removed: dict[tuple[str, str], None] = {}
        """Tenant and id of recently removed streams, the longest removed first."""
        self.used_bytes = 0
        """Bytes charged for all streams: overhead, and the room of live streams or the size of ended ones."""
        self.live_count = 0
        """Number of live streams."""
        self.evicted_count = 0
        """Ended streams removed before their TTL to make room, since the start."""
        self.refused_count = 0
        """Streams refused with `streams_full`, since the start."""

    @property
    def ended_count(self) -> int:
        """Number of streams that have ended and are still kept."""
        return len(self._ended)

    def find_stream(self, tenant: str, stream_id: str) -> ResumableStream | None:
        """Return the tenant's stream with exactly this id, live or ended. None: there is none."""
        return self._tenants.get(tenant, {}).get(stream_id)

    def find_variants(self, tenant: str, stream_id: str) -> Sequence[ResumableStream]:
        """Return the tenant's streams with the id `stream_id` or `stream_id::...`: the one with exactly this id first,
        then those with a model, sorted by id. Empty: there is none."""
        streams = self._tenants.get(tenant, {})
        ids = sorted(self._variants.get((tenant, stream_id), ()))
        if stream_id in streams:
            ids.insert(0, stream_id)
        return [streams[each] for each in ids]

    def open_stream(
        self, tenant: str, stream_id: str, *, model: str, path: str, request_id: str, now: float
    ) -> ResumableStream:
        """Make a live stream. The tenant's previous stream of this id is removed, and its request cancelled if live.

        The caller sets `producer`, appends events, and calls `end_stream` once. `model`, `path`, `request_id`: see
        `ResumableStream`. `now`: Unix time in seconds.

        Raises:
            RoundhouseError: `streams_full`: live streams leave no room. The previous stream stays; ended streams may
                have been removed in the attempt.
        """
        previous = self.find_stream(tenant, stream_id)
        freed_bytes = previous.room + OVERHEAD_BYTES if previous is not None else 0
        room = min(ROOM_STEP_BYTES, self.ring_bytes)
        if not self._free_bytes(room + OVERHEAD_BYTES - freed_bytes, spared=previous):
            self.refused_count += 1
            raise streams_full(self._max_bytes)
        if previous is not None:
            self._replace(previous)
        self._removed.pop((tenant, stream_id), None)
        stream = ResumableStream(
            self.make_room, tenant, stream_id, model=model, path=path, request_id=request_id, now=now
        )
        self._add(stream, room)
        self.live_count += 1
        return stream

    def recover_stream(self, stream: ResumableStream) -> bool:
        """Add an ended stream of an earlier process, whose `state`, `ended_at` and `kept_until` are set. Call in
        ascending order of `kept_until`; streams of this process may have ended before. Streams that ended earlier are
        removed to make room. Return False, and add nothing, if its id is taken, or if it does not fit."""
        size, kept_until = stream.ring.size, stream.kept_until or 0.0
        if self.find_stream(stream.tenant, stream.id) is not None:
            return False
        if size > self.ring_bytes or not self._free_bytes(size + OVERHEAD_BYTES, before=kept_until):
            return False
        self._add(stream, size)
        younger = list(takewhile(lambda each: (each.kept_until or 0.0) > kept_until, reversed(self._ended)))
        for each in (stream, *reversed(younger)):
            self._ended.pop(each, None)
            self._ended[each] = None
        return True

    def end_stream(self, stream: ResumableStream, state: StreamState, now: float, ended_at: float) -> None:
        """Set the final state of a live stream, record it in the stream's file, and wake the readers. Does nothing if
        the stream has ended.

        `now`: monotonic seconds, from which the stream's TTL runs. `ended_at`: Unix time in seconds. A stream that was
        removed meanwhile is not kept again.
        """
        if stream.state is not StreamState.LIVE:
            return
        stream.state, stream.ended_at, stream.producer = state, ended_at, None
        stream.kept_until = now + self.ttl_s
        if not stream.is_removed:
            self.live_count -= 1
            self._set_room(stream, stream.ring.size)
            self._ended[stream] = None
            stream.close_file()
        stream.wake_readers()

    def remove_stream(self, stream: ResumableStream, told_events: bytes = b"") -> None:
        """Drop a stream with its bytes and its file, and wake its readers.

        Does not cancel the request of a live stream, whose further bytes are dropped. `told_events`: last events for
        readers that have not read all; empty: they get the `lost_events` of their own. Does nothing if the stream was
        removed before.
        """
        if stream.is_removed:
            return
        streams = self._tenants[stream.tenant]
        del streams[stream.id]
        if not streams:
            del self._tenants[stream.tenant]
        self._remove_variants(stream)
        if stream in self._ended:
            del self._ended[stream]
        else:
            self.live_count -= 1
        self.used_bytes -= stream.room + OVERHEAD_BYTES
        stream.room = 0
        self._removed[stream.tenant, stream.id] = None
        if len(self._removed) > REMEMBERED_REMOVALS:
            del self._removed[next(iter(self._removed))]
        stream.producer = None
        stream.is_removed, stream.removal_events = True, told_events
        stream.ring.clear()
        stream.remove_file()
        stream.wake_readers()

    def stop_stream(self, stream: ResumableStream) -> None:
        """Serve a client's DELETE: cancel the request of a live stream, whose bytes stay readable; remove a stream that
        is done or cut; leave a stopped one as it is."""
        if stream.state is StreamState.LIVE:
            stream.stop(stream_stopped())
        elif stream.state is not StreamState.STOPPED:
            self.remove_stream(stream)

    def was_removed(self, tenant: str, stream_id: str) -> bool:
        """Return whether the tenant's last stream of this id was removed, and that is remembered: it is among the last
        REMEMBERED_REMOVALS removals. False while a stream has the id."""
        return (tenant, stream_id) in self._removed

    def remove_expired(self, now: float, most: int) -> bool:
        """Remove at most `most` streams that ended `ttl_s` or longer ago and have no readers.

        `now`: monotonic seconds: a wall clock that is set removes nothing. Returns True if there may be more; call
        again then.
        """
        expired = []
        for stream in self._ended:
            if stream.kept_until is None or stream.kept_until > now:
                break
            if not stream.readers:
                expired.append(stream)
                if len(expired) == most:
                    break
        for stream in expired:
            self.remove_stream(stream)
        return len(expired) == most

    def make_room(self, stream: ResumableStream) -> None:
        """Grow the room of a stream whose ring exceeds its room, at most to `ring_bytes`. Where the room cannot grow,
        drop the ring's oldest events until it fits. Streams that have ended may be removed for it."""
        ring = stream.ring
        steps = -(-ring.size // ROOM_STEP_BYTES)
        wanted_room = min(steps * ROOM_STEP_BYTES, self.ring_bytes)
        if not stream.is_removed and wanted_room > stream.room and self._free_bytes(wanted_room - stream.room):
            self._set_room(stream, wanted_room)
        if ring.size > stream.room:
            ring.drop_oldest(ring.size - stream.room)

    def list_live(self) -> Sequence[ResumableStream]:
        """Return the live streams of all tenants, in no particular order."""
        return [stream for stream in self._iterate() if stream.state is StreamState.LIVE]

    def count_readers(self) -> int:
        """Return the number of readers of all streams."""
        return sum(len(stream.readers) for stream in self._iterate())

    def _iterate(self) -> Iterator[ResumableStream]:
        for streams in self._tenants.values():
            yield from streams.values()

    def _replace(self, previous: ResumableStream) -> None:
        last_events = b""
        if previous.state is StreamState.LIVE:
            end_offset = previous.ring.end_offset
            previous.stop(stream_replaced())
            if not previous.is_removed:
                last_events = previous.ring.read(end_offset)
        self.remove_stream(previous, last_events)

    def _free_bytes(self, wanted_bytes: int, spared: ResumableStream | None = None, *, before: float = inf) -> bool:
        """Remove ended streams, those that ended longest ago first, until `wanted_bytes` are free. Return whether they
        are. `spared` stays, and so do those that are kept for longer than until `before` (monotonic seconds)."""
        while self.used_bytes + wanted_bytes > self._max_bytes:
            oldest = next((stream for stream in self._ended if stream is not spared), None)
            if oldest is None or (oldest.kept_until or 0.0) > before:
                return False
            self.evicted_count += 1
            self.remove_stream(oldest)
        return True

    def _add(self, stream: ResumableStream, room: int) -> None:
        self._tenants.setdefault(stream.tenant, {})[stream.id] = stream
        for prefix in list_prefixes(stream.id):
            self._variants.setdefault((stream.tenant, prefix), set()).add(stream.id)
        stream.room = room
        self.used_bytes += room + OVERHEAD_BYTES

    def _remove_variants(self, stream: ResumableStream) -> None:
        for prefix in list_prefixes(stream.id):
            ids = self._variants[stream.tenant, prefix]
            ids.remove(stream.id)
            if not ids:
                del self._variants[stream.tenant, prefix]

    def _set_room(self, stream: ResumableStream, room: int) -> None:
        self.used_bytes += room - stream.room
        stream.room = room
