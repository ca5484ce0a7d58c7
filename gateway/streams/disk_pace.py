"""Whether a disk is fast enough to be written to in the event loop. Pure: times are monotonic seconds."""

from __future__ import annotations

from typing import Final

SLOW_WRITE_S: Final = 0.05
"""A write into memory that the system writes back later takes microseconds."""
SHARE: Final = 0.05
"""So much of the event loop's time may slow writes take, in the long run."""
BURST_S: Final = 2.0
"""So many seconds may slow writes take at once."""
REST_S: Final = 60.0
"""So long a disk that was too slow is not written to."""


class DiskPace:
    """One disk's."""

    def __init__(self) -> None:
        self._held_s = 0.0
        self._held_at = 0.0
        self.rests_until = 0.0
        """Nothing is to be written before this time."""

    def record_slow_write(self, took_s: float, now: float) -> bool:
        """Note a write that took longer than `SLOW_WRITE_S`. Return whether the disk is to rest."""
        self._held_s = max(0.0, self._held_s - (now - self._held_at) * SHARE) + took_s
        self._held_at = now
        if self._held_s <= BURST_S:
            return False
        self._held_s = 0.0
        self.rests_until = now + REST_S
        return True
