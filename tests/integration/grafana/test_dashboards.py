"""Every panel's query on a real Prometheus, which has read retrieval, a gateway and the controller's metrics."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, cast

import aiohttp
import pytest
from prometheus_client import start_http_server
from ruamel.yaml import YAML

from controller.reconcile.reconciler import Reconciler
from controller.reports.metrics import create_registry
from tests.fakes.fake_controller import route
from tests.fakes.gateway_harness import engines
from tests.support.ci_cache import cached_build
from tests.support.ports import free_port
from tests.support.require import require
from tests.support.retrieval_programs import DocumentsSite, documents_site
from tests.support.wait import until

pytestmark = pytest.mark.slow

GRAFANA = Path(__file__).parents[3] / "grafana"
DASHBOARDS = sorted((GRAFANA / "dashboards").glob("*.json"))
RETRIEVAL = GRAFANA / "dashboards" / "retrieval.json"
VARIABLES = {"$model": ".*", "$__rate_interval": "2s"}
"""What Grafana puts in for these names."""


class NoRounds:
    """As much of a reconciler as its metrics read, before its first round."""

    round = None
    error = None


def _read(path: Path) -> Any:
    return json.loads(path.read_text())


def _queries(path: Path) -> Iterator[tuple[str, str]]:
    for panel in _read(path)["panels"]:
        for target in panel["targets"]:
            query = target["expr"]
            for name, value in VARIABLES.items():
                query = query.replace(name, value)
            yield panel["title"], query


@contextlib.contextmanager
def controller_metrics() -> Iterator[str]:
    """The address of a controller's `/metrics`."""
    server, thread = start_http_server(0, "127.0.0.1", create_registry(cast("Reconciler", NoRounds()), dict))
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextlib.asynccontextmanager
async def prometheus(folder: Path, targets: dict[str, str]) -> AsyncIterator[str]:
    """Run Prometheus as compose does, but with these addresses in place of the jobs', and give its own."""
    folder.mkdir()
    yaml = YAML(typ="safe", pure=True)
    settings = yaml.load(GRAFANA / "prometheus" / "prometheus.yaml")
    assert {job["job_name"] for job in settings["scrape_configs"]} == set(targets)
    settings["global"] = {"scrape_interval": "250ms", "evaluation_interval": "250ms", "scrape_timeout": "250ms"}
    for job in settings["scrape_configs"]:
        job["static_configs"] = [{"targets": [targets[job["job_name"]]]}]
    yaml.dump(settings, folder / "prometheus.yaml")
    shutil.copy(GRAFANA / "prometheus" / "rules.yaml", folder)
    address = f"127.0.0.1:{free_port()}"
    program = shutil.which("prometheus") or str(cached_build("prometheus") / "prometheus")
    process = await asyncio.create_subprocess_exec(
        program,
        f"--config.file={folder / 'prometheus.yaml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={address}",
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        await until("Prometheus listens", lambda: _listens(address))
        yield f"http://{address}"
    finally:
        process.terminate()
        await process.wait()


async def _listens(address: str) -> bool:
    host, _, port = address.partition(":")
    try:
        _, writer = await asyncio.open_connection(host, int(port))
    except OSError:
        return False
    writer.close()
    return True


@contextlib.asynccontextmanager
async def busy_site(folder: Path) -> AsyncIterator[tuple[DocumentsSite, str]]:
    """A gateway with a model and retrieval, and the Prometheus that reads them."""
    async with engines(1) as (engine,), documents_site(folder / "state", route("m", [engine.url])) as site:
        with controller_metrics() as controller:
            gateway = site.url.removeprefix("http://")
            targets = {
                "gateway": gateway,
                "engines": gateway,
                "retrieval": site.retrieval_address,
                "controller": controller,
            }
            async with prometheus(folder / "prometheus", targets) as url:
                yield site, url


async def _work(site: DocumentsSite) -> None:
    async with site.gateway.post("/v1/documents?wait=true", text="Coal is stored beside the shed.") as answer:
        assert answer.status == 200, await answer.text()
    async with site.gateway.post("/v1/search", query="coal") as answer:
        assert answer.status == 200
        assert (await answer.json())["data"]
    async with site.gateway.chat() as answer:
        assert answer.status == 200


async def _ask(client: aiohttp.ClientSession, url: str, query: str) -> list[Any]:
    async with client.get(f"{url}/api/v1/query", params={"query": query}) as answer:
        said = await answer.json()
    assert said["status"] == "success", f"{query}: {said}"
    result: list[Any] = said["data"]["result"]
    return result


async def test_each_query_is_one_and_those_of_retrieval_have_figures(tmp_path: Path) -> None:
    found = shutil.which("prometheus") or (cached_build("prometheus") / "prometheus").exists()
    require("prometheus", bool(found), "prometheus is not on PATH, and .ci/prometheus has not unpacked it")
    async with busy_site(tmp_path) as (site, url), aiohttp.ClientSession() as client:

        async def is_read() -> bool:
            async with client.get(f"{url}/-/ready") as answer:
                is_ready = answer.status == 200
            return is_ready and [each["value"][1] for each in await _ask(client, url, "up")] == ["1"] * 4

        await until("Prometheus has read all four", is_read)

        async def has_figures(query: str) -> bool:
            await _work(site)  # each time, for a rate needs two readings and searches between them
            result = await _ask(client, url, query)
            return bool(result) and result[0]["value"][1] != "NaN"

        for title, query in _queries(RETRIEVAL):
            await until(f"{title!r} has figures by {query}", functools.partial(has_figures, query))
        for dashboard in DASHBOARDS:
            for _, query in _queries(dashboard):
                await _ask(client, url, query)
        async with client.get(f"{url}/api/v1/rules") as answer:
            rules = [rule for group in (await answer.json())["data"]["groups"] for rule in group["rules"]]
        assert rules
        assert {rule["health"] for rule in rules} <= {"ok", "unknown"}, "a rule that was not evaluated yet is unknown"


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_panels_have_places_of_their_own(path: Path) -> None:
    panels = _read(path)["panels"]
    ids = [panel["id"] for panel in panels]
    assert len(set(ids)) == len(ids)
    taken = [
        (x, y)
        for panel in panels
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(set(taken)) == len(taken)
    assert max(x for x, _ in taken) < 24
    assert all(panel["datasource"]["uid"] == "prometheus" for panel in panels)


def test_dashboards_have_names_of_their_own() -> None:
    dashboards = [_read(path) for path in DASHBOARDS]
    assert len({each["uid"] for each in dashboards}) == len({each["title"] for each in dashboards}) == len(DASHBOARDS)
    [source] = YAML(typ="safe", pure=True).load(GRAFANA / "provisioning" / "datasources" / "prometheus.yaml")[
        "datasources"
    ]
    assert source["uid"] == "prometheus"
