"""When to send the next report: soon after changes, at once on request, and at least every few seconds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

COALESCE_S = 0.1
"""Seconds within which changes share a report."""
EVERY_S = 2.0
"""Maximum number of seconds between two reports."""


class ReportSchedule:
    """Decides when the gateway's next report to the controller is due: at once, soon, or every `EVERY_S` (2) seconds.

    At most one task may wait. Used in the event loop's thread only.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        """`now`: monotonic seconds."""
        self._now = now
        self._last_report_at = float("-inf")
        self._report_requested = asyncio.Event()
        self._urgent_requested = asyncio.Event()

    def request_report(self) -> None:
        """Request a report as soon as `COALESCE_S` (0.1 s) have passed since the last. Call when something in it
        changes.

        Returns at once; repeated calls before the report count as one.
        """
        if not self._report_requested.is_set():
            self._report_requested.set()

    def request_report_now(self) -> None:
        """Request a report at once, and do not wait for it. Call when the controller waits for the report."""
        self._report_requested.set()
        self._urgent_requested.set()

    async def wait_until_due(self) -> None:
        """Wait until a report is due, at most about `EVERY_S` seconds after the last. The first is due at once.

        The caller must make and send the report then: it covers all requests so far, and none of them is repeated.
        """
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
