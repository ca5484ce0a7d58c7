"""A Roundhouse that has something to show in every panel: a controller on fake GPUs, a gateway, retrieval, engines.

Controller and gateway are real and run in the test's own event loop; retrieval and the engines, stubs, are processes.
What this machine cannot have is fake: NVML, the memory that stubs take of the GPUs, another server, and a vLLM.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import aiohttp
import psutil
from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest

from controller.assembly import Controller
from controller.runtimes.nvml import NvmlReader
from controller.runtimes.process.runtime import ProcessRuntime
from controller.settings import ControllerSettings
from controller.state import Phase
from controller.storage.state_dir import StateDir
from gateway.metrics.engine_exposition import EnginePage, merge_pages
from gateway.metrics.state_metrics import CertificateCollector
from gateway.settings import GatewaySettings
from tests.fakes.fake_nvml import FakeNvml
from tests.fakes.gateway_harness import engines, server_running
from tests.fakes.mock_engine import MockEngine
from tests.fakes.served_app import served_app
from tests.support.controller_app import serve_controller
from tests.support.mcp_servers import mcp_process
from tests.support.ports import free_port
from tests.support.retrieval_programs import retrieval_program
from tests.support.wait import until
from worker.clockwork import make_model

SECRETS: Final = {"research": "secret-of-research", "website": "secret-of-website", "batch": "secret-of-batch"}
"""The declared keys' secrets. `batch` may send 60 requests a minute."""
_GPU_MIB: Final = 24_000
_DRIVER_MIB: Final = 300
"""What a GPU without engines has in use."""
_CHAT: Final = {"backend": "stub", "gpus": 1, "stub_token_delay_ms": 15, "target_inflight": 4}

_ENABLED: Final = ("chat", "small", "clockwork", "elsewhere", "forgetful")
"""Models that are loaded from the start."""


def _models(servers: Mapping[str, str]) -> dict[str, Any]:
    """The models of the desired state. `servers`: addresses of remote ones, by the model's name."""
    # One of the two fits beside `chat` on the second GPU, and none beside `chat` and `small` on the first.
    swapped = _CHAT | {"vram_mib": 15_700, "enabled": False, "autoload": True, "min_residency_s": 1}
    remote = {
        "backend": "openai_remote",
        "session_cache": 4,
        "remote_fields": ["session_id", "fault", "after"],
    }
    return {
        "chat": _CHAT | {"vram_mib": 7_000, "replicas": 2},
        "small": _CHAT | {"vram_mib": 1_000, "target_inflight": 1, "queue_limit": 2},
        "coder": swapped,
        "writer": swapped,
        "clockwork": {"backend": "llama_server", "model_path": "clockwork.gguf"},
        **{name: remote | {"base_url": f"{url}/v1"} for name, url in servers.items()},
        "huge": _CHAT | {"gpus": 4, "vram_mib": 20_000},
        "broken": _CHAT | {"gpus": 0, "stub_fail": "the weights are cut off"},
    }


@dataclass
class MonitoredSite:
    """What runs, and where Prometheus finds it."""

    controller: Controller
    runtime: ProcessRuntime
    nvml: FakeNvml
    state: Path
    gateway_url: str
    targets: dict[str, list[str]]
    """Addresses by Prometheus' job."""
    client: aiohttp.ClientSession

    def engine_pids(self) -> dict[str, int]:
        """Return the process of each engine that was started, by its replica's name."""
        records = (json.loads(path.read_text()) for path in (self.state / "replicas").glob("*.json"))
        return {each["name"]: each["pid"] for each in records if each.get("pid")}

    async def follow_memory(self) -> None:
        """Let each engine that runs take a little more than its claim of the fake GPUs' memory; for ever."""
        for beat in itertools.count():
            pids = self.engine_pids()
            running = [each for each in await self.runtime.list_replicas() if each.phase is Phase.RUNNING]
            for gpu in self.nvml.gpus:
                held = {
                    pids[each.name]: int(each.claims[gpu.uuid] * 1.04)
                    for each in running
                    if gpu.uuid in each.claims and each.name in pids
                }
                gpu.computing = dict(held)
                gpu.used_mib = _DRIVER_MIB + sum(held.values())
                gpu.busy_percent = 20 + (beat * 7 + gpu.bus * 13) % 60 if held else 0
            await asyncio.sleep(0.2)

    async def load_models(self) -> None:
        """Wait until the models that are enabled, and can be loaded, are loaded."""

        def loaded() -> bool:
            states = {each.name: each.state for each in self.controller.get_status().models}
            return {states.get(name) for name in _ENABLED} == {"loaded"}

        await until("the models are loaded", loaded)


@contextlib.asynccontextmanager
async def monitored_site(folder: Path) -> AsyncIterator[MonitoredSite]:
    """Start the site below `folder`, and end all of it with the block."""
    nvml = FakeNvml()
    for bus in (1, 2):
        nvml.add(uuid=f"GPU-{bus}", bus=bus, total_mib=_GPU_MIB, used_mib=_DRIVER_MIB)
    nvml.add(uuid="GPU-3", bus=3, errors={"nvmlDeviceGetMemoryInfo": "GpuIsLost"})
    async with contextlib.AsyncExitStack() as stack:
        elsewhere, forgetful = await stack.enter_async_context(engines(2))
        _tell_cached_tokens(elsewhere, 2)
        _tell_cached_tokens(forgetful, 0)
        weather = await stack.enter_async_context(mcp_process())
        servers = {"elsewhere": elsewhere.url, "forgetful": forgetful.url}
        settings = _declare(folder, servers, f"http://127.0.0.1:{weather.port}/mcp")
        store = stack.enter_context(contextlib.closing(StateDir.open_folder(settings.state, "i")))
        memory = SimpleNamespace(**psutil.virtual_memory()._asdict())
        reader = NvmlReader(nvml, host_pids=True, read_host_memory=lambda: memory)
        runtime = ProcessRuntime("i", settings.state, settings.models, nvml=reader)
        client = await stack.enter_async_context(aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)))
        controller = await stack.enter_async_context(Controller(settings, store, runtime, client))
        stack.callback(controller.shut_down, stop_engines=True)
        control = await stack.enter_async_context(serve_controller(controller))
        retrieval = f"127.0.0.1:{free_port()}"
        told = GatewaySettings(controller_url=control, retrieval_url=f"http://{retrieval}", state=folder / "gateway")
        url, _ = await stack.enter_async_context(server_running(told))
        await stack.enter_async_context(retrieval_program(folder / "gateway", url, retrieval))
        gateway = url.removeprefix("http://")
        targets = {
            "gateway": [gateway],
            "engines": [gateway, await stack.enter_async_context(absent_parts())],
            "retrieval": [retrieval],
            "controller": [control.removeprefix("http://")],
        }
        site = MonitoredSite(controller, runtime, nvml, settings.state, url, targets, client)
        held = asyncio.create_task(site.follow_memory())
        try:
            await site.load_models()
            yield site
        finally:
            held.cancel()
            await asyncio.gather(held, return_exceptions=True)


def _declare(folder: Path, servers: Mapping[str, str], mcp_url: str) -> ControllerSettings:
    for name in ("desired", "gateway"):
        (folder / name).mkdir(parents=True)
    keys: dict[str, dict[str, Any]] = {
        name: {"sha256": hashlib.sha256(secret.encode()).hexdigest()} for name, secret in SECRETS.items()
    }
    keys["batch"]["requests_per_minute"] = 60
    keys["research"]["tools"] = ["*"]
    nobody = f"http://127.0.0.1:{free_port()}/mcp"
    declared = {
        "models": _models(servers),
        "keys": keys,
        "tools": {"calculate": {}, "current_time": {}},
        "mcp_servers": {"weather": {"url": mcp_url, "timeout_s": 1}, "gone": {"url": nobody}},
    }
    make_model(folder / "clockwork.gguf")
    (folder / "desired" / "models.yaml").write_text(json.dumps(declared))
    return ControllerSettings(
        desired=folder / "desired", state=folder / "state", models=folder, runtime="process", resync_s=0.5
    )


def _tell_cached_tokens(engine: MockEngine, cached: int) -> None:
    """Let blocking answers say that so many of seven prompt tokens were cached."""
    answer = {
        "id": "mock-1",
        "object": "chat.completion",
        "created": 1,
        "model": "mock",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hi"}, "finish_reason": "stop"}],
        "usage": {
            "prompt_tokens": 7,
            "completion_tokens": 1,
            "total_tokens": 8,
            "prompt_tokens_details": {"cached_tokens": cached},
        },
    }
    body = json.dumps(answer)
    head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    engine.answers["/v1/chat/completions"] = (head + body).encode()


@contextlib.asynccontextmanager
async def absent_parts() -> AsyncIterator[str]:
    """The address of what the gateway would serve for a vLLM whose figures rise, and with a TLS certificate."""
    beats = itertools.count()
    certificate = CollectorRegistry()
    certificate.register(CertificateCollector(lambda: False))

    async def answer(_: web.Request) -> web.Response:
        page = merge_pages([EnginePage("chat-vllm", "rh-i-chat-vllm-0", _vllm_text(next(beats)), 0.01)])
        return web.Response(text=page + generate_latest(certificate).decode())

    app = web.Application()
    app.router.add_get("/metrics/engines", answer)
    async with served_app(app) as url:
        yield url.removeprefix("http://")


def _vllm_text(beat: int) -> str:
    gauges: dict[str, float] = {"num_requests_running": 3 + beat % 4, "num_requests_waiting": beat % 2}
    gauges["kv_cache_usage_perc"] = 0.3 + (beat % 20) / 50
    steps = {"prompt_tokens": 40, "generation_tokens": 25, "prefix_cache_queries": 30, "prefix_cache_hits": 12}
    rows: list[tuple[str, str, float]] = [("gauge", name, value) for name, value in gauges.items()]
    rows += [("counter", f"{name}_total", step * beat) for name, step in steps.items()]
    return "".join(f"# TYPE vllm:{name} {kind}\nvllm:{name} {value}\n" for kind, name, value in rows)
