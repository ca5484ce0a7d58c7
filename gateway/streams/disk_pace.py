"""Decides when a slow disk must not be written to from the event loop. Pure: times are monotonic seconds."""

from __future__ import annotations

from typing import Final

SLOW_WRITE_S: Final = 0.05
"""Seconds from which a write counts as slow. A write into the page cache takes microseconds."""
SHARE: Final = 0.05
"""Share of the event loop's time that slow writes may take in the long run."""
BURST_S: Final = 2.0
"""Seconds that slow writes may take in one burst, beyond SHARE."""
REST_S: Final = 60.0
"""Seconds for which a disk that was too slow is not written to."""


class DiskPace:
    """Leaky bucket of the seconds that slow writes to one disk took: it fills with each slow write and leaks SHARE
    seconds per second."""

    def __init__(self) -> None:
        self._held_s = 0.0
        self._held_at = 0.0
        self.rests_until = 0.0
        """Monotonic time before which nothing may be written; 0: no rest so far. The caller looks at it before each
        write."""

    def record_slow_write(self, took_s: float, now: float) -> bool:
        """Count a write of `took_s` seconds, which is more than SLOW_WRITE_S and ended at `now`. Return True if the
        bucket is over BURST_S: `rests_until` is then `now` plus REST_S, and the bucket is empty."""
        self._held_s = max(0.0, self._held_s - (now - self._held_at) * SHARE) + took_s
        self._held_at = now
        if self._held_s <= BURST_S:
            return False
        self._held_s = 0.0
        self.rests_until = now + REST_S
        return True
