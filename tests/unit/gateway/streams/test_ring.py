"""Rings: bytes by their offset, whole events, the oldest dropped."""

from __future__ import annotations

import pytest

from gateway.streams.ring import ByteRing


def _ring(*events: bytes) -> ByteRing:
    ring = ByteRing()
    for event in events:
        ring.append(event)
    return ring


def test_a_ring_tells_its_bytes_from_any_offset() -> None:
    ring = _ring(b"a: 1\n\n", b"b: 2\n\n")
    for offset in range(13):
        assert ring.read(offset) == b"a: 1\n\nb: 2\n\n"[offset:]
    assert (ring.first_offset, ring.end_offset, ring.size) == (0, 12, 12)


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n"])
def test_a_read_ends_with_an_event_and_has_one_at_least(end: bytes) -> None:
    first, second, third = b"data: a" + end, b"data: bb" + end, b"data: ccc" + end
    ring = _ring(first, second, third)
    assert ring.read(0, len(first) + len(second) + 1) == first + second
    assert ring.read(0, len(first)) == first
    assert ring.read(0, 2) == first
    assert ring.read(3, 1) == first[3:]
    assert ring.read(len(first) - 1, 1) == first[-1:]
    assert ring.read(len(first), 1000) == second + third


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n"])
def test_whole_events_are_dropped(end: bytes) -> None:
    first, second = b"data: a" + end, b"data: bb" + end
    ring = _ring(first, second, first)
    ring.drop_oldest(1)
    assert (ring.first_offset, ring.read(ring.first_offset)) == (len(first), second + first)
    ring.drop_oldest(len(second))
    assert ring.read(ring.first_offset) == first


def test_of_one_event_that_is_too_long_its_end_stays() -> None:
    ring = _ring(b"data: a\n\n", b"data: " + b"x" * 100 + b"\n\n")
    ring.drop_oldest(60)
    assert ring.read_all() == b"x" * 55 + b"\n\n"
    assert (ring.first_offset, ring.end_offset) == (60, 117)


def test_a_cleared_ring_knows_how_long_it_was() -> None:
    ring = _ring(b"data: a\n\n")
    ring.clear()
    assert (ring.first_offset, ring.end_offset, ring.size) == (9, 9, 0)
    assert ring.read(9) == b""
