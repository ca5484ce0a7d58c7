"""Each metric is documented, and shown, alerted on or explained somewhere beside its row in the reference; or it says
why it need not be."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
REFERENCE = ROOT / "docs" / "metrics.md"
NAME = re.compile(r"(?<![:\w])(?:roundhouse_(?:gateway|controller|model|gpu|retrieval|engine)|localllm)_\w+")
UNUSED: dict[str, str] = {}
"""Metrics that no panel, rule or other page uses, and why they are there all the same."""


def documented_metrics() -> set[str]:
    """Names with a row of their own in docs/metrics.md."""
    return set(re.findall(r"^\| `((?:roundhouse|localllm)_\w+)` \|", REFERENCE.read_text(), re.MULTILINE))


def used_metrics() -> set[str]:
    """Names in panels, rules and pages of docs/, and in docs/metrics.md outside of the rows that describe metrics.

    Names of histograms' series also without their suffix.
    """
    texts = [path.read_text() for path in (ROOT / "grafana").rglob("*") if path.suffix in (".json", ".yaml")]
    texts += [path.read_text() for path in (ROOT / "docs").rglob("*.md") if path != REFERENCE]
    texts.append("\n".join(line for line in REFERENCE.read_text().splitlines() if not line.startswith("| `")))
    names = {name for text in texts for name in NAME.findall(text)}
    return names | {re.sub(r"_(bucket|sum|count)$", "", name) for name in names}


def test_each_metric_is_used_or_says_why_not() -> None:
    unused = {name for name in documented_metrics() - used_metrics() if not name.startswith("localllm_")}
    assert unused - UNUSED.keys() == set(), "use it in a panel, a rule or a page, or say in UNUSED why it is there"


def test_an_excuse_is_of_a_metric() -> None:
    assert UNUSED.keys() <= documented_metrics(), "these are no metrics any more"


def test_no_metric_is_used_that_does_not_exist() -> None:
    known = documented_metrics()
    texts = [path.read_text() for path in (ROOT / "grafana").rglob("*") if path.suffix in (".json", ".yaml")]
    used = {re.sub(r"_(bucket|sum|count)$", "", name) for text in texts for name in NAME.findall(text)}
    assert used
    assert used <= known | {re.sub(r"_(bucket|sum|count)$", "", name) for name in known}
