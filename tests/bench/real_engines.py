"""Real engines with a model of 2.6 million parameters, and the gateway in front of them, for `bench_engine`."""

from __future__ import annotations

import asyncio
import secrets
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from contract.admin import Capabilities
from contract.routing import ModelRoute
from controller.engines import ENGINES
from tests.bench.load import CHAT, post_bytes, wait_until_answered
from tests.bench.targets import Target, process, start_controller, start_gateway, start_module
from tests.fakes.fake_controller import route
from tests.support import installed_engines
from tests.support.ports import free_port
from worker.clockwork import make_model

LLAMA_SERVER, VLLM, FAKE, FAKE_BESIDE = "llama-server", "vLLM", "fake", "fake beside"
"""The last one takes the large bodies beside requests to the fake one: they meet in the gateway alone."""
LAYERS = 17
"""Of the clockwork model: 2.6 million parameters."""
CONTEXT = 16384
SLOTS = 4
_BACKENDS = {LLAMA_SERVER: "llama_server", VLLM: "vllm", FAKE: "stub", FAKE_BESIDE: "stub"}
_START_LIMIT_S = 300


@dataclass(frozen=True, slots=True)
class RealEngine:
    """An engine, asked by itself and through the gateway."""

    name: str
    model: str
    """Both call it so."""
    port: int
    token: str
    pid: int


Routes = Callable[[RealEngine], list[ModelRoute]]


@asynccontextmanager
async def open_engines(
    wanted: Collection[str], routes: Routes | None = None
) -> AsyncIterator[tuple[Target, list[RealEngine]]]:
    """The gateway, and those of the engines that are wanted and installed; what is not is told.

    `routes`: the models that the gateway knows each engine as; None: one of the engine's own name.
    """
    routes = routes or (lambda engine: [route_to(engine)])
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rh-bench")))
        engines = []
        for name in wanted:
            try:
                engines.append(await _start_engine(name, stack, folder))
            except pytest.skip.Exception as error:
                print(f"measuring without {name}: {error}", file=sys.stderr)
        models = [route for engine in engines for route in routes(engine)]
        controller = await start_controller(stack)
        # 50 large bodies keep the fake engine from accepting connections.
        gateway = await start_gateway(stack, controller, folder, ROUNDHOUSE_CONNECT_TIMEOUT_S="60")
        await controller.publish(*models)
        asked = [(engine.port, engine.token, engine.model) for engine in engines]
        for port, token, model in (*asked, *((gateway.port, "", each.name) for each in models)):
            await wait_until_answered(port, _greeting(port, token, model), _START_LIMIT_S)
        yield gateway, engines


async def _start_engine(name: str, stack: AsyncExitStack, folder: Path) -> RealEngine:
    if name == LLAMA_SERVER:
        return await _start_llama_server(stack, folder)
    return await _start_vllm(stack, folder) if name == VLLM else await _start_fake(name, stack)


async def _start_llama_server(stack: AsyncExitStack, folder: Path) -> RealEngine:
    installed_engines.needed("binary")
    model = folder / "clockwork.gguf"
    make_model(model, context=CONTEXT, layers=LAYERS)
    port, token = free_port(), secrets.token_hex(16)
    flags = ["--ctx-size", str(CONTEXT), "--parallel", str(SLOTS), "--kv-unified", "--threads", "1", "--jinja"]
    flags += ["--fit", "off", "--metrics", "--slots", "--no-webui", "--host", "127.0.0.1", "--port", str(port)]
    command = [str(installed_engines.program()), "--model", str(model), "--alias", "llama", *flags]
    log = stack.enter_context((folder / "llama.log").open("wb"))
    started = await stack.enter_async_context(process(command, out=log, err=log, env={"LLAMA_API_KEY": token}))
    return RealEngine(LLAMA_SERVER, "llama", port, token, started.pid)


async def _start_vllm(stack: AsyncExitStack, folder: Path) -> RealEngine:
    installed_engines.programs()
    make_model(folder / "unused.gguf", folder / "vllm", layers=LAYERS)
    token = secrets.token_hex(16)
    worker = await asyncio.to_thread(installed_engines.start_worker, folder, "vllm", token)
    stack.enter_context(worker)
    return RealEngine(VLLM, "vllm", worker.port, token, worker.process.pid)


async def _start_fake(name: str, stack: AsyncExitStack) -> RealEngine:
    started, port = await start_module(stack, "tests.bench.engine")
    return RealEngine(name, name.replace(" ", "-"), int(port), "", started.pid)


def route_to(engine: RealEngine) -> ModelRoute:
    backend = _BACKENDS[engine.name]
    made = route(
        engine.model,
        [f"http://127.0.0.1:{engine.port}"],
        token=engine.token or None,
        apis=(CHAT,),
        target_inflight=SLOTS if engine.name == LLAMA_SERVER else 64,
        queue_limit=64,
        capabilities=Capabilities(modalities=("text", "image")),  # else the gateway itself would refuse an image
    )
    return made.model_copy(update={"backend": backend, "notices_leaving": ENGINES[backend].notices_leaving})


def _greeting(port: int, token: str, model: str) -> bytes:
    return post_bytes(port, token, CHAT, model=model, messages=[{"role": "user", "content": "Hi"}], max_tokens=2)
