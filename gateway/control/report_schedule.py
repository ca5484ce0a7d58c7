"""When to send the next report: soon after changes, at once on request, and at least every few seconds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

COALESCE_S = 0.1
"""Seconds within which changes share a report."""
EVERY_S = 2.0
"""Maximum number of seconds between two reports."""


class ReportSchedule:
    """Timer of reports, with two urgencies. At most one task may wait."""

    def __init__(self, now: Callable[[], float]) -> None:
        """`now`: monotonic seconds."""
        self._now = now
        self._last_report_at = float("-inf")
        self._report_requested = asyncio.Event()
        self._urgent_requested = asyncio.Event()

    def request_report(self) -> None:
        """Request a report as soon as `COALESCE_S` have passed since the last. Call when something in it changes."""
        if not self._report_requested.is_set():
            self._report_requested.set()

    def request_report_now(self) -> None:
        """Request a report at once. Call when the controller waits for it."""
        self._report_requested.set()
        self._urgent_requested.set()

    async def wait_until_due(self) -> None:
        """Wait until a report is due. The caller then makes the report, which covers all requests so far."""
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
