"""When a version is tried again, when written versions are made durable together, and how many texts one request for
embeddings has. Pure.

That number of texts doubles as long as that makes texts faster, and is halved where the engine refuses as many. What a
request takes includes its wait in the model's queue, so a size is judged by the fastest of its last requests.
"""

from __future__ import annotations

from collections import deque
from typing import Final

FIRST_S: Final = 1.0
LONGEST_S: Final = 300.0


def retry_delay_s(attempts: int) -> float:
    """Return the seconds from a failed try to the next one: 1 if `attempts` is 0, twice as much for each further
    attempt, and at most 300. `attempts`: tries that failed before that one."""
    return min(LONGEST_S, FIRST_S * 2.0 ** min(attempts, 20))


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


FIRST: Final = 4
SAMPLES: Final = 3
"""Full requests after which a size is judged, by the fastest of them."""
GAIN: Final = 1.1
"""Factor in texts per second from which a larger size is worth it."""
TRY_AGAIN_AFTER: Final = 64
"""Full requests until a size that was refused or not worth it is tried again: another engine may answer by then."""


class BatchSize:
    """Chooses the number of texts of the next request to one model: `largest`, its half, and so on down to 1. The
    caller sends `size` texts, and reports what came of them to `note_answer` or `note_refusal`."""

    def __init__(self, largest: int) -> None:
        """Begin with the largest size up to `FIRST`. `largest`: most texts that a request may have, at least 1."""
        self._sizes = _list_sizes(largest)
        self._at = max((at for at, size in enumerate(self._sizes) if size <= FIRST), default=0)
        self._seconds_per_text = [deque[float](maxlen=SAMPLES) for _ in self._sizes]
        self._ceiling = len(self._sizes) - 1
        """Place of the largest size that may be tried."""
        self._since_ceiling = 0

    @property
    def size(self) -> int:
        """Texts of the next request."""
        return self._sizes[self._at]

    def note_answer(self, texts: int, seconds: float) -> None:
        """Note that a request with this number of texts was answered after `seconds`, its wait in the model's queue
        included. This may change `size`. Ignored if `texts` is not `size`."""
        if texts != self.size:
            return
        samples = self._seconds_per_text[self._at]
        samples.append(seconds / texts)
        if self._ceiling < len(self._sizes) - 1:
            self._since_ceiling += 1
            if self._since_ceiling >= TRY_AGAIN_AFTER:
                self._ceiling += 1
                self._since_ceiling = 0
        if len(samples) < SAMPLES:
            return
        if self._at > 0 and self._is_worse_than_half():
            self._lower_to(self._at - 1)
        elif self._at < self._ceiling:
            self._at += 1
            self._seconds_per_text[self._at].clear()

    def note_refusal(self, texts: int) -> None:
        """Note that the engine refused a request with this number of texts, at least 2, only because there were too
        many: it has accepted the same texts in smaller requests.

        Lowers `size` to at most half of `texts`. After `TRY_AGAIN_AFTER` answered requests of that size, the next
        larger one may be tried again.
        """
        fitting = max((at for at, size in enumerate(self._sizes) if size <= texts // 2), default=0)
        self._lower_to(min(self._at, fitting))

    def _is_worse_than_half(self) -> bool:
        half = self._seconds_per_text[self._at - 1]
        return bool(half) and min(self._seconds_per_text[self._at]) * GAIN > min(half)

    def _lower_to(self, at: int) -> None:
        self._at = self._ceiling = at
        self._since_ceiling = 0


def _list_sizes(largest: int) -> list[int]:
    """Return `largest`, its half and so on down to 1, the smallest first."""
    sizes = [largest]
    while sizes[0] > 1:
        sizes.insert(0, sizes[0] // 2)
    return sizes
