"""What a real engine takes is seen when it is ready, and known after a restart of the controller and an unload."""

from __future__ import annotations

import json
from typing import Any

import psutil
import pytest

from tests.support.admin import AdminApi
from tests.support.roundhouse_stack import RoundhouseStack, replica_names
from tests.support.runtime_fixtures import DockerRuntimeFixture, RuntimeFixture
from tests.support.wait import until

pytestmark = pytest.mark.engines

LLAMA: dict[str, Any] = {
    "backend": "llama_server",
    "model_path": "clockwork.gguf",
    "llama_server_n_ctx": 65536,
    "llama_server_threads": 1,
}


def _rss_mib(stack: RoundhouseStack, runtime_fixture: RuntimeFixture, replica: str) -> int:
    """Of the engine's largest process, as this host sees it."""
    if isinstance(runtime_fixture, DockerRuntimeFixture):
        pid = runtime_fixture.client.containers.get(replica).attrs["State"]["Pid"]
    else:
        pid = json.loads((stack.state / "replicas" / f"{replica}.json").read_text())["pid"]
    leader = psutil.Process(pid)
    return max(each.memory_info().rss for each in (leader, *leader.children(recursive=True))) // 2**20


async def test_what_an_engine_takes_is_observed_and_remembered(
    stack: RoundhouseStack, runtime_fixture: RuntimeFixture
) -> None:
    stack.declare({"m": LLAMA})
    await stack.open()
    model = (await stack.loaded("m"))["m"]
    [replica] = replica_names(model)
    async with AdminApi(stack.url) as admin:

        async def observed() -> bool:
            return bool((await admin.row("m"))["vram_estimate_source"] == "observed_load_delta")

        await until("it was looked at", observed)
        seen = (await admin.row("m"))["vram_estimate_mib"]
        rss = _rss_mib(stack, runtime_fixture, replica)
        assert 0.8 * rss <= seen <= 1.25 * rss, (seen, rss)

        stack.kill("controller")
        stack.start("controller")

        async def is_back() -> bool:
            return (await admin.request("GET", "models")).status == 200

        await until("the controller is back", is_back)
        row = await admin.row("m")
        assert (row["vram_estimate_source"], row["vram_estimate_mib"]) == ("observed_load_delta", seen)
        assert replica_names((await stack.loaded("m"))["m"]) == {replica}

        assert (await admin.unload("m")).status == 200
        row = await admin.row("m")
        assert (row["vram_estimate_source"], row["vram_estimate_mib"]) == ("observed_load_delta", seen)
        # With other parameters it would be another engine.
        stack.declare({"m": LLAMA | {"llama_server_n_ctx": 1024, "enabled": False}})

        async def edited() -> bool:
            return bool((await admin.row("m"))["vram_estimate_source"] != "observed_load_delta")

        await until("what was observed no longer holds", edited)
