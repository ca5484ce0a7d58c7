"""How fast a download is. Pure."""

from __future__ import annotations

from collections import deque
from typing import Final

WINDOW_S: Final = 10.0
"""Seconds over which the speed is measured."""
_SHORTEST_S: Final = 0.5


class SpeedMeter:
    """Measures the speed of a download over the last `WINDOW_S`, from samples of the number of bytes that are here. Not
    safe for threads."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque()

    def add_sample(self, now: float, done_bytes: int) -> None:
        """Note that `done_bytes` bytes are here at the time `now`, in seconds of a clock that never goes back. If there
        are fewer bytes than before, because a part is fetched anew, the measurement begins again."""
        if self._samples and done_bytes < self._samples[-1][1]:
            self._samples.clear()
        self._samples.append((now, done_bytes))
        while len(self._samples) > 2 and self._samples[1][0] < now - WINDOW_S:
            self._samples.popleft()

    def measure(self) -> float | None:
        """Return the speed in bytes per second; None: the samples are fewer than two, or cover less than half a
        second."""
        if len(self._samples) < 2:
            return None
        (first_at, first), (last_at, last) = self._samples[0], self._samples[-1]
        return (last - first) / (last_at - first_at) if last_at - first_at >= _SHORTEST_S else None
