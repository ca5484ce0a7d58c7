"""Events of a response by their number: where a reader of the stream's bytes begins."""

from __future__ import annotations

import pytest

from gateway.streams.ring import ByteRing
from gateway.streams.sequence_numbers import find_offset

DONE = b"data: [DONE]\n\n"
QUOTED = r"\"sequence_number\":0"


def _event(number: int, text: str = "x") -> bytes:
    if number == 0:
        return b'event: response.created\ndata: {"type":"response.created","sequence_number":0,"response":{}}\n\n'
    return f'event: response.output_text.delta\ndata: {{"delta":"{text}","sequence_number":{number}}}\n\n'.encode()


def _ring(*events: bytes) -> ByteRing:
    ring = ByteRing()
    for event in events:
        ring.append(event)
    return ring


@pytest.mark.parametrize("count", [1, 3, 3000])
def test_a_reader_gets_the_events_from_a_number_on(count: int) -> None:
    events = [_event(number, QUOTED) for number in range(count)]
    ring = _ring(*events, DONE)
    for number in {0, 1, 2, count // 2, count - 1}:
        offset = find_offset(ring, number)
        assert offset == len(b"".join(events[:number]))
    assert find_offset(ring, count) == find_offset(ring, count + 1000) == ring.end_offset - len(DONE)


def test_comments_have_no_number() -> None:
    beat = b": ka\n\n"
    ring = _ring(beat, _event(0), beat, _event(1), beat)
    after_first = len(beat) + len(_event(0))
    assert find_offset(ring, 0) == 0
    assert find_offset(ring, 1) == after_first
    assert find_offset(ring, 2) == ring.end_offset
    assert find_offset(ByteRing(), 5) == 0


def test_what_the_ring_has_dropped_is_not_there() -> None:
    events = [_event(number) for number in range(6)]
    ring = _ring(*events)
    ring.drop_oldest(len(events[0]) + 1)
    assert find_offset(ring, 0) is None
    assert find_offset(ring, 1) is None
    assert find_offset(ring, 2) == ring.first_offset, "the first one that is there"
    assert find_offset(ring, 4) == len(b"".join(events[:4]))
    assert find_offset(ring, 6) == ring.end_offset


def test_an_event_of_which_a_part_is_dropped_is_not_there() -> None:
    ring = _ring(_event(0), _event(1, "y" * 500))
    ring.drop_oldest(300)
    assert find_offset(ring, 1) is None
    assert find_offset(ring, 2) == ring.end_offset
    ring.clear()
    assert find_offset(ring, 2) is None
