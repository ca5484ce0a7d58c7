"""The figures of a load test, against values that are known."""

from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.cli.bench.statistics import (
    PERCENTILES,
    RequestSample,
    describe_values,
    find_percentile,
    list_last_seconds,
    summarize_level,
)

NUMBERS = st.lists(st.floats(0, 1e6, allow_nan=False), min_size=2, max_size=60)


def answered(**fields: float) -> RequestSample:
    """Ten tokens: the first after 0.1 s, the others every 0.05 s."""
    return RequestSample(fields.get("started_s", 0.0), 0.55, 0.1, (0.05,) * 9, 10)


@given(NUMBERS)
def test_percentiles_are_those_of_the_standard_library(values: list[float]) -> None:
    ordered = sorted(values)
    expected = statistics.quantiles(ordered, n=100, method="inclusive")
    for percent in PERCENTILES:
        assert find_percentile(ordered, percent) == pytest.approx(expected[percent - 1], abs=1e-6)
    assert (find_percentile(ordered, 0), find_percentile(ordered, 100)) == (ordered[0], ordered[-1])


def test_a_percentile_of_nothing_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least one value"):
        find_percentile([], 50)
    with pytest.raises(ValueError, match="from 0 to 100"):
        find_percentile([1.0], 101)


def test_figures_of_values() -> None:
    assert describe_values([]) is None
    figures = describe_values([4.0, 1.0, 3.0, 2.0])
    assert figures is not None
    assert (figures.count, figures.mean, figures.smallest, figures.largest) == (4, 2.5, 1.0, 4.0)
    assert figures.percentiles[50] == 2.5


def test_a_level_of_answered_requests() -> None:
    summary = summarize_level(2, [answered(), answered()], duration_s=0.5)
    assert (summary.answered, summary.cut, summary.errors) == (2, 0, {})
    assert (summary.output_tokens, summary.tokens_per_s, summary.requests_per_s) == (20, 40.0, 4.0)
    assert summary.ttft_ms is not None
    assert summary.inter_token_ms is not None
    assert summary.request_tokens_per_s is not None
    assert summary.ttft_ms.percentiles[95] == pytest.approx(100)
    assert summary.inter_token_ms.count == 18
    assert summary.inter_token_ms.mean == pytest.approx(50)
    assert summary.request_tokens_per_s.mean == pytest.approx(9 / 0.45)


def test_errors_and_cut_requests_are_told_apart() -> None:
    refused = RequestSample(0.0, 0.01, None, (), 0, error="queue_full")
    cut = RequestSample(0.0, 1.0, 0.2, (0.1, 0.1), 3, is_cut=True)
    summary = summarize_level(3, [answered(), refused, refused, cut], duration_s=1.0)
    assert (summary.answered, summary.cut, summary.errors) == (1, 1, {"queue_full": 2})
    assert summary.tokens_per_s == 13, "what a cut request had got counts"
    assert summary.ttft_ms is not None
    assert summary.request_ms is not None
    assert (summary.ttft_ms.count, summary.request_ms.count) == (2, 1)


def test_a_level_without_an_answer_has_no_figures() -> None:
    summary = summarize_level(1, [], duration_s=0.0)
    assert (summary.tokens_per_s, summary.requests_per_s) == (0.0, 0.0)
    assert (summary.ttft_ms, summary.inter_token_ms, summary.request_ms) == (None, None, None)
    one_token = RequestSample(0.0, 0.2, 0.2, (), 1)
    assert summarize_level(1, [one_token], 1.0).request_tokens_per_s is None


def test_what_came_in_each_of_the_last_seconds() -> None:
    assert list_last_seconds({6: 9, 7: 1, 9: 3, 10: 5}, now_s=10.5, seconds=3) == [1, 0, 3]
    assert list_last_seconds({}, now_s=10.5, seconds=2) == [0, 0]
