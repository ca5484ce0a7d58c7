"""The metrics: documented, and bounded in number."""

from __future__ import annotations

import re
from pathlib import Path

from gateway.ledger import Ledger
from gateway.live_routes import LiveRoutes
from gateway.metrics import Finished, LinkState, Metrics
from gateway.sse import Usage

DOCS = Path(__file__).parents[2] / "docs" / "metrics.md"


def everything() -> Metrics:
    """Metrics that have counted one of everything, so that every label shows."""
    metrics, live, ledger, link = Metrics(), LiveRoutes(), Ledger(lambda: 0.0), LinkState()
    metrics.show_state(live, ledger, link, lambda: 3.0)
    link.table_at = 1.0
    ledger.inside("m", "r", "req-1").__enter__()
    ledger.waiting("m").__enter__()
    metrics.finished(
        Finished(
            model="m",
            route="/v1/chat/completions",
            status=200,
            duration_s=1.0,
            first_byte_s=0.5,
            usage=Usage(3, 4),
            retries=1,
            client_gone=True,
            broken_off="engine_disconnected",
        )
    )
    return metrics


def test_the_docs_hold_the_same_metrics() -> None:
    documented = {
        (name, kind): text
        for name, kind, _, text in re.findall(
            r"^\| `(roundhouse_gateway_\w+)` \| (\w+) \| ([\w, ]*) \| (.+) \|$", DOCS.read_text(), re.MULTILINE
        )
    }
    served = {
        (f"{family.name}_total" if family.type == "counter" else family.name, family.type): family.documentation
        for family in everything().registry.collect()
        if family.name.startswith("roundhouse_gateway_")
    }
    assert documented == served


def test_the_docs_hold_the_same_labels() -> None:
    rows = re.findall(r"^\| `(roundhouse_gateway_\w+)` \| \w+ \| ([\w, ]*) \|", DOCS.read_text(), re.MULTILINE)
    documented = {name: set(re.findall(r"\w+", labels)) for name, labels in rows}
    for family in everything().registry.collect():
        for sample in family.samples:
            name = re.sub(r"_(bucket|sum|count|created)$", "", sample.name)
            name = f"{name}_total" if family.type == "counter" and not name.endswith("_total") else name
            if name in documented and name != "roundhouse_gateway_replicas":
                assert set(sample.labels) - {"le"} == documented[name], name


def test_state_is_read_off_when_it_is_asked_for() -> None:
    registry = everything().registry
    assert registry.get_sample_value("roundhouse_gateway_inflight", {"model": "m"}) == 1
    assert registry.get_sample_value("roundhouse_gateway_queued", {"model": "m"}) == 1
    assert registry.get_sample_value("roundhouse_gateway_table_age_seconds") == 2
    assert registry.get_sample_value("roundhouse_gateway_link_up") == 0


def test_two_gateways_in_one_process_do_not_share() -> None:
    assert Metrics().registry is not Metrics().registry
