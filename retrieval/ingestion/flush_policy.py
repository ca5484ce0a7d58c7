"""When written versions are made durable together. Pure."""

from __future__ import annotations

from typing import Final

MOST_TOGETHER: Final = 256
"""Versions that are flushed together; one more begins no wait."""
LONGEST_WAIT_S: Final = 1.0
FLUSHES_WAITED: Final = 4.0


def flush_delay_s(waiting: int, waited_s: float, last_flush_s: float, *, is_more_expected: bool) -> float:
    """Return the seconds until a flush should begin; 0: now.

    A flush takes about as long for one version as for a hundred, so it is worth waiting for more. The wait begins when
    the first version is written. It is `FLUSHES_WAITED` times as long as the last flush took (`last_flush_s`), and at
    most `LONGEST_WAIT_S`. There is no wait if `is_more_expected` is False (no version is in work), or if
    `MOST_TOGETHER` versions are written.

    `waiting`: number of versions that are written, at least 1. `waited_s`: seconds since the first of them was written.
    """
    if not is_more_expected or waiting >= MOST_TOGETHER:
        return 0.0
    return max(0.0, min(LONGEST_WAIT_S, FLUSHES_WAITED * last_flush_s) - waited_s)
