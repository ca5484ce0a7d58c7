"""Dashboards: as the code makes them, known to Grafana's own library, and with nothing that leads nowhere."""

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
from tests.support.panel_queries import DASHBOARDS, GRAFANA, read_dashboard

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
