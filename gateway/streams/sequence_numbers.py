"""Finds events of `/v1/responses` by `sequence_number` in the ring of a background response. Pure."""

from __future__ import annotations

from gateway.protocols.common.sse import last_event, split_events
from gateway.protocols.responses.interrupted_events import read_number
from gateway.streams.ring import ByteRing


def find_offset(ring: ByteRing, number: int) -> int | None:
    """Return the offset at which to begin reading so as to get every event whose `sequence_number` is `number` or
    greater and none with a smaller number. None: the ring has dropped one of these events or a part of it, or may have.

    A `number` beyond the last event yields the offset after that event. Comments have no number and are skipped.
    """
    start = offset = ring.first_offset
    has_all = start == 0  # events from `start` on
    while block := ring.read(offset):
        last_number = read_number(last_event(block))
        if last_number is not None and last_number < number:
            offset += len(block)
            start, has_all = offset, True
            continue
        for event in split_events(block):
            offset += len(event)
            event_number = read_number(event)
            if event_number is None:
                continue
            if event_number >= number:
                is_first = event_number == number and event.startswith(b"event:")
                return start if has_all or is_first else None
            start, has_all = offset, True
    return start if has_all else None
