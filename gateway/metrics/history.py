"""What each model did in the last hour, by minutes: read off the counters of requests once a minute, and kept in
memory. Requests do nothing for it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Final, NamedTuple

from gateway.metrics.request_metrics import RequestCollector
from gateway.routing.table import LiveRoutes

MINUTE_S: Final = 60.0
KEPT_MINUTES: Final = 60
LOOK_S: Final = 5.0
"""Seconds between looks at the queues, of which a minute keeps the largest."""


class Minute(NamedTuple):
    """Tokens per second, waiting requests and time to the first token of one model in one minute."""

    tokens_per_s: float
    """Generated tokens of the requests that ended in it, by its seconds."""
    waiting: int
    """Most requests that waited, of one look each `LOOK_S` seconds."""
    first_token_s: float | None
    """Median time to the first token; None: no stream began."""


class MetricsHistory:
    """The minutes of each model in the routing table, the newest last. One that leaves the table loses them."""

    def __init__(
        self, live: LiveRoutes, queued: Mapping[str, int], requests: RequestCollector, now: Callable[[], float]
    ) -> None:
        """`queued`: waiting requests by model, absent if none. `now`: monotonic seconds."""
        self._live = live
        self._queued = queued
        self._requests = requests
        self._now = now
        self._began_at = now()
        self._waiting: dict[str, int] = {}
        self._tokens: dict[str, float] = {}
        self._first_tokens: dict[str, list[int]] = {}
        self.minutes: dict[str, deque[Minute]] = {}
        """Minutes by model, at most `KEPT_MINUTES` (60) of each."""

    async def run(self) -> None:
        """Look at the counters again and again, until it is cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            self.look()

    def look(self) -> None:
        """Note how many requests wait, and end the minute once it is over. Before the first routing table nothing is
        noted."""
        routes = self._live.current_or_none
        if routes is None:
            return
        self._waiting = {name: max(self._waiting.get(name, 0), self._queued.get(name, 0)) for name in routes.models}
        seconds = self._now() - self._began_at
        if seconds >= MINUTE_S:
            self._end_minute(seconds)

    def _end_minute(self, seconds: float) -> None:
        tokens = {model: count for (model, way), count in self._requests.tokens.list_values() if way == "out"}
        first_tokens = {model: counts for (model,), counts in self._requests.first_token.list_counts()}
        ended = {}
        for model, waiting in self._waiting.items():
            rate = (tokens.get(model, 0.0) - self._tokens.get(model, 0.0)) / seconds
            counts, before = first_tokens.get(model, []), self._first_tokens.get(model)
            fresh = counts if before is None else [now - then for now, then in zip(counts, before, strict=True)]
            ended[model] = self.minutes.get(model) or deque(maxlen=KEPT_MINUTES)
            ended[model].append(Minute(rate, waiting, find_median(fresh, self._requests.first_token.bounds)))
        self.minutes = ended
        self._tokens, self._first_tokens, self._waiting = tokens, first_tokens, {}
        self._began_at += seconds


def find_median(counts: Sequence[int], bounds: Sequence[float]) -> float | None:
    """Return the median of a histogram, as Prometheus estimates it: values lie evenly in their bucket. None: it is
    empty.

    `counts`: by bucket, not cumulative, the last for what is above all `bounds`, which counts as the last bound.
    """
    half = sum(counts) / 2
    for index, (count, total) in enumerate(zip(counts, accumulate(counts), strict=True)):
        if count and total >= half:
            if index == len(bounds):
                return bounds[-1]
            below = bounds[index - 1] if index else 0.0
            return below + (bounds[index] - below) * (half - (total - count)) / count
    return None
