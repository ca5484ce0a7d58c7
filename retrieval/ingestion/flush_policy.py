"""When written versions are made durable together. Pure."""

from __future__ import annotations

from typing import Final

MOST_TOGETHER: Final = 256
"""Versions that are flushed together; one more begins no wait."""
LONGEST_WAIT_S: Final = 1.0
FLUSHES_WAITED: Final = 4.0


def flush_delay_s(waiting: int, waited_s: float, last_flush_s: float, *, is_more_expected: bool) -> float:
    """Return the seconds until a flush should begin; 0: now.

    A flush costs much the same for one version as for a hundred, so it waits for further versions as long as the last
    `FLUSHES_WAITED` flushes took: flushing then takes a fifth of the time at most. `waiting`: versions that are
    written, at least one. `waited_s`: since the first of them was written. `is_more_expected`: whether versions are in
    work.
    """
    if not is_more_expected or waiting >= MOST_TOGETHER:
        return 0.0
    return max(0.0, min(LONGEST_WAIT_S, FLUSHES_WAITED * last_flush_s) - waited_s)
