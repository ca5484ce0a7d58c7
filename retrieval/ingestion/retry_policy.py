"""When a version is tried again. Pure."""

from __future__ import annotations

from typing import Final

FIRST_S: Final = 1.0
LONGEST_S: Final = 300.0


def retry_delay_s(attempts: int) -> float:
    """Return the seconds from a failed try to the next one: 1 if `attempts` is 0, twice as much for each further
    attempt, and at most 300. `attempts`: tries that failed before that one."""
    return min(LONGEST_S, FIRST_S * 2.0 ** min(attempts, 20))
