"""Every expression of dashboards and rules, in a form that a Prometheus answers at once and with a figure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from ruamel.yaml import YAML

GRAFANA: Final = Path(__file__).parents[2] / "grafana"
DASHBOARDS: Final = sorted((GRAFANA / "dashboards").glob("*.json"))
RULES: Final = sorted((GRAFANA / "prometheus").glob("*_rules.yaml"))
VARIABLES: Final = {"$model": ".*", "$tenant": ".*", "$gpu": ".*", "$replica": ".*", "$__rate_interval": "3s"}
"""What Grafana puts in for these names, where a reader chose nothing and readings are 250 ms apart."""
_COMPARISON: Final = re.compile(r"(?<![=!~<>])(==|!=|>=|<=|>|<)(?![=~])(?!\s*bool)")
_RECORDED: Final = re.compile(r"\b[a-z_]+:roundhouse_\w+:\w+")
_BRACED: Final = re.compile(r"(\{[^}]*\})")


class Expression(NamedTuple):
    """One expression: of `a panel`, `a variable`, `a record` or `an alert`."""

    kind: str
    name: str
    """Where it is, for a message."""
    expr: str


def read_dashboard(path: Path) -> dict[str, Any]:
    """Return a dashboard's JSON."""
    board: dict[str, Any] = json.loads(path.read_text())
    return board


def read_rules() -> list[dict[str, Any]]:
    yaml = YAML(typ="safe", pure=True)
    return [rule for path in RULES for group in yaml.load(path)["groups"] for rule in group["rules"]]


def list_expressions() -> Iterator[Expression]:
    """Yield every expression, of alerts without their threshold."""
    for path in DASHBOARDS:
        board = read_dashboard(path)
        for panel in board["panels"]:
            for target in panel.get("targets", ()):
                yield Expression("a panel", f"{path.stem}: {panel['title']}", fill_in(target["expr"]))
        for variable in board["templating"].get("list", ()):
            query = variable["query"]["query"]
            [metric] = re.findall(r"label_values\((.*), \w+\)$", query)
            yield Expression("a variable", f"{path.stem}: {variable['name']}", fill_in(metric))
    for rule in read_rules():
        if "record" in rule:
            yield Expression("a record", rule["record"], rule["expr"])
        else:
            yield Expression("an alert", rule["alert"], compare_as_bool(rule["expr"]))


def list_recorded() -> set[str]:
    """Return the names of recording rules that panels and other rules use."""
    used = [each.expr for each in list_expressions()]
    return {name for expr in used for name in _RECORDED.findall(expr)}


def fill_in(expr: str, variables: Mapping[str, str] = VARIABLES) -> str:
    """Return an expression with what Grafana puts in for its variables."""
    for name, value in variables.items():
        expr = expr.replace(name, value)
    return expr


def compare_as_bool(expr: str) -> str:
    """Return an expression whose comparisons answer 0 or 1, and so have a figure whenever both of their sides have.

    Comparisons inside of `{...}` select series, and stay.
    """
    parts = _BRACED.split(expr)
    return "".join(part if part.startswith("{") else _COMPARISON.sub(r"\1 bool", part) for part in parts)
