"""Replays a resumable stream to one reader from any kept byte on, and follows the stream while it is live."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

from gateway.streams.event_ids import add_ids
from gateway.streams.stream import ResumableStream


class _Waiter:
    """A `StreamReader` whose task awaits the next wake-up."""

    __slots__ = ("_event",)

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def take_events(self, events: bytes, offset: int) -> None:
        """See StreamReader. Several parts are read together once the task has its turn."""
        self._event.set()

    def wake(self) -> None:
        """See StreamReader."""
        self._event.set()

    async def wait(self) -> None:
        """Wait until one of the methods above was called since the last return; several calls count as one."""
        await self._event.wait()
        self._event.clear()


async def replay_stream(
    stream: ResumableStream,
    offset: int,
    *,
    with_ids: bool,
    lost_events: bytes,
    find_stop_events: Callable[[], bytes | None],
) -> AsyncIterator[bytes]:
    """Yield the bytes of a stream from `offset` on, in blocks of whole events, until the stream ends or is removed.

    Args:
        stream: the stream to read, live or ended.
        offset: where to begin: at the ring's `first_offset` or later, at its `end_offset` or before.
        with_ids: add an `id:` line to each event (see `add_ids`).
        lost_events: error events to yield last if the reader is so slow that the ring drops bytes it has not read, or
            the stream is removed without last events of its own.
        find_stop_events: called after each block while the reader is behind. Returns the error events to yield last
            because the gateway is shutting down; None: the gateway is not, and reading goes on.
    """
    waiter = _Waiter()
    stream.readers.add(waiter)
    try:
        while True:
            events, is_end = stream.read(offset, lost_events)
            if is_end:
                if events:
                    yield events
                return
            if not events:
                await waiter.wait()
                continue
            yield add_ids(events, offset) if with_ids else events
            offset += len(events)
            if offset < stream.ring.end_offset and (last_events := find_stop_events()) is not None:
                yield last_events
                return
    finally:
        stream.readers.discard(waiter)
