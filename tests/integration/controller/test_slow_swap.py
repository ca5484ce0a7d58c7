"""Two models of vLLM's that exclude each other on one GPU, and a victim that takes its time to end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import aiohttp
import psutil

from controller.assembly import Controller
from controller.runtimes.nvml import NvmlReader
from controller.runtimes.process.runtime import ProcessRuntime
from controller.settings import ControllerSettings
from controller.state_dir import StateDir
from gateway.settings import GatewaySettings
from tests.fakes.fake_nvml import FakeGpu, FakeNvml
from tests.fakes.fake_vllm import END_VARIABLE
from tests.fakes.gateway_harness import server_running
from tests.support.ci_cache import REPOSITORY
from tests.support.controller_app import serve_controller
from tests.support.wait import POLL_S, until

H200_MIB, DRIVER_MIB = 143_771, 615
CLAIM_MIB: Final = 86_262
"""0.6 of it."""
END_S: Final = 0.7
RELEASE_S: Final = 0.3
"""Seconds for which memory stays in use when its process is gone."""


def _declare(folder: Path) -> ControllerSettings:
    for name in ("desired", "gateway", "models/m"):
        (folder / name).mkdir(parents=True)
    (folder / "models" / "m" / "config.json").write_text("{}")
    program = folder / "vllm"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m tests.fakes.fake_vllm "$@"\n')
    program.chmod(0o755)
    fields: dict[str, Any] = {"backend": "vllm_serve", "model_path": "m", "vllm_serve_binary": str(program), "gpus": 1}
    fields |= {"vram_mib": CLAIM_MIB, "memory_mib": 100, "enabled": False, "autoload": True, "min_residency_s": 0}
    fields["env"] = {"PYTHONPATH": str(REPOSITORY), END_VARIABLE: str(END_S)}
    (folder / "desired" / "models.yaml").write_text(json.dumps({"models": {"a": fields, "b": fields}}))
    # It looks often, so that it also looks while the engine ends.
    return ControllerSettings(
        desired=folder / "desired",
        state=folder / "state",
        models=folder / "models",
        runtime="process",
        resync_s=0.1,
    )


async def _follow_memory(gpu: FakeGpu, records: Path) -> None:
    """What the driver tells: each engine holds its claim, and its memory is free a moment after its process is gone."""
    loop, held_until = asyncio.get_running_loop(), dict[int, float]()
    while True:
        now = loop.time()
        pids = {int(json.loads(path.read_text())["pid"] or 0) for path in records.glob("*.json")}
        alive = {pid for pid in pids if pid and psutil.pid_exists(pid)}
        held_until |= dict.fromkeys(alive, now + RELEASE_S)
        held = {pid for pid, until in held_until.items() if until > now}
        gpu.computing, gpu.used_mib = dict.fromkeys(sorted(alive), CLAIM_MIB), DRIVER_MIB + CLAIM_MIB * len(held)
        assert gpu.used_mib <= H200_MIB, "two of them were started"
        await asyncio.sleep(POLL_S)


@contextlib.asynccontextmanager
async def _site(folder: Path) -> AsyncIterator[tuple[Controller, str]]:
    nvml, settings = FakeNvml(), _declare(folder)
    gpu = nvml.add(uuid="GPU-1", bus=1, total_mib=H200_MIB, used_mib=DRIVER_MIB)
    async with contextlib.AsyncExitStack() as stack:
        store = stack.enter_context(contextlib.closing(StateDir.open_folder(settings.state, "i")))
        runtime = ProcessRuntime("i", settings.state, settings.models, nvml=NvmlReader(nvml, host_pids=True))
        client = await stack.enter_async_context(aiohttp.ClientSession())
        controller = await stack.enter_async_context(Controller(settings, store, runtime, client))
        stack.callback(controller.shut_down, stop_engines=True)
        following = asyncio.create_task(_follow_memory(gpu, settings.state / "replicas"))
        stack.callback(following.cancel)
        control = await stack.enter_async_context(serve_controller(controller))
        told = GatewaySettings(controller_url=control, retrieval=False, state=folder / "gateway")
        url, _ = await stack.enter_async_context(server_running(told))

        async def has_table() -> bool:
            async with client.get(f"{url}/v1/models") as answer:
                return answer.status == 200

        await until("the gateway has its table", has_table)
        yield controller, url
        assert not following.done(), following.exception()


async def test_a_client_waits_for_the_model_that_ends_slowly_and_is_answered(tmp_path: Path) -> None:
    async with _site(tmp_path) as (controller, url), aiohttp.ClientSession() as session:
        question = {"messages": [{"role": "user", "content": "Hi"}]}
        async with session.post(f"{url}/v1/chat/completions", json={"model": "a", **question}) as answer:
            assert answer.status == 200, await answer.text()
        body = {"model": "b", "stream": True, **question}
        async with session.post(f"{url}/v1/chat/completions", json=body, headers={"X-Progress": "true"}) as answer:
            assert answer.status == 200
            lines = [line async for line in answer.content]
        assert [line for line in lines if b'"error"' in line] == []
        assert lines[-2] == b"data: [DONE]\n", lines
        told = [json.loads(line.removeprefix(b": progress ")) for line in lines if line.startswith(b": progress ")]
        reasons = {each.get("reason") for each in told if each["stage"] == "load"}
        assert "waiting for room: a is ending" in reasons
        assert "waiting for room: memory of an engine that has ended is not free yet" in reasons
        states = [each.message for each in controller.journal.read_after(0, 200) if each.kind == "state"]
        assert [each for each in states if "failed" in each] == []
        models = {each.name: each for each in controller.get_status().models}
        assert (models["a"].state, models["b"].state, models["b"].last_error) == ("unloaded", "loaded", None)
