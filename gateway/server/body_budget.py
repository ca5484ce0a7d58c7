"""Bound on the memory for large request bodies, and for what requests keep of them beyond their engine's answer. Pure:
those that wait are notified by a callback."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, Protocol


class Resize(Protocol):
    """Changes the room of one body to `size` bytes: `BodyBudget.resize` with the body's reservation."""

    def __call__(self, size: int, on_granted: Callable[[], None] | None = None) -> bool:
        """Return True if done at once; False: `on_granted` follows. None: never waits, may exceed the limit."""


class BodyRoom(NamedTuple):
    """Handle of the memory that is reserved for one body: the body's owner returns or resizes it by these functions."""

    give_back: Callable[[], None]
    """Gives the room back, or cancels the wait for it. Call once."""
    resize: Resize


class BodyReservation:
    """A number of bytes granted to one body, or the body's place in the queue for them.

    Made by `BodyBudget.reserve`.
    """

    __slots__ = ("is_granted", "on_granted", "size", "wanted")

    def __init__(self, size: int, on_granted: Callable[[], None]) -> None:
        """`size`: bytes. `on_granted`: called once if room is granted after a wait; never if it is granted at once."""
        self.size = size
        self.on_granted = on_granted
        self.is_granted = False
        self.wanted = size
        """Bytes that a granted reservation waits to grow to; else `size`."""


class BodyBudget:
    """A limit on the bytes of all large request bodies together, granted in order of arrival.

    A body that was read may turn out to take more (`resize`), and then goes before those that are not read yet. If all
    that have room wait for more, none would ever give any back; so the first of them gets what it waits for.

    A body for which there is never room, because it is larger than the limit or bytes are held, gets room when no other
    body has any. Bytes that are held (`hold`) are granted at once or not at all, and are half of the limit at most: so
    those who hold them while something else goes on can neither wait for each other nor stop bodies from being read.
    One object serves all connections; used in the event loop's thread only.
    """

    def __init__(self, max_bytes: int) -> None:
        """`max_bytes`: most bytes that are granted at a time."""
        self._waiting: deque[BodyReservation] = deque()
        self._growing: deque[BodyReservation] = deque()
        self._granted_count = 0
        self._held_bytes = 0
        self._is_letting_in = False
        self.max_bytes = max_bytes
        self.max_held_bytes = max_bytes // 2
        """Most bytes that are held at a time."""
        self.used_bytes = 0
        """Bytes that are granted now, to bodies and to those who hold them. More than `max_bytes` only while one larger
        body has room alone, where bytes were held when bodies had all the room, or where a body had to grow."""

    def reserve(self, size: int, on_granted: Callable[[], None]) -> BodyReservation:
        """Reserve `size` bytes, and return at once. Never blocks and never refuses.

        If `is_granted` of the result is False, the reservation waits behind earlier ones, and `on_granted` is called
        within a later `release` once there is room. Call `release` once either way.
        """
        reservation = BodyReservation(size, on_granted)
        if not self._waiting and not self._growing and self._fits(size):
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
            if reservation.wanted > reservation.size:
                self._growing.remove(reservation)
            self.used_bytes -= reservation.size
            self._granted_count -= 1
        else:
            self._waiting.remove(reservation)
        self._let_in()

    def resize(self, reservation: BodyReservation, size: int, on_granted: Callable[[], None] | None = None) -> bool:
        """Change a reservation to `size` bytes, and return whether that is done.

        Fewer bytes are done at once, and room is granted to those that wait, whose `on_granted` is called. For more,
        the reservation waits behind others that wait for more, and `on_granted` is called within a later `release` or
        `resize`; None: the bytes are taken already, and are granted at once.

        A reservation that still waits for its first room keeps its place, and waits for `size` bytes from now on.
        Returns False if `on_granted` is given: once there is room, perhaps within this call, the `on_granted` of
        `reserve` is called, and then this one.
        """
        if not reservation.is_granted:
            reservation.size = reservation.wanted = size
            if on_granted is not None:
                reservation.on_granted = partial(_call_both, reservation.on_granted, on_granted)
            self._let_in()
            return on_granted is None
        if size > reservation.size and on_granted is not None:
            reservation.wanted, reservation.on_granted = size, on_granted
            self._growing.append(reservation)
            if len(self._growing) > 1 or not self._may_grow(reservation):
                self._let_in()  # it may be the last that was not waiting
                return False
            self._growing.clear()
        self.used_bytes += size - reservation.size
        reservation.size = reservation.wanted = size
        self._let_in()
        return True

    def hold(self, size: int) -> bool:
        """Grant `size` bytes at once, even where bodies have the whole limit. Return False, and change nothing, if more
        than `max_held_bytes` would be held then. Give them back by `give_back`."""
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
        if self._is_letting_in:
            return  # who is let in may leave at once: the outer call goes on, and is not as deep as the queue is long
        self._is_letting_in = True
        try:
            while (reservation := self._take_next()) is not None:
                reservation.on_granted()
        finally:
            self._is_letting_in = False

    def _take_next(self) -> BodyReservation | None:
        """Grant room to whoever comes next, and return the reservation; None: nobody waits, or there is no room."""
        if self._growing:
            if not self._may_grow(self._growing[0]):
                return None
            reservation = self._growing.popleft()
            self.used_bytes += reservation.wanted - reservation.size
            reservation.size = reservation.wanted
            return reservation
        if not self._waiting or not self._fits(self._waiting[0].size):
            return None
        reservation = self._waiting.popleft()
        self._grant(reservation)
        return reservation

    def _may_grow(self, reservation: BodyReservation) -> bool:
        more = reservation.wanted - reservation.size
        return self.used_bytes + more <= self.max_bytes or len(self._growing) == self._granted_count

    def _fits(self, size: int) -> bool:
        return self.used_bytes == self._held_bytes or self.used_bytes + size <= self.max_bytes

    def _grant(self, reservation: BodyReservation) -> None:
        reservation.is_granted = True
        self._granted_count += 1
        self.used_bytes += reservation.size


def _call_both(first: Callable[[], None], second: Callable[[], None]) -> None:
    first()
    second()
