"""Pictures of dashboards: what they show of which answers, and the same each time."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from grafana.pictures.charts import PALETTE, Span, choose_ticks
from grafana.pictures.page import draw_dashboard
from grafana.pictures.series import Series, name_series, read_matrix
from grafana.pictures.units import format_value
from tests.support.panel_queries import DASHBOARDS, GRAFANA, read_dashboard

SPAN = Span(1000.0, 1060.0, 1.0)
PICTURES = GRAFANA.parent / "docs" / "dashboards"


def panel(kind: str, **options: Any) -> dict[str, Any]:
    """A dashboard of one panel."""
    defaults = {"unit": "short", "custom": {}, **options}
    place = {"x": 0, "y": 0, "w": 12, "h": 8}
    only = {"id": 1, "type": kind, "title": "Title", "gridPos": place, "fieldConfig": {"defaults": defaults}}
    return {"title": "Board <1>", "description": "What it is.", "panels": [only], "templating": {}}


def rising(name: str, *values: float) -> Series:
    """One reading a second, from the picture's beginning."""
    return Series(name, tuple((SPAN.start + second, value) for second, value in enumerate(values)))


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_each_dashboard_has_a_picture_with_all_its_panels(path: Path) -> None:
    text = (PICTURES / f"{path.stem}.svg").read_text()
    titles = [each["title"] for each in read_dashboard(path)["panels"]]
    shown = re.findall('class="(?:title|row)">([^<]*)<', text)
    assert shown == titles, "run `make pictures`"
    assert "No data" not in text
    assert len(text) < 500_000


def test_the_docs_show_every_picture() -> None:
    page = (GRAFANA.parent / "docs" / "dashboards.md").read_text()
    assert set(re.findall(r"\(dashboards/([\w-]+)\.svg\)", page)) == {path.stem for path in DASHBOARDS}
    assert {path.stem for path in PICTURES.iterdir()} == {path.stem for path in DASHBOARDS}


def test_curves_that_are_interrupted_are_drawn_in_parts() -> None:
    curve = Series("a", ((1000.0, 1.0), (1001.0, 2.0), (1010.0, 2.0), (1011.0, 3.0)))
    picture = draw_dashboard(panel("timeseries"), {1: [curve, rising("b", 1, 2)]}, SPAN)
    assert picture.count("<polyline") == 3
    assert picture.count(PALETTE[0]) == 3, "two parts, and one mark of the legend"
    assert "Board &lt;1&gt;" in picture


def test_stacked_curves_lie_on_top_of_each_other() -> None:
    board = panel("timeseries", custom={"stacking": {"mode": "normal"}})
    picture = draw_dashboard(board, {1: [rising("a", 1, 1), rising("b", 2, 2)]}, SPAN)
    tops = [re.findall(r",([\d.]+)", points)[0] for points in re.findall('<polyline points="([^"]*)"', picture)]
    assert float(tops[1]) < float(tops[0]), "the second one is higher, and y grows downwards"
    assert picture.count("<polygon") == 2


@pytest.mark.parametrize(("value", "color"), [(0, "#3f8f3f"), (1, "#c0392b"), (7, "#c0392b")])
def test_a_figure_has_the_color_of_its_threshold(value: float, color: str) -> None:
    steps = [{"color": "green", "value": None}, {"color": "red", "value": 1}]
    board = panel("stat", thresholds={"steps": steps})
    assert f'style="fill: {color}"' in draw_dashboard(board, {1: [rising("", value)]}, SPAN)


def test_states_are_bands_with_their_names() -> None:
    states = {"1": {"text": "loading", "color": "yellow"}, "2": {"text": "loaded", "color": "green"}}
    board = panel("state-timeline", mappings=[{"options": states}])
    picture = draw_dashboard(board, {1: [rising("m", *[1] * 20, *[2] * 40)]}, SPAN)
    assert re.findall('class="band">([^<]*)<', picture) == ["loading", "loaded"]


def test_a_panel_without_answers_says_so() -> None:
    assert "No data" in draw_dashboard(panel("timeseries"), {}, SPAN)


def test_the_same_answers_make_the_same_picture() -> None:
    board, data = panel("timeseries"), {1: [rising("a", 0.1, 0.2), rising("b", 3, 4)]}
    assert draw_dashboard(board, data, SPAN) == draw_dashboard(board, data, SPAN)


def test_a_long_legend_counts_what_it_leaves_out() -> None:
    curves = [rising(f"a-model-with-a-long-name-{number}", 1) for number in range(30)]
    picture = draw_dashboard(panel("timeseries"), {1: curves}, SPAN)
    [left_out] = re.findall(r"and (\d+) more", picture)
    assert picture.count("a-model-with-a-long-name-") + int(left_out) == 30


def test_answers_are_read_without_what_is_no_figure() -> None:
    result = [
        {"metric": {"model": "b"}, "values": [[1, "2"], [2, "NaN"], [3, "+Inf"]]},
        {"metric": {"model": "a"}, "values": [[1, "1"]]},
        {"metric": {"model": "c"}, "values": [[1, "NaN"]]},
    ]
    assert read_matrix(result, "{{model}} x") == [Series("a x", ((1.0, 1.0),)), Series("b x", ((1.0, 2.0),))]


def test_curves_have_the_names_that_grafana_gives_them() -> None:
    assert name_series({"model": "m", "code": "c"}, "{{ model }}: {{code}}{{other}}") == "m: c"
    assert name_series({"__name__": "up", "job": "gateway", "b": "2", "a": "1"}, "") == "a=1, b=2"


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0, "s", "0"),
        (0.00025, "s", "250 µs"),
        (0.25, "s", "250 ms"),
        (90, "s", "1.5 min"),
        (7200, "s", "2 h"),
        (0.125, "percentunit", "12.5%"),
        (0, "percentunit", "0%"),
        (1536, "mbytes", "1.5 GiB"),
        (2**30, "bytes", "1 GiB"),
        (12_345, "short", "12.3 k"),
        (250, "short", "250"),
        (0.5, "reqps", "0.5 req/s"),
        (7, "nobody-knows", "7"),
    ],
)
def test_figures_are_written_with_their_unit(value: float, unit: str, text: str) -> None:
    assert format_value(value, unit) == text


@pytest.mark.parametrize(("least", "most"), [(0, 0), (0, 1), (0, 3.2), (0, 980), (-4, 7), (0, 1e-6), (0, 12_345_678)])
def test_ticks_are_few_and_reach_over_the_data(least: float, most: float) -> None:
    ticks = choose_ticks(least, most)
    assert 2 <= len(ticks) <= 7
    assert ticks[0] <= least
    assert ticks[-1] >= most


def test_ticks_of_memory_are_round_in_its_unit() -> None:
    assert [format_value(tick, "mbytes") for tick in choose_ticks(0, 24_000, 1024)] == [
        "0", "10 GiB", "20 GiB", "30 GiB",
    ]  # fmt: skip
