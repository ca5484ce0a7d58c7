"""Reads a stream again from any byte, and follows it while it lives."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

from gateway.streams.event_ids import add_ids
from gateway.streams.stream import ResumableStream


class _Waiter:
    """A `StreamReader` that waits in a task."""

    __slots__ = ("_event",)

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def wake(self) -> None:
        """See StreamReader."""
        self._event.set()

    async def wait(self) -> None:
        """Wait for the next call of `wake`."""
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
    """Yield the bytes of a stream from `offset` on, until its end.

    Args:
        stream: what is read.
        offset: of the first byte; it is kept now.
        with_ids: each event gets an `id:` line (see `add_ids`).
        lost_events: tell the reader that it was too slow, and lost a part of the stream.
        find_stop_events: what tells the reader that the gateway ends, while it does; None: it does not.
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
