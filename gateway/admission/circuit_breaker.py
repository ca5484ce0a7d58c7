"""When a replica that fails is left out, and when it is tried again. Pure."""

from __future__ import annotations

from typing import Final

FAILURES: Final = 3
"""Failures in a row after which a replica is left out."""
FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 30.0


class CircuitBreaker:
    """What is held against one replica, from its first failure until its next answer. Times are monotonic seconds.

    Closed: it takes requests as ever. Open: it takes none until the pause is over, then one trial at a time. An
    answer ends it all: drop the breaker.
    """

    __slots__ = ("_failures", "_pause_s", "_trial", "_until")

    def __init__(self) -> None:
        self._failures = 0
        self._pause_s = 0.0
        self._until = 0.0
        self._trial: object = None

    @property
    def is_open(self) -> bool:
        """Whether the replica is left out, or on trial."""
        return self._pause_s > 0

    def record_failure(self, now: float) -> None:
        """A connection failed. Those that fail while the pause lasts were begun before it, and prove nothing new."""
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
        """Whether a request may go in now."""
        return not self.is_open or (self._trial is None and now >= self._until)

    def may_admit_soon(self, now: float) -> bool:
        """Whether a request may go in now, or when the trial that is under way has turned out well."""
        return not self.is_open or now >= self._until

    def begin_trial(self, ticket: object) -> None:
        """`ticket` went in: it is the trial, if one was due."""
        if self.is_open:
            self._trial = ticket

    def end_trial(self, ticket: object) -> None:
        """`ticket` is out: was it the trial, the next may begin when its time has come."""
        if self._trial is ticket:
            self._trial = None

    def retry_in_s(self, now: float) -> float:
        """Seconds until the next trial may begin; 0 when it may, or when one is under way."""
        return max(0.0, self._until - now)
