"""Circuit breaker of a replica: when failures take it out of service, and when it is tried again. Pure."""

from __future__ import annotations

from typing import Final

FAILURES: Final = 3
"""Consecutive failures that open the breaker."""
FIRST_PAUSE_S: Final = 1.0
"""Seconds of the pause before the first trial. Each failed trial doubles the pause, up to `LONGEST_PAUSE_S`."""
LONGEST_PAUSE_S: Final = 30.0


class CircuitBreaker:
    """Failures of one replica since its last answer. Times are monotonic seconds.

    Closed: the replica takes requests as usual. Open, after `FAILURES` (3) failures: the replica takes no request until
    the pause is over, then one trial request at a time. Nothing closes an open breaker: discard the breaker when the
    replica answers.
    """

    __slots__ = ("_failures", "_pause_s", "_trial", "_until")

    def __init__(self) -> None:
        self._failures = 0
        self._pause_s = 0.0
        self._until = 0.0
        self._trial: object = None

    @property
    def is_open(self) -> bool:
        """Whether failures have opened the breaker, so that the replica takes no requests, or one trial at a time. Time
        alone does not change it."""
        return self._pause_s > 0

    def record_failure(self, now: float) -> None:
        """Count a failed connection. The third opens the breaker, with a pause of `FIRST_PAUSE_S` (1 s) from `now`
        (monotonic seconds). A later one, after the pause, begins another pause of twice the length, up to
        `LONGEST_PAUSE_S` (30 s). Failures during a pause are ignored: those connections began before it."""
        if not self.is_open:
            self._failures += 1
            if self._failures < FAILURES:
                return
            self._pause_s = FIRST_PAUSE_S
        elif now < self._until:
            return
        else:
            self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
        self._until = now + self._pause_s

    def admits_request(self, now: float) -> bool:
        """Return whether a request may enter now: the breaker is closed, or the pause is over and no trial runs.

        `now`: monotonic seconds.
        """
        return not self.is_open or (self._trial is None and now >= self._until)

    def may_admit_soon(self, now: float) -> bool:
        """Return whether a request may enter now, or as soon as the running trial succeeds. False during a pause.

        `now`: monotonic seconds.
        """
        return not self.is_open or now >= self._until

    def begin_trial(self, ticket: object) -> None:
        """Take `ticket`, which has entered the replica, as the trial if the breaker is open.

        Check `admits_request` first: this method does not. While the trial runs, no other request is admitted: call
        `end_trial` when `ticket` leaves.
        """
        if self.is_open:
            self._trial = ticket

    def end_trial(self, ticket: object) -> None:
        """Allow the next trial if `ticket`, which has left the replica, was the running one; else do nothing.

        The result of the trial is reported by `record_failure`, or by discarding the breaker.
        """
        if self._trial is ticket:
            self._trial = None

    def retry_in_s(self, now: float) -> float:
        """Return the seconds until the next trial may begin. `now`: monotonic seconds.

        0 if the breaker is closed, or the pause is over, even if a trial runs.
        """
        return max(0.0, self._until - now)
