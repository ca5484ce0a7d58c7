"""Loads and unloads of real engines, as processes and as containers, through the gateway."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

import pytest

from tests.support.admin import AdminApi
from tests.support.http_client import send_request
from tests.support.load import Load
from tests.support.roundhouse_stack import RoundhouseStack
from tests.support.runtime_fixtures import RuntimeFixture
from tests.support.wait import until

pytestmark = pytest.mark.engines

LLAMA: dict[str, Any] = {
    "backend": "llama_server",
    "model_path": "clockwork.gguf",
    "enabled": False,
    "llama_server_n_ctx": 1024,
    "llama_server_threads": 1,
    "replica_max": 3,
}
LONG = {"max_tokens": 400, "ignore_eos": True}


async def _context_length(stack: RoundhouseStack, runtime_fixture: RuntimeFixture, model: str) -> set[int]:
    """What the engines themselves say of their context."""
    status = await stack.model(model)
    assert status is not None
    found = set()
    for replica in status.replicas:
        reply = await send_request(f"{replica.endpoint}/props", key=runtime_fixture.token(stack, replica.name))
        found.add(int(reply.success["default_generation_settings"]["n_ctx"]))
    return found


async def test_a_load_with_values_changes_the_engine_and_not_the_definition(
    stack: RoundhouseStack, runtime_fixture: RuntimeFixture
) -> None:
    stack.declare({"m": LLAMA})
    await stack.open()
    async with AdminApi(stack.url) as admin:
        plain = await admin.load("m")
        assert (plain.status, plain.body["load_override"]) == (200, {})
        assert await _context_length(stack, runtime_fixture, "m") == {1024}
        assert (await admin.unload("m")).status == 200
        assert runtime_fixture.left(stack) == []
        loaded = await admin.load("m", {"llama_server_n_ctx": 2048, "replicas": 2})
        assert (loaded.status, loaded.body["loaded_replicas"]) == (200, 2)
        assert await _context_length(stack, runtime_fixture, "m") == {2048}
        assert (loaded.body["load_override"], loaded.body["definition"]["llama_server_n_ctx"]) == (
            {"llama_server_n_ctx": 2048},
            1024,
        )
        # It is in force after a restart of the controller, and its engines were not touched.
        before = {
            replica["name"]: runtime_fixture.identity(stack, replica["name"])
            for replica in loaded.body["replica_details"]
        }
        stack.kill("controller", signal.SIGKILL)
        away = await admin.request("GET", "models")
        assert (away.status, away.code) == (503, "controller_unavailable")
        assert (await admin.chat("m")).status == 200
        stack.start("controller")
        await until("the controller is back", lambda: _is_back(admin))
        again = await admin.state("m", "loaded")
        assert (again["load_override"], again["replicas"]) == ({"llama_server_n_ctx": 2048}, 2)
        assert {
            each["name"]: runtime_fixture.identity(stack, each["name"]) for each in again["replica_details"]
        } == before
        # And the way back to the files ends it.
        assert (await admin.request("DELETE", "models/m/override")).status == 200
        back = await admin.state("m", "unloaded")
        assert (back["statement"]["kind"], back["load_override"]) == ("file", {})


async def test_another_context_is_tried_on_a_model_that_serves_and_taken_back(
    stack: RoundhouseStack, runtime_fixture: RuntimeFixture
) -> None:
    stack.declare({"m": LLAMA | {"enabled": True, "replicas": 2}})
    await stack.open("m")
    load = Load("m")
    async with AdminApi(stack.url) as admin, load.running(stack.url, workers=3):
        await load.more(3)
        refused = await admin.load("m", {"llama_server_n_ctx": 2048})
        assert (refused.status, refused.code) == (400, "invalid_load_request")
        restarted = await admin.load("m", {"llama_server_n_ctx": 2048}, restart=True)
        assert (restarted.status, restarted.body["runtime_state"]) == (200, "loaded"), restarted.body
        await until("what drained is gone", lambda: _is_at_rest(admin))
        assert await _context_length(stack, runtime_fixture, "m") == {2048}
        assert (await admin.request("DELETE", "models/m/override")).status == 200
        await until("the files rule again", lambda: _is_at_rest(admin))
        assert await _context_length(stack, runtime_fixture, "m") == {1024}
        await load.more(3)
    assert (load.lost, load.refused) == ([], {})


async def _is_at_rest(admin: AdminApi) -> bool:
    """Whether both replicas serve with the values in force, and no other one is left."""
    found = [(each["phase"], each["outdated"]) for each in (await admin.row("m"))["replica_details"]]
    return found == [("ready", False)] * 2


async def _is_back(admin: AdminApi) -> bool:
    """Whether the controller answers, and the gateway's link to it is up."""
    listed = await admin.request("GET", "models")
    return listed.status == 200 and listed.body["models"][0]["queue_depth"] is not None


async def _is_busy(admin: AdminApi, name: str) -> bool:
    """Whether its row tells of requests inside."""
    row = await admin.row(name)
    assert row["inflight_requests"] == row["runtime_inflight"]
    return bool(row["inflight_requests"])


async def test_an_unload_under_load_loses_nothing(stack: RoundhouseStack, runtime_fixture: RuntimeFixture) -> None:
    roomy = LLAMA | {"llama_server_n_ctx": 4096}
    stack.declare({"m": roomy | {"replicas": 2}, "other": roomy | {"enabled": True}})
    await stack.open("other")
    load, other = Load("m"), Load("other")
    async with AdminApi(stack.url) as admin:
        assert (await admin.load("m")).status == 200
        async with load.running(stack.url, workers=6, **LONG), other.running(stack.url, workers=2):
            await load.more(10)
            await until("requests are inside", lambda: _is_busy(admin, "m"))
            done = await admin.unload("m")
            assert (done.status, done.body["runtime_state"]) == (200, "unloaded")
            assert (done.body["inflight_requests"], done.body["queue_depth"]) == (0, 0)
            await other.more(5)
        assert (load.lost, other.lost, other.refused) == ([], [], {})
        assert {"model_not_loaded"} <= load.refused.keys() <= {"model_unloading", "model_not_loaded"}
    assert all("-other-" in name for name in runtime_fixture.left(stack))


async def test_loads_are_shared_outlive_their_client_and_are_not_delayed_by_one_that_fails(
    stack: RoundhouseStack, runtime_fixture: RuntimeFixture
) -> None:
    slow = {"backend": "stub", "enabled": False, "stub_load_s": 1.5}
    stack.declare({"lost": LLAMA | {"model_path": "clockwrok.gguf"}, "m": LLAMA, "slow": slow})
    await stack.open()
    async with AdminApi(stack.url) as admin:
        lost, first, second = await asyncio.gather(admin.load("lost"), admin.load("m"), admin.load("m"))
        assert (first.status, second.status) == (200, 200)
        starts = (await admin.request("GET", "history", kind="action", model="m")).body["entries"]
        assert [entry["details"]["action"] for entry in starts].count("start") == 1
        assert (lost.status, lost.code) == (503, "model_failed")
        row = await admin.row("lost")
        assert row["runtime_state"] == "failed"
        assert "clockwrok.gguf is missing" in row["last_error"]
        assert "did you mean `clockwork.gguf`?" in row["last_error"]
        # The file arrives: a load tries at once, whatever was remembered of the last try.
        (stack.models / "clockwrok.gguf").write_bytes((stack.models / "clockwork.gguf").read_bytes())
        (stack.models / "clockwrok.gguf").chmod(0o644)
        assert (await admin.load("lost")).status == 200
        # A load goes on when its client leaves.
        leaving = asyncio.create_task(admin.load("slow"))
        await admin.state("slow", "loading")
        leaving.cancel()
        await admin.state("slow", "loaded")
    assert len(runtime_fixture.left(stack)) == 3


async def test_an_unload_refuses_who_waits_for_the_load_and_stays_over_a_restart_and_against_demand(
    stack: RoundhouseStack, runtime_fixture: RuntimeFixture
) -> None:
    endless = {"backend": "stub", "autoload": True, "enabled": False, "stub_load_s": 600}
    stack.declare({"m": {"backend": "stub", "autoload": True}, "endless": endless})
    await stack.open()
    async with AdminApi(stack.url) as admin:
        # Who waits for a load is told of the unload.
        waiting = [asyncio.create_task(admin.chat("endless", stream=stream)) for stream in (False, True)]
        await until("both wait", lambda: _queued(admin, 2))
        assert (await admin.unload("endless")).status == 200
        for refused in await asyncio.gather(*waiting):
            assert (refused.status, refused.code) == (503, "model_unloading")
        row = await admin.row("endless")
        assert (row["queue_depth"], row["runtime_state"]) == (0, "unloaded"), "nobody asked for it again"
        assert (await admin.chat("m")).status == 200
        assert (await admin.unload("m")).status == 200
        assert (await admin.chat("m")).code == "model_not_loaded"
        stack.kill("controller", signal.SIGKILL)
        stack.start("controller")
        await until("the controller is back", lambda: _is_back(admin))
        assert (await admin.chat("m")).code == "model_not_loaded"
        # `hold: false` only frees the memory.
        assert (await admin.unload("m", {"hold": False})).status == 200
        assert (await admin.chat("m")).status == 200
    assert len(runtime_fixture.left(stack)) == 1


async def _queued(admin: AdminApi, count: int) -> bool:
    return bool((await admin.row("endless"))["queue_depth"] == count)
