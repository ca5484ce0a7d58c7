"""A Roundhouse on fake GPUs that has something to show in every panel, and the load for it.

Controller and gateway are real and run in the test's own event loop; retrieval and the engines, stubs, are processes.
What this machine cannot have is fake: NVML, the memory that stubs take of the GPUs, another server, and a vLLM.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import json
import os
import random
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
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
from controller.state_dir import StateDir
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
from tests.support.retrieval_harness import retrieval_program
from tests.support.wait import until
from worker.clockwork import make_model

GPU_MODEL: Final = "chat"
TOTAL_MIB: Final = 8000
DECLARED_MIB: Final = 2000
"""What the model's definition says that it takes of its GPU."""


@contextlib.asynccontextmanager
async def gpu_site(
    folder: Path, *, engine_mib: int, used_mib: int, busy_percent: int, transfers_url: str | None = None
) -> AsyncIterator[str]:
    """Start a Roundhouse below `folder` whose host has two GPUs, of which the second cannot be read. Yields the
    gateway's address once the stub `GPU_MODEL` is loaded and the controller has seen what the first GPU says:
    `engine_mib` of `used_mib` are the engine's. `transfers_url`: None: there is no transfers."""
    nvml = FakeNvml()
    gpu = nvml.add(uuid="GPU-1", bus=1, total_mib=TOTAL_MIB, used_mib=0)
    nvml.add(uuid="GPU-2", bus=2, errors={"nvmlDeviceGetMemoryInfo": "GpuIsLost"})
    settings = _declare_gpu_site(folder, transfers_url)
    async with contextlib.AsyncExitStack() as stack:
        store = stack.enter_context(contextlib.closing(StateDir.open_folder(settings.state, "i")))
        memory = SimpleNamespace(**psutil.virtual_memory()._asdict())
        reader = NvmlReader(nvml, host_pids=True, read_host_memory=lambda: memory)
        runtime = ProcessRuntime("i", settings.state, settings.models, nvml=reader)
        client = await stack.enter_async_context(aiohttp.ClientSession())
        controller = await stack.enter_async_context(Controller(settings, store, runtime, client))
        stack.callback(controller.shut_down, stop_engines=True)
        control = await stack.enter_async_context(serve_controller(controller))
        gateway_settings = GatewaySettings(controller_url=control, retrieval=False, state=folder / "gateway")
        url, _ = await stack.enter_async_context(server_running(gateway_settings))

        def is_loaded() -> bool:
            return any(each.name == GPU_MODEL and each.state == "loaded" for each in controller.get_status().models)

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


def _declare_gpu_site(folder: Path, transfers_url: str | None) -> ControllerSettings:
    for name in ("desired", "gateway", "models"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    model: dict[str, Any] = {"backend": "stub", "gpus": 1, "vram_mib": DECLARED_MIB}
    (folder / "desired" / "models.yaml").write_text(json.dumps({"models": {GPU_MODEL: model}}))
    given: dict[str, Any] = {} if transfers_url is None else {"transfers_url": transfers_url}
    return ControllerSettings(
        desired=folder / "desired",
        state=folder / "state",
        models=folder / "models",
        runtime="process",
        resync_s=0.5,
        **given,
    )


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
        gateway_settings = GatewaySettings(
            controller_url=control, retrieval_url=f"http://{retrieval}", state=folder / "gateway"
        )
        url, _ = await stack.enter_async_context(server_running(gateway_settings))
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


class SiteLoad:
    """Clients of a site. Each public method is one thing that clients do, or that befalls the site."""

    def __init__(self, site: MonitoredSite, seed: int = 1) -> None:
        self._site = site
        self._chance = random.Random(seed)
        self._turn = itertools.count()

    async def ask_in_turn(self) -> None:
        """One blocking and one streamed request to `chat`, by different keys and clients."""
        key = self._chance.choice(["research", "research", "website"])
        client = self._chance.choice(["notebook", "crawler", "chat-page", "coding-agent"])
        words = " ".join(["word"] * self._chance.randint(5, 400))
        await self._chat("chat", key, client=client, words=words, stream=True)
        await self._chat("chat", "website", client=client, words=words)

    async def overload(self) -> None:
        """More requests at a time than `small` has places for: some wait, some are refused."""
        await asyncio.gather(*(self._chat("small", "research", words="a") for _ in range(4)))

    async def swap(self) -> None:
        """Requests to two models, of which only one fits beside the others."""
        await self._chat("coder", "research")
        await self._chat("writer", "research")

    async def meet_faults(self) -> None:
        """A server that answers 500, breaks off streams, and is left by a client; and requests that are refused."""
        await self._chat("elsewhere", "research", fault="error_json")
        await self._chat("elsewhere", "research", fault="die_before_answer")
        await self._chat("elsewhere", "research", fault="die_mid_stream", stream=True)
        await self._leave("chat")
        await self._chat("nothing-like-that", "research")
        await self._chat("chat", "nobody")
        await self._chat("small", "batch")

    async def take_turns(self) -> None:
        """A session's two turns, with an engine that has some of the prompt cached, and with one that has nothing."""
        name = f"session-{next(self._turn)}"
        first = [{"role": "user", "content": "Hi"}]
        second = [*first, {"role": "assistant", "content": "Hi"}, {"role": "user", "content": "More"}]
        for model, messages in itertools.product(("elsewhere", "forgetful", "clockwork"), (first, second)):
            await self._chat(model, "website", session_id=name, messages=messages)

    async def store_and_read(self) -> None:
        """A response that is stored, and a resumable stream that is read again."""
        await self._post("/v1/responses", "research", {"model": "chat", "input": "Hi", "store": True})
        name = {"X-Conversation-Id": f"conv-{next(self._turn) % 5}"}
        await self._chat("chat", "research", stream=True, headers=name)
        url = f"{self._site.gateway_url}/v1/stream/{name['X-Conversation-Id']}"
        async with self._site.client.get(url, headers=_authorize("research")) as answer:
            await answer.read()

    async def search(self) -> None:
        text = f"Coal is stored beside shed {next(self._turn) % 40}."
        async with self._site.client.post(
            f"{self._site.gateway_url}/v1/documents?wait=true", data=text, headers=_authorize("research")
        ) as answer:
            await answer.read()
        await self._post("/v1/search", "research", {"query": "coal"})

    async def call_tools(self) -> None:
        """Calls that succeed, that fail, that take too long, and that are refused."""
        for tool, params in (
            ("current_time", {}),
            ("calculate", {"expression": "2 ** 10"}),
            ("calculate", {"expression": "1 / 0"}),
            ("weather__add", {"a": 1, "b": 2}),
            ("weather__add", {"a": "one"}),
            ("weather__wait", {"seconds": 60}),
        ):
            await self._post("/tools", "research", {"tool": tool, "params": params})

    async def crash(self) -> None:
        """One engine of `chat` is killed."""
        pids = {name: pid for name, pid in self._site.engine_pids().items() if "-chat-" in name}
        if pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pids[min(pids)], signal.SIGKILL)

    async def _leave(self, model: str) -> None:
        """Read the beginning of a stream, and close the connection."""
        body = {"model": model, "messages": [{"role": "user", "content": "Hi"}], "stream": True}
        url = f"{self._site.gateway_url}/v1/chat/completions"
        async with self._site.client.post(url, json=body, headers=_authorize("research")) as answer:
            await answer.content.readany()
            answer.close()

    async def _chat(self, model: str, key: str, *, client: str = "test", words: str = "Hi", **fields: Any) -> None:
        headers = {"X-Client-Id": client, **fields.pop("headers", {})}
        body = {"model": model, "messages": [{"role": "user", "content": words}], **fields}
        await self._post("/v1/chat/completions", key, body, headers)

    async def _post(self, path: str, key: str, body: dict[str, Any], headers: dict[str, str] | None = None) -> None:
        """Send a request and read its answer, whatever it is."""
        url = self._site.gateway_url + path
        with contextlib.suppress(aiohttp.ClientError):
            async with self._site.client.post(url, json=body, headers=_authorize(key) | (headers or {})) as answer:
                await answer.read()


def _authorize(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {SECRETS.get(key, 'unknown-secret')}"}


@contextlib.asynccontextmanager
async def under_load(site: MonitoredSite, *, crash_every_s: float) -> AsyncIterator[None]:
    """Send load of all kinds while the block runs, and crash an engine every so many seconds.

    An error of the load itself fails the block's end.
    """
    load = SiteLoad(site)
    await site.controller.find_drift()

    async def repeat(act: Callable[[], Awaitable[None]], pause_s: float, first_s: float = 0.0) -> None:
        await asyncio.sleep(first_s)
        while True:
            await act()
            await asyncio.sleep(pause_s)

    acts = (
        (load.ask_in_turn, 0.05),
        (load.ask_in_turn, 0.3),
        (load.overload, 0.5),
        (load.swap, 3.0),
        (load.meet_faults, 0.4),
        (load.take_turns, 0.4),
        (load.store_and_read, 0.5),
        (load.search, 0.3),
        (load.call_tools, 0.5),
    )
    tasks = [asyncio.create_task(repeat(act, pause_s)) for act, pause_s in acts]
    tasks.append(asyncio.create_task(repeat(load.crash, crash_every_s, crash_every_s / 2)))
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
    failed = [each for each in ended if isinstance(each, Exception)]
    if failed:
        raise ExceptionGroup("the load failed", failed)
