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

from controller.engines import ENGINES
from controller.schema.admin import Capabilities
from controller.schema.routing import ModelRoute
from tests.bench.load import CHAT, close, connect, post_bytes
from tests.bench.targets import Target, free_port, process
from tests.fakes.fake_controller import FakeController, route
from tests.support import llama_servers, vllm_engine
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
        gateway = await _start_gateway(stack, folder, models)
        for engine in engines:
            await _until_answered(engine.port, engine.token, engine.model)
        for model in models:
            await _until_answered(gateway.port, "", model.name)
        yield gateway, engines


async def _start_engine(name: str, stack: AsyncExitStack, folder: Path) -> RealEngine:
    if name == LLAMA_SERVER:
        return await _start_llama_server(stack, folder)
    return await _start_vllm(stack, folder) if name == VLLM else await _start_fake(name, stack)


async def _start_llama_server(stack: AsyncExitStack, folder: Path) -> RealEngine:
    llama_servers.needed("binary")
    model = folder / "clockwork.gguf"
    make_model(model, context=CONTEXT, layers=LAYERS)
    port, token = free_port(), secrets.token_hex(16)
    flags = ["--ctx-size", str(CONTEXT), "--parallel", str(SLOTS), "--kv-unified", "--threads", "1", "--jinja"]
    flags += ["--fit", "off", "--metrics", "--slots", "--no-webui", "--host", "127.0.0.1", "--port", str(port)]
    command = [str(llama_servers.program()), "--model", str(model), "--alias", "llama", *flags]
    log = stack.enter_context((folder / "llama.log").open("wb"))
    await stack.enter_async_context(process(command, out=log, err=log, env={"LLAMA_API_KEY": token}))
    return RealEngine(LLAMA_SERVER, "llama", port, token)


async def _start_vllm(stack: AsyncExitStack, folder: Path) -> RealEngine:
    vllm_engine.programs()
    make_model(folder / "unused.gguf", folder / "vllm", layers=LAYERS)
    token = secrets.token_hex(16)
    worker = await asyncio.to_thread(vllm_engine.start_worker, folder, "vllm", token)
    stack.enter_context(worker)
    return RealEngine(VLLM, "vllm", worker.port, token)


async def _start_fake(name: str, stack: AsyncExitStack) -> RealEngine:
    command = [sys.executable, "-m", "tests.bench.engine"]
    engine = await stack.enter_async_context(process(command, out=asyncio.subprocess.PIPE))
    assert engine.stdout is not None
    return RealEngine(name, name.replace(" ", "-"), int(await engine.stdout.readline()), "")


async def _start_gateway(stack: AsyncExitStack, folder: Path, models: list[ModelRoute]) -> Target:
    """Told of the engines by a fake controller in this process, as the real one describes them."""
    controller = FakeController()
    await controller.start()
    stack.push_async_callback(controller.stop)
    port = free_port()
    env = {
        "ROUNDHOUSE_PORT": str(port),
        "ROUNDHOUSE_CONTROLLER_URL": controller.url,
        "ROUNDHOUSE_STATE": str(folder),
        "ROUNDHOUSE_LOG_LEVEL": "error",
        "ROUNDHOUSE_CONNECT_TIMEOUT_S": "60",  # 50 large bodies keep the fake engine from accepting connections
    }
    command = [sys.executable, "-m", "gateway"]
    started = await stack.enter_async_context(process(command, out=asyncio.subprocess.DEVNULL, env=env))
    await controller.publish(*models)
    return Target("gateway", port, started.pid)


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


async def _until_answered(port: int, secret: str, model: str) -> None:
    request = post_bytes(port, secret, CHAT, model=model, messages=[{"role": "user", "content": "Hi"}], max_tokens=2)
    async with asyncio.timeout(_START_LIMIT_S):
        while True:
            try:
                (connection,) = await connect(port, 1)
                await connection.ask(request)
            except (OSError, RuntimeError):
                await asyncio.sleep(0.1)
            else:
                close([connection])
                return
