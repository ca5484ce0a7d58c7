"""When written versions are made durable together. Pure."""

from __future__ import annotations

from typing import Final

MOST_TOGETHER: Final = 256
"""Versions that are flushed together; one more begins no wait."""
LONGEST_WAIT_S: Final = 1.0
FLUSHES_WAITED: Final = 4.0


def flush_delay_s(waiting: int, waited_s: float, last_flush_s: float, *, is_more_expected: bool) -> float:
    """Return the seconds until a flush should begin; 0: now.

    A flush costs much the same for one version as for a hundred, so it waits for further versions: `FLUSHES_WAITED`
    times as long as the last flush took (`last_flush_s`), and at most `LONGEST_WAIT_S`, from the writing of the first
    version on. It does not wait where `is_more_expected` is False (no version is in work), or `MOST_TOGETHER` versions
    are written. `waiting`: versions that are written, at least one. `waited_s`: seconds since the first was written.
    """
    if not is_more_expected or waiting >= MOST_TOGETHER:
        return 0.0
    return max(0.0, min(LONGEST_WAIT_S, FLUSHES_WAITED * last_flush_s) - waited_s)
