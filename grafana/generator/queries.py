"""PromQL that several panels need."""

from __future__ import annotations

from grafana.generator.panels import Query

OF_MODEL = 'model=~"$model"'
"""Selector of the models that the reader chose."""


def sum_rate(metric: str, selector: str = "", by: str = "model") -> str:
    """Return the sum of a counter's rates per second. `by`: labels to keep, comma-separated; empty: none."""
    grouped = f" by ({by})" if by else ""
    return f"sum{grouped} (rate({metric}{_braces(selector)}[$__rate_interval]))"


def rate_by_model(metric: str, legend: str = "{{model}}", by: str = "model", more: str = "") -> Query:
    """Return a counter's rate per second of the chosen models. `more`: selectors beside the model's."""
    return Query(sum_rate(metric, ",".join(filter(None, (OF_MODEL, more))), by), legend)


def quantile(share: float, metric: str, selector: str = "", by: str = "model") -> str:
    """Return a quantile of a histogram, of the observations in the rate interval. `metric`: without `_bucket`."""
    labels = ", ".join(filter(None, ("le", by)))
    buckets = f"rate({metric}_bucket{_braces(selector)}[$__rate_interval])"
    return f"histogram_quantile({share:g}, sum by ({labels}) ({buckets}))"


def quantiles(metric: str, selector: str = OF_MODEL, by: str = "model") -> tuple[Query, Query]:
    """Return the median and the 95th percentile of a histogram."""
    name = " ".join(f"{{{{{label.strip()}}}}}" for label in by.split(",") if label)
    median, high = quantile(0.5, metric, selector, by), quantile(0.95, metric, selector, by)
    return Query(median, f"{name} p50".strip()), Query(high, f"{name} p95".strip())


def _braces(selector: str) -> str:
    return f"{{{selector}}}" if selector else ""
