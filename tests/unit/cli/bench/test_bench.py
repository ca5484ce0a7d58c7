"""The figures of a load test against values that are known, its report, its page, and the comparison of two."""

from __future__ import annotations

import json
import statistics
from html.parser import HTMLParser
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from cli.bench.command import parse_levels
from cli.bench.load import LevelProgress, LiveView, draw_sparkline
from cli.bench.report import (
    PERCENTILES,
    LevelResult,
    ReportError,
    RequestSample,
    Series,
    build_report,
    check_report,
    compare_reports,
    comparison_rows,
    describe_values,
    draw_lines,
    find_percentile,
    list_last_seconds,
    nice_step,
    render_comparison,
    render_page,
    summarize_level,
    summary_rows,
)
from cli.output import CommandError, ExitCode

VALUES = st.lists(st.floats(0, 1e6, allow_nan=False), min_size=2, max_size=60)


def answered(**fields: float) -> RequestSample:
    """Ten tokens: the first after 0.1 s, the others every 0.05 s."""
    return RequestSample(fields.get("started_s", 0.0), 0.55, 0.1, (0.05,) * 9, 10)


@given(VALUES)
def test_percentiles_are_those_of_the_standard_library(values: list[float]) -> None:
    ordered = sorted(values)
    expected = statistics.quantiles(ordered, n=100, method="inclusive")
    for percent in PERCENTILES:
        assert find_percentile(ordered, percent) == pytest.approx(expected[percent - 1], abs=1e-6)
    assert (find_percentile(ordered, 0), find_percentile(ordered, 100)) == (ordered[0], ordered[-1])


def test_figures_of_values() -> None:
    with pytest.raises(ValueError, match="at least one value"):
        find_percentile([], 50)
    with pytest.raises(ValueError, match="from 0 to 100"):
        find_percentile([1.0], 101)
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


ADDRESSING = ("src", "href", "action", "srcset", "data", "poster")

HEAD = {"format": 1, "model": "m", "made_at": "2027-01-02"}
NUMBERS = {"concurrency": 1, "tokens_per_s": 1.0, "requests_per_s": 1}


def level(concurrency: int, speed: float = 1.0, *errors: str) -> LevelResult:
    """A level whose requests take 1 s / `speed`."""
    samples = (
        *(RequestSample(0.0, 1 / speed, 0.5 / speed, (0.1 / speed,) * 4, 5) for _ in range(4)),
        *(RequestSample(0.0, 0.1, None, (), 0, error=error) for error in errors),
    )
    return LevelResult(summarize_level(concurrency, samples, 2 / speed), samples)


def report(*levels: LevelResult, model: str = "m", is_whole: bool = True) -> dict[str, Any]:
    built = build_report(
        levels, model=model, made_at="2027-01-02", version="1", options={"requests": 4}, is_whole=is_whole
    )
    decoded: dict[str, Any] = json.loads(json.dumps(built))
    return check_report(decoded)


class Page(HTMLParser):
    """What a page holds."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in ADDRESSING]

    def handle_data(self, data: str) -> None:
        self.text += data


def test_a_report_has_the_figures_of_its_levels() -> None:
    built = report(level(1), level(4, 1.0, "queue_full"))
    assert summary_rows(built) == [
        ("1", "4", "0", "10.0", "500.0 ms", "500.0 ms", "100.0 ms", "100.0 ms"),
        ("4", "4", "1", "10.0", "500.0 ms", "500.0 ms", "100.0 ms", "100.0 ms"),
    ]
    assert built["levels"][1]["errors"] == {"queue_full": 1}
    assert set(built["levels"][0]["ttft_ms"]) == {"count", "mean", "min", "max", "p50", "p90", "p95", "p99"}
    times = {"started_s": 0.0, "duration_s": 0.1, "ttft_s": None}
    assert built["levels"][1]["requests"][4] == {**times, "output_tokens": 0, "error": "queue_full", "cut": False}
    samples = (RequestSample(0.0, 0.1, None, (), 0, error="queue_full"),)
    unanswered = report(LevelResult(summarize_level(2, samples, 1.0), samples))
    assert summary_rows(unanswered) == [("2", "0", "1", "0.0", "-", "-", "-", "-")]
    assert "queue_full" in render_page(unanswered)


def test_a_page_is_whole_by_itself() -> None:
    name = "<script>alert(1)</script>"
    text = render_page(report(level(1), level(4, 2.0, "queue_full"), model=name, is_whole=False))
    page = Page(text)
    assert page.tags.count("svg") == 4
    assert page.addresses == []
    assert "script" not in page.tags
    assert "http:" not in text
    assert "https:" not in text
    assert name in page.text
    assert "It was ended early." in page.text


def test_a_comparison_says_what_changed() -> None:
    first, second = report(level(1), level(4)), report(level(1, 2.0), level(8))
    figures = list(compare_reports(first, second))
    assert {figure["concurrency"] for figure in figures} == {1}, "what only one has is no comparison"
    changes = {figure["figure"]: figure["change"] for figure in figures}
    assert (changes["tokens/s"], changes["TTFT p50, ms"]) == (pytest.approx(1.0), pytest.approx(-0.5))
    assert ("1", "tokens/s", "10.00", "20.00", "+100.0%") in comparison_rows(figures)
    page = Page(render_comparison("a.json", first, "b.json", second))
    assert page.tags.count("svg") == 4
    assert "A is a.json: m" in page.text
    empty = LevelResult(summarize_level(1, (), 1.0), ())
    changes = {figure["figure"]: figure["change"] for figure in compare_reports(report(empty), report(level(1)))}
    assert set(changes.values()) == {None}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ([], "is no report"),
        ({"levels": {}}, "is no report"),
        ({"format": 9, "levels": []}, "has format 9"),
        ({"format": 1, "levels": []}, "has no `model`"),
        ({**HEAD, "levels": [{}]}, "without its number of requests at a time"),
        ({**HEAD, "levels": [{"concurrency": [1]}]}, "without its number of requests at a time"),
        ({**HEAD, "levels": [{"concurrency": 1}]}, "without the figure tokens_per_s"),
        ({**HEAD, "levels": [{**NUMBERS, "ttft_ms": {}}]}, "without the figure ttft_ms.p50"),
        ({**HEAD, "levels": [{**NUMBERS, "ttft_ms": {"p50": "1"}}]}, "without the figure ttft_ms.p50"),
        ({**HEAD, "levels": [{**NUMBERS, "ttft_ms": 3}]}, "without the figure ttft_ms.p50"),
    ],
)
def test_what_is_no_report_is_refused(content: object, words: str) -> None:
    with pytest.raises(ReportError, match=words):
        check_report(content)


def test_a_plot_is_well_formed_and_in_its_frame() -> None:
    lines = [Series("a <b>", [1.0, None, 3.0]), Series("c", [0.0, 2.0, 250.0])]
    svg = ET.fromstring(draw_lines("Speed & more", "x", ["1", "4", "16"], lines))
    circles = svg.findall("circle")
    assert len(circles) == 5
    assert all(0 <= float(circle.attrib["cy"]) <= 300 and 0 <= float(circle.attrib["cx"]) <= 520 for circle in circles)
    lowest, highest = (float(circles[number].attrib["cy"]) for number in (2, 4))
    assert highest < lowest, "larger values are drawn higher"
    assert ET.fromstring(draw_lines("nothing", "x", ["1"], [Series("a", [None])])).findall("circle") == []


def test_the_live_picture() -> None:
    view = LiveView("m", 64, lambda: 10.5)
    progress = LevelProgress(4, 0.5, [RequestSample(0.0, 1.0, 0.25, (), 100)], running=3)
    progress.piece_counts.update({8: 1, 9: 2})
    view.show_finished([("1", "64", "0", "10.0", "1 ms", "1 ms", "1 ms", "1 ms")])
    view.begin_level(progress)
    console = Console(width=120, record=True, file=open("/dev/null", "w"))  # noqa: PTH123, SIM115
    console.print(view.render())
    text = console.export_text()
    assert "1 of 64 done, 3 under way" in text
    assert "▄█ 2 tokens in the last second" in text
    assert "4 ..." in text
    assert "250.0 ms" in text


def test_a_sparkline_and_marks_of_an_axis() -> None:
    assert draw_sparkline([0, 1, 50, 100]) == " ▁▄█"
    assert draw_sparkline([0, 0]) == "  "
    steps = {0: 1, 1: 0.2, 9.9: 2, 10: 2, 11: 5, 260: 100, 5000: 1000}
    assert {largest: nice_step(largest, 5) for largest in steps} == pytest.approx(steps), "round numbers"


def test_levels_of_an_option() -> None:
    assert parse_levels("16, 1,4,4") == [1, 4, 16]
    for text in ("", "0", "1,x", "-1", "5000", "1.5"):
        with pytest.raises(CommandError) as caught:
            parse_levels(text)
        assert caught.value.code == ExitCode.USAGE
