"""Every expression of dashboards and rules, on a real Prometheus that reads a running Roundhouse under load."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from tests.support.monitored_site import monitored_site, under_load
from tests.support.prometheus_server import PrometheusServer, list_expressions, prometheus_server, require_prometheus
from tests.support.wait import until

pytestmark = [pytest.mark.slow, pytest.mark.engines, pytest.mark.embedded]


async def _has_figures(prometheus: PrometheusServer, expr: str) -> bool:
    return any(each["value"][1] != "NaN" for each in await prometheus.query(expr))


async def test_each_expression_of_panels_and_rules_has_figures(tmp_path: Path) -> None:
    require_prometheus()
    async with (
        monitored_site(tmp_path / "site") as site,
        prometheus_server(tmp_path / "prometheus", site.targets) as prometheus,
        under_load(site, crash_every_s=15),
    ):
        for kind, name, expr in list_expressions():
            what = f"{kind}, {name}, has figures by {expr}"
            await until(what, functools.partial(_has_figures, prometheus, expr))

        async def evaluated() -> bool:
            return all(rule["health"] != "unknown" for rule in await prometheus.list_rules())

        await until("every rule was evaluated", evaluated)
        rules = await prometheus.list_rules()
        assert rules
        assert [rule["name"] for rule in rules if rule["health"] != "ok"] == []

        async def alerts_noticed() -> bool:
            states = {rule["name"]: rule.get("state") for rule in await prometheus.list_rules()}
            expected = ("GpuUnread", "McpServerDown", "ModelFailed", "StartsBlocked")
            return all(states[name] in ("pending", "firing") for name in expected)

        await until("one GPU is lost, one MCP server away, one model broken, one too big", alerts_noticed)
