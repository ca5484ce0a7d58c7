"""Which streams are kept, for whom, how long, and in how much memory. Pure: `now` is Unix time.

A stream belongs to a tenant, and no method tells anything of the streams of another one: an id that is another tenant's
is looked up exactly as one that nobody has.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from gateway.streams.errors import stream_replaced, stream_stopped, streams_full
from gateway.streams.stream import ResumableStream, StreamState
from gateway.streams.stream_ids import list_prefixes

OVERHEAD_BYTES: Final = 4 * 1024
"""What a stream is taken to need beside its bytes."""
ROOM_STEP_BYTES: Final = 64 * 1024
"""By so much the room of a live stream grows, so that the registry is not asked for each event."""

REMEMBERED_REMOVALS: Final = 10_000


class StreamRegistry:
    """All streams of a gateway. At most `max_bytes` are kept at any time: each live stream has room of its own, and
    when that is to grow or another stream to begin, the streams that ended longest ago go."""

    def __init__(self, *, ring_bytes: int, max_bytes: int, ttl_s: float) -> None:
        """`ring_bytes`: most of one stream. `ttl_s`: seconds that a stream is kept after its end."""
        self.ring_bytes = ring_bytes
        self.ttl_s = ttl_s
        self._max_bytes = max_bytes
        self._tenants: dict[str, dict[str, ResumableStream]] = {}
        self._variants: dict[tuple[str, str], set[str]] = {}
        """By tenant and id, the tenant's ids that begin with that one and a separator."""
        self._ended: dict[ResumableStream, None] = {}
        """In the order of their ends."""
        self._removed: dict[tuple[str, str], None] = {}
        """Tenants and ids of streams that were removed last, the oldest first."""
        self.used_bytes = 0
        """Of all streams: their room and overhead while they live, their bytes and overhead afterwards."""
        self.live_count = 0
        self.evicted_count = 0
        """How many streams went before their time, to make room."""
        self.refused_count = 0
        """How many streams were refused for want of room."""

    @property
    def ended_count(self) -> int:
        """How many streams are kept after their end."""
        return len(self._ended)

    def find_stream(self, tenant: str, stream_id: str) -> ResumableStream | None:
        """Return a tenant's stream; None: it has none of this id."""
        return self._tenants.get(tenant, {}).get(stream_id)

    def find_variants(self, tenant: str, stream_id: str) -> Sequence[ResumableStream]:
        """Return a tenant's streams of this id, and of this id with a model."""
        streams = self._tenants.get(tenant, {})
        ids = sorted(self._variants.get((tenant, stream_id), ()))
        if stream_id in streams:
            ids.insert(0, stream_id)
        return [streams[each] for each in ids]

    def open_stream(
        self, tenant: str, stream_id: str, *, model: str, path: str, request_id: str, now: float
    ) -> ResumableStream:
        """Begin a stream, in the place of the one that has its id: that one is stopped if it is live.

        Raises:
            RoundhouseError: `streams_full`; then everything is as before but for the ended streams, which made room.
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
        stream = ResumableStream(self, tenant, stream_id, model=model, path=path, request_id=request_id, now=now)
        self._add(stream, room)
        self.live_count += 1
        return stream

    def recover_stream(self, stream: ResumableStream) -> bool:
        """Keep a stream of an earlier process, which has ended. Streams are recovered in the order of their ends.
        Return whether there is room for it, and its id is not taken."""
        size = stream.ring.size
        if self.find_stream(stream.tenant, stream.id) is not None:
            return False
        if size > self.ring_bytes or not self._free_bytes(size + OVERHEAD_BYTES):
            return False
        self._add(stream, size)
        self._ended[stream] = None
        return True

    def end_stream(self, stream: ResumableStream, state: StreamState, now: float) -> None:
        """Note that a live stream has ended. One that was removed meanwhile stays removed."""
        if stream.state is not StreamState.LIVE:
            return
        stream.state, stream.ended_at, stream.producer = state, now, None
        if not stream.is_removed:
            self.live_count -= 1
            self._set_room(stream, stream.ring.size)
            self._ended[stream] = None
            stream.close_file()
        stream.wake_readers()

    def remove_stream(self, stream: ResumableStream, told_events: bytes = b"") -> None:
        """Keep a stream no longer. `told_events`: events that tell a reader who has not read all why there is no more.
        Harmless if it was removed before."""
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
        """Do what a client's DELETE asks for: stop a live stream, whose bytes stay readable, and remove one that has
        ended otherwise. To do it again changes nothing."""
        if stream.state is StreamState.LIVE:
            stream.stop(stream_stopped())
        elif stream.state is not StreamState.STOPPED:
            self.remove_stream(stream)

    def was_removed(self, tenant: str, stream_id: str) -> bool:
        """Whether a tenant's stream of this id was removed not long ago, and no other has its place."""
        return (tenant, stream_id) in self._removed

    def remove_expired(self, now: float, most: int) -> bool:
        """Remove up to `most` streams whose time after their end is over, but for those that are being read. Return
        whether there may be more."""
        expired = []
        for stream in self._ended:
            if stream.ended_at is None or stream.ended_at + self.ttl_s > now:
                break
            if not stream.readers:
                expired.append(stream)
                if len(expired) == most:
                    break
        for stream in expired:
            self.remove_stream(stream)
        return len(expired) == most

    def make_room(self, stream: ResumableStream) -> None:
        """Let the room of a live stream grow to what it has; else drop its oldest bytes."""
        ring = stream.ring
        steps = -(-ring.size // ROOM_STEP_BYTES)
        wanted_room = min(steps * ROOM_STEP_BYTES, self.ring_bytes)
        if not stream.is_removed and wanted_room > stream.room and self._free_bytes(wanted_room - stream.room):
            self._set_room(stream, wanted_room)
        if ring.size > stream.room:
            ring.drop_oldest(ring.size - stream.room)

    def list_live(self) -> Sequence[ResumableStream]:
        """Return the streams that go on."""
        return [stream for stream in self._iterate() if stream.state is StreamState.LIVE]

    def count_readers(self) -> int:
        """How many readers all streams have."""
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

    def _free_bytes(self, wanted_bytes: int, spared: ResumableStream | None = None) -> bool:
        """Remove ended streams, those that ended longest ago first, until `wanted_bytes` are free. Return whether they
        are. `spared` stays."""
        while self.used_bytes + wanted_bytes > self._max_bytes:
            oldest = next((stream for stream in self._ended if stream is not spared), None)
            if oldest is None:
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
