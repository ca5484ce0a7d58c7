"""When the next report goes: on change, coalesced; at once, where somebody waits for it; and every few seconds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

COALESCE_S = 0.1
"""Changes within this time share a report."""
EVERY_S = 2.0
"""A report goes at least this often."""


class ReportTimer:
    """A clock with two bells. One waiter at a time."""

    def __init__(self, now: Callable[[], float]) -> None:
        """`now` gives monotonic seconds."""
        self._now = now
        self._last = float("-inf")
        self._wanted = asyncio.Event()
        self._urgent = asyncio.Event()

    def soon(self) -> None:
        """Something changed that a report would show."""
        if not self._wanted.is_set():
            self._wanted.set()

    def at_once(self) -> None:
        """Somebody waits for the next report."""
        self._wanted.set()
        self._urgent.set()

    async def due(self) -> None:
        """Return when a report should be made, and take all wishes so far as granted."""
        await _set_within(self._wanted, self._last + EVERY_S - self._now())
        await _set_within(self._urgent, self._last + COALESCE_S - self._now())
        self._last = self._now()
        self._wanted.clear()
        self._urgent.clear()


async def _set_within(event: asyncio.Event, seconds: float) -> None:
    """Return once `event` is set or the time is up, whichever is first."""
    if event.is_set() or seconds <= 0:
        return
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        pass
