"""Slow disks: a few slow writes are borne, and then the disk rests."""

from __future__ import annotations

from gateway.streams.disk_pace import BURST_S, REST_S, SHARE, DiskPace


def test_slow_writes_use_up_a_burst_and_then_the_disk_rests() -> None:
    pace = DiskPace()
    assert not pace.record_slow_write(BURST_S / 2, 10.0)
    assert not pace.record_slow_write(BURST_S / 2, 10.0)
    assert pace.record_slow_write(0.1, 10.0)
    assert pace.rests_until == 10.0 + REST_S
    assert not pace.record_slow_write(0.1, 100.0), "it begins anew"


def test_slow_writes_that_are_rare_are_borne() -> None:
    pace, now = DiskPace(), 0.0
    for _ in range(1000):
        assert not pace.record_slow_write(1.0, now)
        now += 1.0 / SHARE
