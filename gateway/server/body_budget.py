"""Bound on the memory for large request bodies, and for what requests keep of them beyond their engine's answer. Pure:
those that wait are notified by a callback."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable


class BodyReservation:
    """A number of bytes granted to one body, or the body's place in the queue for them.

    Made by `BodyBudget.reserve`.
    """

    __slots__ = ("is_granted", "on_granted", "size")

    def __init__(self, size: int, on_granted: Callable[[], None]) -> None:
        """`size`: bytes. `on_granted`: called once if room is granted after a wait; never if it is granted at once."""
        self.size = size
        self.on_granted = on_granted
        self.is_granted = False


class BodyBudget:
    """A limit on the bytes of all large request bodies together, granted in order of arrival.

    A body for which there is never room, because it is larger than the limit or bytes are held, gets room when no other
    body has any. Bytes that are held (`hold`) are granted at once or not at all, and are half of the limit at most: so
    those who hold them while something else goes on can neither wait for each other nor stop bodies from being read.
    One object serves all connections; used in the event loop's thread only.
    """

    def __init__(self, max_bytes: int) -> None:
        """`max_bytes`: most bytes that are granted at a time."""
        self._max_bytes = max_bytes
        self._waiting: deque[BodyReservation] = deque()
        self._held_bytes = 0
        self.max_held_bytes = max_bytes // 2
        """Most bytes that are held at a time."""
        self.used_bytes = 0
        """Bytes that are granted now, to bodies and to those who hold them. More than `max_bytes` only while one larger
        body has room alone, or where bytes were held when bodies had all the room."""

    def reserve(self, size: int, on_granted: Callable[[], None]) -> BodyReservation:
        """Reserve `size` bytes, and return at once. Never blocks and never refuses.

        If `is_granted` of the result is False, the reservation waits behind earlier ones, and `on_granted` is called
        within a later `release` once there is room. Call `release` once either way.
        """
        reservation = BodyReservation(size, on_granted)
        if not self._waiting and self._fits(size):
            self._grant(reservation)
        else:
            self._waiting.append(reservation)
        return reservation

    def release(self, reservation: BodyReservation) -> None:
        """Give back the room, or the place in the queue, and grant room to those that wait, calling their `on_granted`.

        Call once per reservation. A second call raises ValueError if it had not been granted, and else corrupts
        `used_bytes`.
        """
        if reservation.is_granted:
            self.used_bytes -= reservation.size
        else:
            self._waiting.remove(reservation)
        self._let_in()

    def hold(self, size: int) -> bool:
        """Grant `size` bytes at once, whatever bodies have. Return False, and change nothing, if more than
        `max_held_bytes` would be held then. Give them back by `give_back`."""
        if self._held_bytes + size > self.max_held_bytes:
            return False
        self._held_bytes += size
        self.used_bytes += size
        return True

    def give_back(self, size: int) -> None:
        """Give back `size` bytes that were held, and grant room to bodies that wait, calling their `on_granted`."""
        self._held_bytes -= size
        self.used_bytes -= size
        self._let_in()

    def _let_in(self) -> None:
        while self._waiting and self._fits(self._waiting[0].size):
            next_reservation = self._waiting.popleft()
            self._grant(next_reservation)
            next_reservation.on_granted()

    def _fits(self, size: int) -> bool:
        return self.used_bytes == self._held_bytes or self.used_bytes + size <= self._max_bytes

    def _grant(self, reservation: BodyReservation) -> None:
        reservation.is_granted = True
        self.used_bytes += reservation.size
