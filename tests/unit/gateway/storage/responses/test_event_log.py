"""The log of a response's events: any reader gets each event once, in order, whatever is compressed by then."""

from __future__ import annotations

import random

import pytest

from gateway.storage.responses import event_log
from gateway.storage.responses.event_log import DONE, EventLog, count_events, follow_events


def events(first: int, count: int) -> bytes:
    """Events whose numbers can be read."""
    return b"".join(b'event: e\ndata: {"sequence_number":%d}\n\n' % number for number in range(first, first + count))


@pytest.mark.parametrize("block_bytes", [1, 100, 10_000])
def test_what_was_appended_is_read_from_any_number(monkeypatch: pytest.MonkeyPatch, block_bytes: int) -> None:
    monkeypatch.setattr(event_log, "BLOCK_BYTES", block_bytes)
    chance, log = random.Random(7), EventLog()
    while log.next_number < 60:
        log.append_events(events(log.next_number, chance.randint(1, 5)))
    total = log.next_number
    log.append_events(DONE)
    log.end()
    for again in (log, EventLog.from_stored(log.to_stored())):
        assert (again.next_number, again.is_ended) == (total, True)
        for first in range(total + 2):
            read, number = b"", first
            while block := again.read_block(number):
                read += block
                number += count_events(block)
            assert read == events(first, max(0, total - first))
    assert EventLog.from_stored(EventLog().to_stored()).next_number == 0


@pytest.mark.parametrize("before", [0, 3])
def test_last_events_are_stored_before_readers_get_them(before: int) -> None:
    log = EventLog()
    log.append_events(events(0, before))
    stored = EventLog.from_stored(log.to_stored(events(before, 2) + DONE))
    assert log.next_number == before
    assert stored.next_number == before + 2
    assert stored.read_block(before) == events(before, 2)


def test_it_takes_little_room() -> None:
    log = EventLog()
    head = b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","item_id":"msg_0123456789"'
    for number in range(5000):
        log.append_events(head + b',"content_index":0,"delta":"word","sequence_number":%d}\n\n' % number)
    assert len(log.to_stored()) < 20 * 5000


async def test_a_reader_of_what_is_over_ends() -> None:
    log = EventLog(5)
    log.append_events(events(5, 2))
    log.end()
    assert [part async for part in follow_events(log, 6, 1.0)] == [events(6, 1), DONE]
