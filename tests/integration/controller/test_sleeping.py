"""Two models of vLLM's that exclude each other on one GPU and sleep in place of ending: a whole controller and gateway,
and a scripted vLLM with the guard of its routes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
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
from tests.fakes.fake_vllm import FAULT_VARIABLE, STATE_VARIABLE
from tests.fakes.gateway_harness import server_running
from tests.fakes.mock_engine import WORDS
from tests.support.campaign import RecordProperty, campaign_count, record_figure
from tests.support.ci_cache import REPOSITORY
from tests.support.controller_app import serve_controller
from tests.support.wait import POLL_S, until

H200_MIB, CLAIM_MIB, ASLEEP_MIB = 143_771, 86_262, 846
TEXT: Final = " ".join(WORDS)


def _declare(folder: Path, models: Mapping[str, tuple[str, str]]) -> ControllerSettings:
    """`models`: name to how it sleeps, and what goes wrong with that."""
    for name in ("desired", "gateway", "models/m"):
        (folder / name).mkdir(parents=True)
    (folder / "models" / "m" / "config.json").write_text("{}")
    program = folder / "vllm"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m tests.fakes.fake_vllm "$@"\n')
    program.chmod(0o755)
    fields: dict[str, Any] = {"backend": "vllm_serve", "model_path": "m", "vllm_serve_binary": str(program), "gpus": 1}
    fields |= {"vram_mib": CLAIM_MIB, "memory_mib": 100, "enabled": False, "autoload": True, "min_residency_s": 0}
    environment = {"PYTHONPATH": str(REPOSITORY), STATE_VARIABLE: str(folder / "vllm-state")}
    declared = {
        name: fields | {"vllm_sleep": level, "env": environment | {FAULT_VARIABLE: fault}}
        for name, (level, fault) in models.items()
    }
    (folder / "desired" / "models.yaml").write_text(json.dumps({"models": declared}))
    return ControllerSettings(
        desired=folder / "desired",
        state=folder / "state",
        models=folder / "models",
        runtime="process",
        resync_s=0.2,
        engines_memory_mib=1_000_000,
    )


async def _follow_memory(gpu: FakeGpu, folder: Path) -> None:
    """What the driver tells: an engine holds its claim, and less while it sleeps."""
    while True:
        computing: dict[int, int | None] = {}
        for path in (folder / "state" / "replicas").glob("*.json"):
            with contextlib.suppress(FileNotFoundError):  # its engine has just ended
                pid = int(json.loads(path.read_text())["pid"] or 0)
                state = folder / f"vllm-state.{pid}"
                is_asleep = state.exists() and state.read_text() == "asleep"
                if pid and psutil.pid_exists(pid):
                    computing[pid] = ASLEEP_MIB if is_asleep else CLAIM_MIB
        gpu.computing, gpu.used_mib = computing, sum(mib or 0 for mib in computing.values())
        assert gpu.used_mib <= H200_MIB, f"memory was claimed twice: {computing}"
        await asyncio.sleep(POLL_S)


@dataclass
class Site:
    controller: Controller
    url: str
    client: aiohttp.ClientSession

    async def ask(self, model: str) -> float:
        """Ask for one answer, which must be the known text; how many seconds it took."""
        began = time.monotonic()
        body = {"model": model, "messages": [{"role": "user", "content": "Hi"}]}
        async with self.client.post(f"{self.url}/v1/chat/completions", json=body) as answer:
            fields = await answer.json()
            assert answer.status == 200, fields
        assert fields["choices"][0]["message"]["content"] == TEXT
        return time.monotonic() - began

    def state(self, model: str) -> str:
        return next(each.state for each in self.controller.get_status().models if each.name == model)

    def events(self) -> list[str]:
        return [each.message for each in self.controller.journal.read_after(0, 300)]

    def started(self, model: str) -> int:
        """How many engines of a model were ever started."""
        return max(
            each.attempt for row in self.controller.get_status().models if row.name == model for each in row.replicas
        )


@contextlib.asynccontextmanager
async def _site(folder: Path, settings: ControllerSettings, *, stop_engines: bool = True) -> AsyncIterator[Site]:
    nvml = FakeNvml()
    gpu = nvml.add(uuid="GPU-1", bus=1, total_mib=H200_MIB)
    async with contextlib.AsyncExitStack() as stack:
        store = stack.enter_context(contextlib.closing(StateDir.open_folder(settings.state, "i")))
        runtime = ProcessRuntime("i", settings.state, settings.models, nvml=NvmlReader(nvml, host_pids=True))
        client = await stack.enter_async_context(aiohttp.ClientSession())
        following = asyncio.create_task(_follow_memory(gpu, folder))
        stack.callback(following.cancel)
        controller = await stack.enter_async_context(Controller(settings, store, runtime, client))
        stack.callback(controller.shut_down, stop_engines=stop_engines)
        control = await stack.enter_async_context(serve_controller(controller))
        told = GatewaySettings(controller_url=control, retrieval=False, state=folder / "gateway")
        url, _ = await stack.enter_async_context(server_running(told))

        async def has_table() -> bool:
            async with client.get(f"{url}/v1/models") as answer:
                return answer.status == 200

        await until("the gateway has its table", has_table)
        yield Site(controller, url, client)
        assert not following.done(), following.exception()


async def test_two_models_take_turns_asleep(tmp_path: Path, record_property: RecordProperty) -> None:
    settings = _declare(tmp_path, {"a": ("level1", ""), "b": ("level2", "")})
    async with _site(tmp_path, settings, stop_engines=False) as site:
        await site.ask("a")
        await site.ask("b")
        swaps = [await site.ask(name) for _ in range(campaign_count(1, 25)) for name in ("a", "b")]
        record_figure(record_property, "swaps to a model that slept", len(swaps))
        record_figure(record_property, "longest swap, seconds", round(max(swaps), 2))
        await until("a sleeps", lambda: site.state("a") == "sleeping")
        assert (site.started("a"), site.started("b"), site.state("b")) == (1, 1, "loaded")
        [row] = [each for each in site.controller.get_status().models if each.name == "a"]
        assert row.replicas[0].claims == {"GPU-1": ASLEEP_MIB, "host": 100 + CLAIM_MIB}
        assert row.wake_s is not None
        async with site.client.post(f"{row.replicas[0].endpoint}/wake_up") as answer:
            assert answer.status == 401, "whoever has no key cannot wake it"
    async with _site(tmp_path, settings) as site:  # by a new controller
        await until("a sleeps", lambda: site.state("a") == "sleeping")
        await site.ask("a")
        assert site.started("a") == 1
        await until("b sleeps", lambda: site.state("b") == "sleeping")
        [row] = [each for each in site.controller.get_status().models if each.name == "b"]
        assert row.replicas[0].claims == {"GPU-1": ASLEEP_MIB, "host": 100}
        async with site.client.post(f"{site.url}/v1/admin/models/b/unload", json={"hold": True}) as answer:
            assert (await answer.json())["runtime_state"] == "unloaded", "an operator gets all of its memory"
        assert not (await site.controller.admin_service.get_model("b")).replica_details


async def test_an_engine_that_fails_to_sleep_or_wake_is_replaced(tmp_path: Path) -> None:
    faults = ("wrong", "dies_asleep", "dies_awake", "deaf")
    models = {"good": ("level1", ""), **{fault: ("level1", fault) for fault in faults}}
    async with _site(tmp_path, _declare(tmp_path, models)) as site:
        for fault in faults:
            await site.ask(fault)
            await site.ask("good")
            if fault == "dies_asleep":
                await until("it is gone", lambda: site.state("dies_asleep") == "unloaded")
            await site.ask(fault)
            assert site.started(fault) == 2, fault
        await site.ask("good")
        assert site.started("good") == 1
        assert any("it answers the canary otherwise than when it was loaded" in each for each in site.events())
