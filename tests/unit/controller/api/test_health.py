"""Whether the controller is well, as its health check asks, and when it ends by itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from controller.assembly import EXIT_RUNTIME_SILENT
from tests.support.controller_app import Running, running
from tests.support.wait import until


@pytest.fixture
async def here(tmp_path: Path) -> AsyncIterator[Running]:
    async with running(tmp_path, {}, docker_gone_s=0.05) as found:
        yield found


async def health(here: Running) -> tuple[int, dict[str, str]]:
    """Status and body."""
    async with aiohttp.ClientSession() as client, client.get(f"{here.url}/internal/health") as answer:
        return answer.status, await answer.json()


async def test_a_runtime_that_hangs_for_long_makes_it_unhealthy(here: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (await health(here))[1]["status"] == "ok"
    here.runtime.unavailable = "it hangs"
    here.controller.set_paused(True, actor="a test")  # wakes the loop
    await until("the observation fails", lambda: here.controller.get_status().observation_error == "it hangs")
    assert (await health(here))[0] == 200, "not yet"
    monkeypatch.setattr("controller.observe.runtime_silence.UNHEALTHY_AFTER_S", 0.0)
    status, body = await health(here)
    assert (status, body["status"], body["error"]) == (503, "unhealthy", "it hangs")
    here.runtime.unavailable = None

    async def is_well() -> bool:
        return (await health(here))[0] == 200

    await until("the next observation is complete", is_well)
    assert here.controller.exit_code == 0


async def test_nobody_at_the_runtimes_address_ends_it(here: Running) -> None:
    here.runtime.unavailable, here.runtime.is_gone = "nobody listens", True
    here.controller.set_paused(True, actor="a test")
    async with asyncio.timeout(30):
        await here.controller.wait_for_end()
    assert here.controller.exit_code == EXIT_RUNTIME_SILENT
