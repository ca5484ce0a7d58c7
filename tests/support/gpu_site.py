"""A controller with fake GPUs, a gateway and one engine, for what is shown of the GPUs' memory."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import aiohttp
import psutil

from controller.assembly import Controller
from controller.runtimes.nvml import NvmlReader
from controller.runtimes.process.runtime import ProcessRuntime
from controller.settings import ControllerSettings
from controller.storage.state_dir import StateDir
from gateway.settings import GatewaySettings
from tests.fakes.fake_nvml import FakeNvml
from tests.fakes.gateway_harness import server_running
from tests.support.controller_app import serve_controller
from tests.support.wait import until

MODEL: Final = "chat"
TOTAL_MIB: Final = 8000
DECLARED_MIB: Final = 2000
"""What the model's definition says that it takes of its GPU."""


@contextlib.asynccontextmanager
async def gpu_site(folder: Path, *, engine_mib: int, used_mib: int, busy_percent: int) -> AsyncIterator[str]:
    """Start a Roundhouse below `folder` whose host has two GPUs, of which the second cannot be read. Yields the
    gateway's address once the stub `MODEL` is loaded and the controller has seen what the first GPU says: `engine_mib`
    of `used_mib` are the engine's."""
    nvml = FakeNvml()
    gpu = nvml.add(uuid="GPU-1", bus=1, total_mib=TOTAL_MIB, used_mib=0)
    nvml.add(uuid="GPU-2", bus=2, errors={"nvmlDeviceGetMemoryInfo": "GpuIsLost"})
    settings = _declare(folder)
    async with contextlib.AsyncExitStack() as stack:
        store = stack.enter_context(contextlib.closing(StateDir.open_folder(settings.state, "i")))
        memory = SimpleNamespace(**psutil.virtual_memory()._asdict())
        reader = NvmlReader(nvml, host_pids=True, read_host_memory=lambda: memory)
        runtime = ProcessRuntime("i", settings.state, settings.models, nvml=reader)
        client = await stack.enter_async_context(aiohttp.ClientSession())
        controller = await stack.enter_async_context(Controller(settings, store, runtime, client))
        stack.callback(controller.shut_down, stop_engines=True)
        control = await stack.enter_async_context(serve_controller(controller))
        told = GatewaySettings(controller_url=control, retrieval=False, state=folder / "gateway")
        url, _ = await stack.enter_async_context(server_running(told))

        def is_loaded() -> bool:
            return any(each.name == MODEL and each.state == "loaded" for each in controller.get_status().models)

        await until("the model is loaded", is_loaded)
        records = [json.loads(path.read_text()) for path in (settings.state / "replicas").glob("*.json")]
        [pid] = [each["pid"] for each in records if each["name"]]
        gpu.computing, gpu.used_mib, gpu.busy_percent = {pid: engine_mib}, used_mib, busy_percent

        async def is_seen() -> bool:
            async with client.get(f"{url}/v1/admin/models") as answer:
                [row] = (await answer.json())["models"]
            return bool(row["replica_details"][0]["claims"].get("GPU-1") == engine_mib)

        await until("the controller has seen the engine's memory", is_seen)
        yield url


def _declare(folder: Path) -> ControllerSettings:
    for name in ("desired", "gateway", "models"):
        (folder / name).mkdir(parents=True)
    model: dict[str, Any] = {"backend": "stub", "gpus": 1, "vram_mib": DECLARED_MIB}
    (folder / "desired" / "models.yaml").write_text(json.dumps({"models": {MODEL: model}}))
    return ControllerSettings(
        desired=folder / "desired", state=folder / "state", models=folder / "models", runtime="process", resync_s=0.5
    )
