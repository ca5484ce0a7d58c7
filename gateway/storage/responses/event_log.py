"""The events of a response that is made in the background, for whoever reads them during or after that.

Readers pull, each at its own pace: a slow one holds nothing back, and nothing is kept for it. Whole blocks of events
are compressed, which leaves a few times what the response's own text takes.
"""

from __future__ import annotations

import asyncio
import itertools
import struct
import zlib
from bisect import bisect_right
from collections.abc import AsyncIterator
from typing import Final, Protocol

BLOCK_BYTES: Final = 64 * 1024
"""So much is compressed at once: less than a millisecond of the event loop."""
DONE: Final = b"data: [DONE]\n\n"
_EVENT_END: Final = b"\n\n"
_HEADER: Final = struct.Struct(">II")
"""Of a stored block: how many events, how many compressed bytes."""


class ResponseEvents(Protocol):
    """The events of one response, numbered from 0 as their `sequence_number` is."""

    @property
    def is_ended(self) -> bool:
        """Whether the last event has come."""

    def read_block(self, number: int) -> bytes:
        """Some of the events from `number` on, in order; empty: event `number` has not come yet."""

    async def wait_for_more(self, timeout_s: float) -> bool:
        """Wait until events have come, or the end. False: neither has, within `timeout_s` seconds."""


class EventLog:
    """A `ResponseEvents` that is written as the response is made. Belongs to the event loop."""

    def __init__(self, first_number: int = 0) -> None:
        """`first_number`: number of the first event that will come."""
        self._blocks: list[bytes] = []
        """Compressed."""
        self._first_numbers: list[int] = []
        """Number of the first event of each block."""
        self._tail: list[bytes] = []
        """Events after the last block."""
        self._tail_first = first_number
        self._tail_size = 0
        self.next_number = first_number
        """Number of the next event."""
        self.is_ended = False
        self._waiters: list[asyncio.Future[None]] = []

    @classmethod
    def from_stored(cls, stored: bytes) -> EventLog:
        """What `to_stored` made, ended."""
        log = cls()
        position = 0
        while position < len(stored):
            count, size = _HEADER.unpack_from(stored, position)
            position += _HEADER.size
            log._first_numbers.append(log.next_number)
            log._blocks.append(stored[position : position + size])
            log.next_number += count
            position += size
        log._tail_first = log.next_number
        log.is_ended = True
        return log

    def to_stored(self) -> bytes:
        """All events, as they are stored."""
        self._seal_tail()
        parts = []
        ends = itertools.pairwise([*self._first_numbers, self.next_number])
        for block, (first, after) in zip(self._blocks, ends, strict=True):
            parts += [_HEADER.pack(after - first, len(block)), block]
        return b"".join(parts)

    def append_events(self, events: bytes) -> None:
        """Whole events, perhaps with the stream's closing `[DONE]`, which is no event."""
        events = events.removesuffix(DONE)
        if not events:
            return
        self._tail.append(events)
        self._tail_size += len(events)
        self.next_number += count_events(events)
        if self._tail_size >= BLOCK_BYTES:
            self._seal_tail()
        self._wake_readers()

    def end(self) -> None:
        """The last event has come."""
        self.is_ended = True
        self._wake_readers()

    def read_block(self, number: int) -> bytes:
        """See ResponseEvents."""
        if number >= self.next_number:
            return b""
        if number >= self._tail_first:
            return _skip_events(b"".join(self._tail), number - self._tail_first)
        index = bisect_right(self._first_numbers, number) - 1
        return _skip_events(zlib.decompress(self._blocks[index]), number - self._first_numbers[index])

    async def wait_for_more(self, timeout_s: float) -> bool:
        """See ResponseEvents."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            async with asyncio.timeout(timeout_s):
                await waiter
        except TimeoutError:
            return False
        finally:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
        return True

    def _seal_tail(self) -> None:
        if self._tail:
            self._blocks.append(zlib.compress(b"".join(self._tail), 1))
            self._first_numbers.append(self._tail_first)
            self._tail, self._tail_size, self._tail_first = [], 0, self.next_number

    def _wake_readers(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)


async def follow_events(events: ResponseEvents, first_number: int, silence_s: float) -> AsyncIterator[bytes]:
    """A stream of the events from `first_number` on, until the last; a comment after each `silence_s` seconds without
    one."""
    number = first_number
    while True:
        block = events.read_block(number)
        if block:
            number += count_events(block)
            yield block
        elif events.is_ended:
            break
        elif not await events.wait_for_more(silence_s):
            yield b": heartbeat\n\n"
    yield DONE


def count_events(events: bytes) -> int:
    """How many whole events there are. JSON holds no line end, so each ends with the first empty line."""
    return events.count(_EVENT_END)


def _skip_events(events: bytes, count: int) -> bytes:
    position = 0
    for _ in range(count):
        position = events.index(_EVENT_END, position) + len(_EVENT_END)
    return events[position:]
