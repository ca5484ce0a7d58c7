"""Each alert has a runbook, and each runbook an alert."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

ROOT = Path(__file__).parents[3]
RUNBOOKS = ROOT / "docs" / "runbooks"
HEADINGS = ["What it means", "What to look at", "What to do"]
COMMAND = re.compile(r"`roundhouse ([a-z]+)")


def alerts() -> list[dict[str, Any]]:
    """The alert rules of grafana/prometheus/rules.yaml."""
    rules = YAML(typ="safe", pure=True).load(ROOT / "grafana" / "prometheus" / "rules.yaml")
    return [rule for group in rules["groups"] for rule in group["rules"] if "alert" in rule]


def pages() -> list[Path]:
    """The runbooks, without their list."""
    return sorted(path for path in RUNBOOKS.glob("*.md") if path.name != "README.md")


def test_each_alert_says_how_bad_it_is_and_names_its_runbook() -> None:
    for rule in alerts():
        assert rule["labels"]["severity"] in ("critical", "warning"), rule["alert"]
        assert rule["annotations"]["summary"], rule["alert"]
        assert rule["annotations"]["description"], rule["alert"]
        assert rule["annotations"]["runbook"] == f"docs/runbooks/{rule['alert']}.md"


def test_each_alert_has_a_runbook_and_each_runbook_an_alert() -> None:
    names = [rule["alert"] for rule in alerts()]
    assert len(names) == len(set(names))
    assert [path.stem for path in pages()] == sorted(names)
    listed = re.findall(r"^\| \[(\w+)\]\(\1\.md\)", (RUNBOOKS / "README.md").read_text(), re.MULTILINE)
    assert listed == names


def test_each_runbook_says_what_it_means_what_to_look_at_and_what_to_do() -> None:
    for path in pages():
        text = path.read_text()
        assert text.startswith(f"# {path.stem}\n")
        assert re.findall(r"^## (.*)$", text, re.MULTILINE) == HEADINGS, path.name
        assert all(part.strip() for part in re.split(r"^## .*$", text, flags=re.MULTILINE)), path.name


def test_each_runbook_shows_the_rule_that_it_is_about() -> None:
    for rule in alerts():
        assert f"\n    {rule['expr'].strip()}\n" in (RUNBOOKS / f"{rule['alert']}.md").read_text()


def test_runbooks_name_commands_that_there_are() -> None:
    page = (ROOT / "docs" / "cli.md").read_text()
    named = {name for path in pages() for name in COMMAND.findall(path.read_text())}
    assert named
    assert [name for name in sorted(named) if f"`roundhouse {name}" not in page] == []
