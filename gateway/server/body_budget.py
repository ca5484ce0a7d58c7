"""How much of large request bodies is held at a time. Pure: who waits is told by a call."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable


class BodyReservation:
    """Room for one body, or a place in the line for it."""

    __slots__ = ("is_granted", "on_granted", "size")

    def __init__(self, size: int, on_granted: Callable[[], None]) -> None:
        self.size = size
        self.on_granted = on_granted
        self.is_granted = False


class BodyBudget:
    """Bodies are let in while they fit, in order of arrival; one that would never fit is let in alone."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._waiting: deque[BodyReservation] = deque()
        self.used_bytes = 0

    def reserve(self, size: int, on_granted: Callable[[], None]) -> BodyReservation:
        """Room for `size` bytes. Where there is none now, `on_granted` is called as soon as there is."""
        reservation = BodyReservation(size, on_granted)
        if not self._waiting and self._fits(size):
            self._grant(reservation)
        else:
            self._waiting.append(reservation)
        return reservation

    def release(self, reservation: BodyReservation) -> None:
        """The body is gone, or nobody waits for its room any more. To be called once."""
        if reservation.is_granted:
            self.used_bytes -= reservation.size
        else:
            self._waiting.remove(reservation)
        while self._waiting and self._fits(self._waiting[0].size):
            next_reservation = self._waiting.popleft()
            self._grant(next_reservation)
            next_reservation.on_granted()

    def _fits(self, size: int) -> bool:
        return not self.used_bytes or self.used_bytes + size <= self._max_bytes

    def _grant(self, reservation: BodyReservation) -> None:
        reservation.is_granted = True
        self.used_bytes += reservation.size
