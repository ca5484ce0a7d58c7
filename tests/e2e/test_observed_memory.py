"""What a real engine takes is seen when it is ready, and known after a restart of the controller and an unload."""

from __future__ import annotations

import json
from typing import Any

import psutil

from tests.support.admin import AdminApi
from tests.support.house import House, replica_names
from tests.support.sites import DockerSite, Site
from tests.support.wait import until

LLAMA: dict[str, Any] = {
    "backend": "llama_server",
    "model_path": "clockwork.gguf",
    "llama_server_n_ctx": 65536,
    "llama_server_threads": 1,
}


def _rss_mib(house: House, site: Site, replica: str) -> int:
    """Of the engine's largest process, as this host sees it."""
    if isinstance(site, DockerSite):
        pid = site.client.containers.get(replica).attrs["State"]["Pid"]
    else:
        pid = json.loads((house.state / "replicas" / f"{replica}.json").read_text())["pid"]
    leader = psutil.Process(pid)
    return max(each.memory_info().rss for each in (leader, *leader.children(recursive=True))) // 2**20


async def test_what_an_engine_takes_is_observed_and_remembered(house: House, site: Site) -> None:
    house.declare({"m": LLAMA})
    await house.open()
    model = (await house.loaded("m"))["m"]
    [replica] = replica_names(model)
    async with AdminApi(house.url) as admin:

        async def observed() -> bool:
            return bool((await admin.row("m"))["vram_estimate_source"] == "observed_load_delta")

        await until("it was looked at", observed)
        seen = (await admin.row("m"))["vram_estimate_mib"]
        rss = _rss_mib(house, site, replica)
        assert 0.8 * rss <= seen <= 1.25 * rss, (seen, rss)

        house.kill("controller")
        house.start("controller")

        async def is_back() -> bool:
            return (await admin.ask("GET", "models")).status == 200

        await until("the controller is back", is_back)
        row = await admin.row("m")
        assert (row["vram_estimate_source"], row["vram_estimate_mib"]) == ("observed_load_delta", seen)
        assert replica_names((await house.loaded("m"))["m"]) == {replica}

        assert (await admin.unload("m")).status == 200
        row = await admin.row("m")
        assert (row["vram_estimate_source"], row["vram_estimate_mib"]) == ("observed_load_delta", seen)
        # With other parameters it would be another engine.
        house.declare({"m": LLAMA | {"llama_server_n_ctx": 1024, "enabled": False}})

        async def edited() -> bool:
            return bool((await admin.row("m"))["vram_estimate_source"] != "observed_load_delta")

        await until("what was observed no longer holds", edited)
