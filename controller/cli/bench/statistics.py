"""The figures of a load test. Pure.

Times are measured by the client: the time to first token (TTFT) goes from sending the request to the first piece of
text; an inter-token latency is the time between two pieces, which are one token each for most engines.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

PERCENTILES: Final = (50, 90, 95, 99)


@dataclass(frozen=True, slots=True)
class RequestSample:
    """One request of a load test. Times are in seconds."""

    started_s: float
    """Since the beginning of its level."""
    duration_s: float
    ttft_s: float | None
    """None: no text came."""
    gaps_s: tuple[float, ...]
    """Times between two pieces of text."""
    output_tokens: int
    """As the engine counted them; without its count, the pieces of text that came."""
    error: str | None = None
    """Code of the error that ended it, such as `queue_full`. None: it was answered, or cut."""
    is_cut: bool = False
    """Whether the client gave it up, because the time of its level was over or the operator ended the test."""

    @property
    def is_answered(self) -> bool:
        """Whether the whole answer came."""
        return self.error is None and not self.is_cut


@dataclass(frozen=True, slots=True)
class Distribution:
    """Figures of one or more values, in the unit of the values. `percentiles`: percent (50, 90, 95, 99) to value."""

    count: int
    mean: float
    smallest: float
    largest: float
    percentiles: Mapping[int, float]


@dataclass(frozen=True, slots=True)
class LevelSummary:
    """The figures of one level: of all requests that ran with one number of requests at a time. `answered` and `cut`
    are numbers of requests. Distributions are None where there is nothing to count."""

    concurrency: int
    duration_s: float
    answered: int
    cut: int
    errors: Mapping[str, int]
    """Error code to the number of requests that it ended."""
    output_tokens: int
    """Of all requests, those that were cut included."""
    tokens_per_s: float
    """Of all requests together."""
    requests_per_s: float
    """Answered ones."""
    ttft_ms: Distribution | None
    inter_token_ms: Distribution | None
    """Of all gaps of all requests."""
    request_ms: Distribution | None
    """Whole answered requests."""
    request_tokens_per_s: Distribution | None
    """Speed of single answered requests after their first token."""


def find_percentile(ordered: Sequence[float], percent: float) -> float:
    """Return a percentile, interpolated linearly between the two nearest values. `ordered`: ascending. Raises
    ValueError where it is empty or `percent` is not from 0 to 100."""
    if not ordered or not 0 <= percent <= 100:
        raise ValueError("a percentile from 0 to 100 of at least one value")
    place = (len(ordered) - 1) * percent / 100
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def describe_values(values: Iterable[float]) -> Distribution | None:
    """Return the figures of the values; None: there are none."""
    ordered = sorted(values)
    if not ordered:
        return None
    return Distribution(
        len(ordered),
        math.fsum(ordered) / len(ordered),
        ordered[0],
        ordered[-1],
        {percent: find_percentile(ordered, percent) for percent in PERCENTILES},
    )


def summarize_level(concurrency: int, samples: Sequence[RequestSample], duration_s: float) -> LevelSummary:
    """Return the figures of one level. `duration_s`: seconds from its beginning to its end, by which throughput is
    computed; where it is 0, throughput is 0."""
    answered = [sample for sample in samples if sample.is_answered]
    tokens = sum(sample.output_tokens for sample in samples)
    return LevelSummary(
        concurrency=concurrency,
        duration_s=duration_s,
        answered=len(answered),
        cut=sum(sample.is_cut for sample in samples),
        errors=dict(sorted(Counter(sample.error for sample in samples if sample.error is not None).items())),
        output_tokens=tokens,
        tokens_per_s=tokens / duration_s if duration_s > 0 else 0.0,
        requests_per_s=len(answered) / duration_s if duration_s > 0 else 0.0,
        ttft_ms=describe_values(sample.ttft_s * 1000 for sample in samples if sample.ttft_s is not None),
        inter_token_ms=describe_values(gap * 1000 for sample in samples for gap in sample.gaps_s),
        request_ms=describe_values(sample.duration_s * 1000 for sample in answered),
        request_tokens_per_s=describe_values(speed for speed in map(_speed_of, answered) if speed is not None),
    )


def _speed_of(sample: RequestSample) -> float | None:
    """Return a request's tokens per second after its first; None where it had no second one."""
    if sample.ttft_s is None or sample.output_tokens < 2 or sample.duration_s <= sample.ttft_s:
        return None
    return (sample.output_tokens - 1) / (sample.duration_s - sample.ttft_s)


def list_last_seconds(counts: Mapping[int, int], now_s: float, seconds: int) -> list[int]:
    """Return the counts of the last whole `seconds` before `now_s`, the oldest first; 0 for a second without one.
    `counts`: by the whole second in which they happened."""
    this_second = math.floor(now_s)
    return [counts.get(second, 0) for second in range(this_second - seconds, this_second)]
