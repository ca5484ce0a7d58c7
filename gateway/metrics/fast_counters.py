"""Counters and histograms in plain Python: counting costs an addition, and Prometheus' form is made on demand.

For one event loop: nothing here is safe across threads. prometheus_client's own children take a lock and build objects
on each call, which costs more than all that the gateway does besides for a request.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric


class FastCounter:
    """One series of a counter. Whoever counts adds to `value`."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0


class FastCounters:
    """A counter by labels. `name` without `_total`."""

    def __init__(self, name: str, text: str, labels: tuple[str, ...]) -> None:
        self._name, self._text, self._labels = name, text, labels
        self._series: dict[tuple[str, ...], FastCounter] = {}

    def counter_of(self, *labels: str) -> FastCounter:
        """The series of these label values, to be kept by who counts often. It stays for good."""
        return self._series.get(labels) or self._series.setdefault(labels, FastCounter())

    def make_family(self) -> Metric:
        """As Prometheus reads it."""
        family = CounterMetricFamily(self._name, self._text, labels=self._labels)
        for labels, counter in self._series.items():
            family.add_metric(labels, counter.value)
        return family


class FastHistogram:
    """One series of a histogram."""

    __slots__ = ("_bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        """By bucket, each on its own; the last one is what lies over every bound."""
        self.sum = 0.0

    def observe_value(self, value: float) -> None:
        """Count one value; a bucket holds its upper bound."""
        self.counts[bisect_left(self._bounds, value)] += 1
        self.sum += value


class FastHistograms:
    """A histogram by labels. `bounds` are the buckets' upper ends, ascending, `+Inf` left out."""

    def __init__(self, name: str, text: str, labels: tuple[str, ...], bounds: tuple[float, ...]) -> None:
        self._name, self._text, self._labels, self._bounds = name, text, labels, bounds
        self._series: dict[tuple[str, ...], FastHistogram] = {}

    def histogram_of(self, *labels: str) -> FastHistogram:
        """The series of these label values, to be kept by who counts often. It stays for good."""
        return self._series.get(labels) or self._series.setdefault(labels, FastHistogram(self._bounds))

    def make_family(self) -> Metric:
        """As Prometheus reads it."""
        family = HistogramMetricFamily(self._name, self._text, labels=self._labels)
        upper_bounds = [*(str(float(bound)) for bound in self._bounds), "+Inf"]
        for labels, histogram in self._series.items():
            family.add_metric(labels, list(zip(upper_bounds, accumulate(histogram.counts), strict=True)), histogram.sum)
        return family
