"""The events of a background response, for clients that read them while it is made or afterwards.

Each reader pulls at its own pace: a slow one delays nobody, and nothing is buffered for it. Whole blocks of events are
compressed; a log then takes a few times the memory of the response's text.
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
"""Bytes of events that are compressed at once; that takes the event loop less than a millisecond."""
DONE: Final = b"data: [DONE]\n\n"
_EVENT_END: Final = b"\n\n"
_HEADER: Final = struct.Struct(">II")
"""Header of a stored block: number of events, compressed bytes."""


class ResponseEvents(Protocol):
    """The events of one response as readers see them, numbered from 0 like their `sequence_number`."""

    @property
    def is_ended(self) -> bool:
        """Whether the response has ended, so that no more events come."""

    def read_block(self, number: int) -> bytes:
        """Return one or more whole events, the first with number `number`; empty: there is no such event yet, or never
        if `is_ended`. Does not wait."""

    async def wait_for_more(self, timeout_s: float) -> bool:
        """Wait for further events or the end. Returns False if neither comes within `timeout_s` seconds.

        Call only if `is_ended` is False and the last `read_block` was empty, without awaiting in between: events that
        came before the call do not end the wait.
        """


class EventLog:
    """The events of one background response in memory, compressed. Belongs to the event loop.

    The response's exchange appends events and calls `end`; any number of readers read them.
    """

    def __init__(self, first_number: int = 0) -> None:
        """`first_number`: number of the first event that will be appended. Do not read events with smaller numbers."""
        self._blocks: list[bytes] = []
        """Compressed events."""
        self._first_numbers: list[int] = []
        """Number of the first event of each block."""
        self._tail: list[bytes] = []
        """Events after the last block."""
        self._tail_first = first_number
        self._tail_size = 0
        self.next_number = first_number
        """Number of the next event to be appended."""
        self.is_ended = False
        self._waiters: list[asyncio.Future[None]] = []

    @classmethod
    def from_stored(cls, stored: bytes) -> EventLog:
        """Restore a log from the result of `to_stored`; empty bytes give a log without events. The log has ended. Bytes
        of another form raise struct.error here, or zlib.error when the events are read."""
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

    def to_stored(self, last_events: bytes = b"") -> bytes:
        """Return all events so far, encoded for `from_stored`, which numbers them from 0. Empty if there are none.

        `last_events`: further ones, which are to be stored before readers get them. They have the form that
        `append_events` takes, and are not appended.
        """
        self._seal_tail()
        parts = []
        ends = itertools.pairwise([*self._first_numbers, self.next_number])
        for block, (first, after) in zip(self._blocks, ends, strict=True):
            parts += [_HEADER.pack(after - first, len(block)), block]
        last_events = last_events.removesuffix(DONE)
        if last_events:
            last_block = zlib.compress(last_events, 1)
            parts += [_HEADER.pack(count_events(last_events), len(last_block)), last_block]
        return b"".join(parts)

    def append_events(self, events: bytes) -> None:
        """Append whole server-sent events with LF line ends, and wake the readers.

        They get the next numbers. A `data: [DONE]` at the end of `events` is left out.
        """
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
        """Mark the log as complete, and wake the readers. Append nothing afterwards."""
        self.is_ended = True
        self._wake_readers()

    def read_block(self, number: int) -> bytes:
        """Return one or more whole events, the first with number `number`; empty: no such event was appended yet.

        `number` must not be below the log's first number. Does not wait.
        """
        if number >= self.next_number:
            return b""
        if number >= self._tail_first:
            return _skip_events(b"".join(self._tail), number - self._tail_first)
        index = bisect_right(self._first_numbers, number) - 1
        return _skip_events(zlib.decompress(self._blocks[index]), number - self._first_numbers[index])

    async def wait_for_more(self, timeout_s: float) -> bool:
        """Wait for further events or the end. Returns False if neither comes within `timeout_s` seconds.

        Only what comes after the call ends the wait: call it if `is_ended` is False and `read_block` was empty, without
        awaiting in between.
        """
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
    """Yield the events from number `first_number` on in blocks, wait for new ones until the log has ended, then yield
    `data: [DONE]`.

    A comment is yielded after each `silence_s` seconds without an event. A `first_number` beyond the last event yields
    no events.
    """
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


def read_all_events(events: ResponseEvents) -> bytes:
    """Return all events from number 0 that have come so far, followed by `data: [DONE]`. Does not wait for more."""
    blocks, number = [], 0
    while block := events.read_block(number):
        number += count_events(block)
        blocks.append(block)
    return b"".join(blocks) + DONE


def count_events(events: bytes) -> int:
    """Return the number of whole server-sent events in `events`: its blank lines. The events must have LF line ends and
    JSON without line breaks; a comment counts as an event."""
    return events.count(_EVENT_END)


def _skip_events(events: bytes, count: int) -> bytes:
    position = 0
    for _ in range(count):
        position = events.index(_EVENT_END, position) + len(_EVENT_END)
    return events[position:]
