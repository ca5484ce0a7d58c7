"""When the next report goes: on change, coalesced; at once, where somebody waits for it; and every few seconds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

COALESCE_S = 0.1
"""Changes within this time share a report."""
EVERY_S = 2.0
"""A report goes at least this often."""


class ReportSchedule:
    """A clock with two bells. One waiter at a time."""

    def __init__(self, now: Callable[[], float]) -> None:
        """`now` gives monotonic seconds."""
        self._now = now
        self._last_report_at = float("-inf")
        self._report_requested = asyncio.Event()
        self._urgent_requested = asyncio.Event()

    def request_report(self) -> None:
        """Something changed that a report would show."""
        if not self._report_requested.is_set():
            self._report_requested.set()

    def request_report_now(self) -> None:
        """Somebody waits for the next report."""
        self._report_requested.set()
        self._urgent_requested.set()

    async def wait_until_due(self) -> None:
        """Return when a report should be made, and take all wishes so far as granted."""
        await _wait_for_event(self._report_requested, self._last_report_at + EVERY_S - self._now())
        await _wait_for_event(self._urgent_requested, self._last_report_at + COALESCE_S - self._now())
        self._last_report_at = self._now()
        self._report_requested.clear()
        self._urgent_requested.clear()


async def _wait_for_event(event: asyncio.Event, seconds: float) -> None:
    """Return once `event` is set or the time is up, whichever is first."""
    if event.is_set() or seconds <= 0:
        return
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        pass
