"""How fast a download is. Pure."""

from __future__ import annotations

from collections import deque
from typing import Final

WINDOW_S: Final = 10.0
"""Seconds over which the speed is measured."""
_SHORTEST_S: Final = 0.5


class SpeedMeter:
    """Speed over the last seconds, from samples of how many bytes are here."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque()

    def add_sample(self, now: float, done_bytes: int) -> None:
        """Note how many bytes are here. `now`: seconds of a clock that never goes back. Fewer bytes than before (a
        part is fetched anew) begin the measurement again."""
        if self._samples and done_bytes < self._samples[-1][1]:
            self._samples.clear()
        self._samples.append((now, done_bytes))
        while len(self._samples) > 2 and self._samples[1][0] < now - WINDOW_S:
            self._samples.popleft()

    def measure(self) -> float | None:
        """Return bytes per second; None: there are not enough samples yet."""
        if len(self._samples) < 2:
            return None
        (first_at, first), (last_at, last) = self._samples[0], self._samples[-1]
        return (last - first) / (last_at - first_at) if last_at - first_at >= _SHORTEST_S else None
