"""A real Prometheus with the rules and jobs of `grafana/prometheus`, and every expression of dashboards and rules as it
is asked."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import shutil
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import aiohttp
from ruamel.yaml import YAML

from tests.support.ci_cache import cached_build
from tests.support.ports import free_port
from tests.support.require import require
from tests.support.wait import until

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


CONFIG: Final = Path(__file__).parents[2] / "grafana" / "prometheus"


def require_prometheus() -> None:
    """Skip, or fail where it is required, without a Prometheus on PATH or from `.ci/prometheus`."""
    found = shutil.which("prometheus") or (cached_build("prometheus") / "prometheus").exists()
    require("prometheus", bool(found), "prometheus is not on PATH, and .ci/prometheus has not unpacked it")


def find_program(name: str) -> str:
    """Return the path of `prometheus` or `promtool`."""
    return shutil.which(name) or str(cached_build("prometheus") / name)


@dataclass(frozen=True, slots=True)
class PrometheusServer:
    url: str
    client: aiohttp.ClientSession

    async def query(self, expr: str) -> list[dict[str, Any]]:
        """Return the vector that `expr` has now. Fails where Prometheus refuses it."""
        return await self._query("query", {"query": expr})

    async def query_range(self, expr: str, start: float, end: float, step: float) -> list[dict[str, Any]]:
        """Return the matrix of `expr` between two Unix times, every `step` seconds."""
        return await self._query("query_range", {"query": expr, "start": start, "end": end, "step": step})

    async def list_rules(self) -> list[dict[str, Any]]:
        """Return the rules of all groups, with their health."""
        async with self.client.get(f"{self.url}/api/v1/rules") as answer:
            return [rule for group in (await answer.json())["data"]["groups"] for rule in group["rules"]]

    async def _query(self, path: str, parameters: Mapping[str, str | float]) -> list[dict[str, Any]]:
        async with self.client.get(f"{self.url}/api/v1/{path}", params=parameters) as answer:
            body = await answer.json()
        assert body["status"] == "success", f"{parameters}: {body}"
        result: list[dict[str, Any]] = body["data"]["result"]
        return result


@contextlib.asynccontextmanager
async def prometheus_server(
    folder: Path, targets: Mapping[str, Sequence[str]], *, every: str = "250ms"
) -> AsyncIterator[PrometheusServer]:
    """Run Prometheus as compose does, but with these addresses (by job) in place of the jobs' and with this interval.

    Waits until every target was read.
    """
    folder.mkdir()
    yaml = YAML(typ="safe", pure=True)
    settings = yaml.load(CONFIG / "prometheus.yaml")
    assert {job["job_name"] for job in settings["scrape_configs"]} == set(targets)
    settings["global"] = {"scrape_interval": every, "evaluation_interval": every, "scrape_timeout": every}
    for job in settings["scrape_configs"]:
        job["static_configs"] = [{"targets": list(targets[job["job_name"]])}]
    yaml.dump(settings, folder / "prometheus.yaml")
    for name in settings["rule_files"]:
        shutil.copy(CONFIG / name, folder)
    address = f"127.0.0.1:{free_port()}"
    process = await asyncio.create_subprocess_exec(
        find_program("prometheus"),
        f"--config.file={folder / 'prometheus.yaml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={address}",
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    count = sum(len(addresses) for addresses in targets.values())
    try:
        async with aiohttp.ClientSession() as client:
            server = PrometheusServer(f"http://{address}", client)

            async def has_read_all() -> bool:
                assert process.returncode is None, f"prometheus ended with {process.returncode}"
                try:
                    return [each["value"][1] for each in await server.query("up")] == ["1"] * count
                except (aiohttp.ClientError, KeyError):
                    return False

            await until("Prometheus has read every target", has_read_all)
            yield server
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.wait()
