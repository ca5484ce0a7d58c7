"""Alerts: promtool finds the rules sound, each fires when it should and is silent when it should, and has a runbook."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tests.support.prometheus_server import GRAFANA, RULES, find_program, list_recorded, read_rules, require_prometheus

ROOT = GRAFANA.parent
RUNBOOKS = ROOT / "docs" / "runbooks"
CASES: dict[str, Any] = YAML(typ="safe", pure=True).load(Path(__file__).with_name("alert_cases.yaml"))
ALERTS = {rule["alert"]: rule for rule in read_rules() if "alert" in rule}
SECTIONS = ["What it means", "What to look at", "What to do"]


def promtool(*arguments: str | Path) -> str:
    """What promtool says, with its exit code before it."""
    command = [find_program("promtool"), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return f"{done.returncode}: {done.stdout}{done.stderr}"


def try_alert(name: str, series: dict[str, str], at: str, fired: list[dict[str, Any]], folder: Path) -> str:
    """What promtool says of one alert at one moment. `fired`: what it is expected to send."""
    case = {
        "interval": "1m",
        "input_series": [{"series": each, "values": values} for each, values in series.items()],
        "alert_rule_test": [{"eval_time": at, "alertname": name, "exp_alerts": fired}],
    }
    tests = {"rule_files": [str(path) for path in RULES], "evaluation_interval": "1m", "tests": [case]}
    path = folder / "test.yaml"
    path.write_text(json.dumps(tests))  # which is YAML, too
    return promtool("test", "rules", path)


def sent_alert(rule: dict[str, Any], fires: dict[str, Any]) -> dict[str, Any]:
    """What the alert sends when it fires as the case says."""
    told = {name: fires[name] for name in ("summary", "description") if name in fires}
    return {"exp_labels": rule["labels"] | fires.get("labels", {}), "exp_annotations": rule["annotations"] | told}


def test_promtool_finds_configuration_and_rules_sound() -> None:
    require_prometheus()
    assert promtool("check", "config", GRAFANA / "prometheus" / "prometheus.yaml").startswith("0: ")
    assert promtool("check", "rules", "--lint=all", "--lint-fatal", *RULES).startswith("0: ")


def test_prometheus_is_given_every_file_of_rules() -> None:
    settings = YAML(typ="safe", pure=True).load(GRAFANA / "prometheus" / "prometheus.yaml")
    assert sorted(settings["rule_files"]) == [path.name for path in RULES]


def test_each_alert_has_a_case_that_fires_and_one_that_does_not() -> None:
    assert list(CASES) == list(ALERTS)
    assert all(case["fires"] and case["silent"] for case in CASES.values())


@pytest.mark.parametrize("name", CASES)
def test_it_fires_when_it_should(name: str, tmp_path: Path) -> None:
    require_prometheus()
    fires = CASES[name]["fires"]
    said = try_alert(name, fires["series"], fires["at"], [sent_alert(ALERTS[name], fires)], tmp_path)
    assert said.startswith("0: "), said


@pytest.mark.parametrize("name", CASES)
def test_it_is_silent_when_it_should(name: str, tmp_path: Path) -> None:
    require_prometheus()
    for silent in CASES[name]["silent"]:
        said = try_alert(name, silent["series"], silent["at"], [], tmp_path)
        assert said.startswith("0: "), f"{silent['why']}: {said}"


def test_promtool_notices_an_alert_that_was_not_expected(tmp_path: Path) -> None:
    require_prometheus()
    fires = CASES["GatewayDown"]["fires"]
    assert try_alert("GatewayDown", fires["series"], fires["at"], [], tmp_path).startswith("1: ")


@pytest.mark.parametrize("name", ALERTS)
def test_it_has_a_runbook(name: str) -> None:
    runbook = ROOT / ALERTS[name]["annotations"]["runbook_url"]
    assert runbook == RUNBOOKS / f"{re.sub('(?<!^)(?=[A-Z])', '-', name).lower()}.md"
    text = runbook.read_text()
    assert text.startswith(f"# {name}\n")
    assert re.findall("^## (.*)$", text, re.MULTILINE) == SECTIONS
    assert all(part.strip() for part in re.split("^#.*$", text, flags=re.MULTILINE)[2:]), "a section is empty"


def test_each_runbook_is_of_an_alert_and_listed() -> None:
    of_alerts = {Path(rule["annotations"]["runbook_url"]).name for rule in ALERTS.values()}
    assert {path.name for path in RUNBOOKS.glob("*.md")} == of_alerts | {"README.md"}
    listed = re.findall(
        r"^\| \[(\w+)\]\(([\w-]+\.md)\) \| (\w+) \|", (RUNBOOKS / "README.md").read_text(), re.MULTILINE
    )
    assert {(alert, severity) for alert, _, severity in listed} == {
        (name, rule["labels"]["severity"]) for name, rule in ALERTS.items()
    }
    assert {page for _, page, _ in listed} == of_alerts


def test_what_is_recorded_is_used_and_what_is_used_is_recorded() -> None:
    recorded = {rule["record"] for rule in read_rules() if "record" in rule}
    assert list_recorded() == recorded
