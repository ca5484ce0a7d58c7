"""Dashboards as the code makes them, their queries and their pictures."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard
from ruamel.yaml import YAML

from grafana.generator.__main__ import make_dashboards, write_dashboards
from grafana.pictures import PALETTE, Series, Span, choose_ticks, draw_dashboard, format_value, name_series, read_matrix
from tests.support.prometheus_server import DASHBOARDS, GRAFANA, compare_as_bool, fill_in, read_dashboard

BUILT_IN = {"__rate_interval", "__all"}
SUBJECTS = {"overview", "models", "gpus", "gateway-latency", "tenants", "retrieval", "controller"}
each_dashboard = pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
register_default_plugins()


def read_and_write(board: dict[str, Any]) -> Any:
    """The dashboard as Grafana's library writes it after it has read it."""
    return json.loads(JSONEncoder().encode(Dashboard.from_json(board)))


def data_sources(node: Any) -> Iterator[dict[str, str]]:
    """Every reference to a data source in a dashboard, however deep."""
    if isinstance(node, dict):
        if "datasource" in node:
            yield node["datasource"]
        for each in node.values():
            yield from data_sources(each)
    elif isinstance(node, list):
        for each in node:
            yield from data_sources(each)


def drawn_panels(board: dict[str, Any]) -> list[dict[str, Any]]:
    """Panels that are no headings."""
    return [panel for panel in board["panels"] if panel["type"] != "row"]


def test_what_is_checked_in_is_what_the_code_makes() -> None:
    written = {path.name: path.read_text() for path in DASHBOARDS}
    assert written == make_dashboards(), "run `make dashboards`"
    assert {path.stem for path in DASHBOARDS} == SUBJECTS


def test_writing_removes_a_dashboard_that_no_code_makes(tmp_path: Path) -> None:
    (tmp_path / "old.json").write_text("{}")
    write_dashboards(tmp_path)
    assert {path.stem for path in tmp_path.iterdir()} == SUBJECTS


@each_dashboard
def test_grafanas_library_knows_all_of_it_and_loses_nothing(path: Path) -> None:
    board = read_dashboard(path)
    assert read_and_write(board) == board


def test_what_the_library_does_not_know_is_noticed() -> None:
    board = read_dashboard(DASHBOARDS[0])
    board["panels"][1]["fieldConfig"]["defaults"]["unitt"] = "s"
    assert read_and_write(board) != board


@each_dashboard
def test_every_data_source_is_one_that_is_provisioned(path: Path) -> None:
    provisioned = YAML(typ="safe", pure=True).load(GRAFANA / "provisioning" / "datasources" / "prometheus.yaml")
    known = [{"type": each["type"], "uid": each["uid"]} for each in provisioned["datasources"]]
    board = read_dashboard(path)
    found = list(data_sources(board))
    assert all(each in known for each in found)
    assert all("datasource" in panel for panel in drawn_panels(board))
    assert all("datasource" in target for panel in drawn_panels(board) for target in panel["targets"])


@each_dashboard
def test_every_variable_that_is_used_is_declared_and_the_other_way_round(path: Path) -> None:
    board = read_dashboard(path)
    variables = board["templating"].get("list", [])
    declared = {variable["name"] for variable in variables}
    texts = [target["expr"] for panel in drawn_panels(board) for target in panel["targets"]]
    used = {name for text in texts for name in re.findall(r"\$\{?(\w+)", text)}
    assert used - BUILT_IN == declared
    own_queries = " ".join(variable["query"]["query"] for variable in variables)
    assert set(re.findall(r"\$\{?(\w+)", own_queries)) <= declared


@each_dashboard
def test_panels_have_ids_and_places_of_their_own(path: Path) -> None:
    panels = read_dashboard(path)["panels"]
    assert [panel["id"] for panel in panels] == list(range(1, len(panels) + 1))
    places = [panel["gridPos"] for panel in panels]
    taken = [
        (x, y)
        for place in places
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(set(taken)) == len(taken)
    assert max(x for x, _ in taken) < 24


@each_dashboard
def test_each_panel_says_what_it_shows(path: Path) -> None:
    for panel in drawn_panels(read_dashboard(path)):
        assert panel["description"], panel["title"]
        references = [target["refId"] for target in panel["targets"]]
        assert len(set(references)) == len(references) > 0


def test_dashboards_have_names_of_their_own_and_the_first_page_is_one() -> None:
    boards = [read_dashboard(path) for path in DASHBOARDS]
    assert len({board["uid"] for board in boards}) == len({board["title"] for board in boards}) == len(DASHBOARDS)
    compose = YAML(typ="safe", pure=True).load(GRAFANA.parent / "compose.yaml")
    home = Path(compose["services"]["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    assert home.name in {path.name for path in DASHBOARDS}


def test_readers_can_choose_model_tenant_gpu_and_replica() -> None:
    boards = [read_dashboard(path) for path in DASHBOARDS]
    names = {variable["name"] for board in boards for variable in board["templating"].get("list", [])}
    assert names == {"model", "tenant", "gpu", "replica"}


@pytest.mark.parametrize(
    ("expr", "made"),
    [
        ('up{job="a"} == 0', 'up{job="a"} == bool 0'),
        ('rate(a{status=~"5..",b!="c"}[5m]) > 0.05', 'rate(a{status=~"5..",b!="c"}[5m]) > bool 0.05'),
        ("a < b", "a < bool b"),
        ("a >= 3", "a >= bool 3"),
        ("a != 1", "a != bool 1"),
        ("a == bool 1", "a == bool 1"),
        ("sum(a) / b", "sum(a) / b"),
    ],
)
def test_a_comparison_answers_0_or_1(expr: str, made: str) -> None:
    assert compare_as_bool(expr) == made


def test_variables_are_filled_in() -> None:
    assert fill_in('rate(a{model=~"$model"}[$__rate_interval])') == 'rate(a{model=~".*"}[3s])'


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
