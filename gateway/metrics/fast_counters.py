"""Counters and histograms in plain Python: counting is an addition, and Prometheus' form is made when it is read.

Not safe across threads. The classes of prometheus_client take a lock and create objects on each call, which costs more
than the rest of the gateway's work for a request.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric


class FastCounter:
    """One series of a counter. Add to `value` to count, in one thread only."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: float = 0


class FastCounters:
    """A counter metric with labels: one series per combination of label values. Use it from one thread."""

    def __init__(self, name: str, text: str, labels: tuple[str, ...]) -> None:
        """`name`: without `_total`. `text`: the metric's help. `labels`: names of the labels."""
        self._name, self._text, self._labels = name, text, labels
        self._series: dict[tuple[str, ...], FastCounter] = {}

    def counter_of(self, *labels: str) -> FastCounter:
        """Return the series of these label values: one value per label, in the order of the metric's labels (not
        checked).

        The series is created on first use. Keep it if you count often: it is never removed or replaced.
        """
        return self._series.get(labels) or self._series.setdefault(labels, FastCounter())

    def list_values(self) -> list[tuple[tuple[str, ...], float]]:
        """Return the label values of each series, and its count, in the order in which the series were created."""
        return [(labels, counter.value) for labels, counter in self._series.items()]

    def sum_all(self) -> float:
        """Return the sum over all series."""
        return sum(counter.value for counter in self._series.values())

    def sum_where(self, index: int, value: str) -> float:
        """Return the sum over the series whose label number `index`, from 0, is `value`."""
        return sum(counter.value for labels, counter in self._series.items() if labels[index] == value)

    def make_family(self) -> Metric:
        """Return the metric with all its series in prometheus_client's form."""
        family = CounterMetricFamily(self._name, self._text, labels=self._labels)
        for labels, counter in self._series.items():
            family.add_metric(labels, counter.value)
        return family


class FastHistogram:
    """One series of a histogram: counts by bucket, and the sum of the values. Use it from one thread. `bounds`: upper
    bounds of the buckets, ascending, without `+Inf`."""

    __slots__ = ("_bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        """Number of values in each bucket, not cumulative; the last is for values above every bound."""
        self.sum = 0.0

    def observe_value(self, value: float) -> None:
        """Count one value. A value equal to a bucket's upper bound belongs to that bucket."""
        self.counts[bisect_left(self._bounds, value)] += 1
        self.sum += value


class FastHistograms:
    """A histogram metric with labels: one series per combination of label values. Use it from one thread."""

    def __init__(self, name: str, text: str, labels: tuple[str, ...], bounds: tuple[float, ...]) -> None:
        """`text`: the metric's help. `bounds`: upper bounds of the buckets, ascending, without `+Inf`."""
        self._name, self._text, self._labels, self._bounds = name, text, labels, bounds
        self._series: dict[tuple[str, ...], FastHistogram] = {}

    def histogram_of(self, *labels: str) -> FastHistogram:
        """Return the series of these label values: one value per label, in the order of the metric's labels (not
        checked).

        The series is created on first use. Keep it if you count often: it is never removed or replaced.
        """
        return self._series.get(labels) or self._series.setdefault(labels, FastHistogram(self._bounds))

    def make_family(self) -> Metric:
        """Return the metric with all its series in prometheus_client's form."""
        family = HistogramMetricFamily(self._name, self._text, labels=self._labels)
        upper_bounds = [*(str(float(bound)) for bound in self._bounds), "+Inf"]
        for labels, histogram in self._series.items():
            family.add_metric(labels, list(zip(upper_bounds, accumulate(histogram.counts), strict=True)), histogram.sum)
        return family
