"""When a version is tried again. Pure."""

from __future__ import annotations

from typing import Final

FIRST_S: Final = 1.0
LONGEST_S: Final = 300.0


def retry_delay_s(attempts: int) -> float:
    """Return the seconds until the next try, after `attempts` earlier tries that failed: 1, 2, 4, ... at most 300."""
    return min(LONGEST_S, FIRST_S * 2.0 ** min(attempts, 20))
