"""A gateway in front of real engines, for responses and for chats."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

from contract.routing import ModelRoute
from controller.engines.llama_server import LlamaServer, LlamaServerDefinition
from tests.fakes.fake_controller import route
from tests.fakes.gateway_harness import GatewayHarness, gateway_harness
from tests.support.installed_engines import Kind, llama_cpp_worker, started
from tests.support.scripted_model_file import AGENT_TEMPLATE, make_caller
from tests.support.worker_process import Worker
from worker.clockwork import make_model

TOKEN = "replica-token"
_OF_WORKER = ("/v1/chat/completions", "/v1/chat/completions/input_tokens")
_OF_LLAMA_SERVER = LlamaServer().list_apis(LlamaServerDefinition.model_validate({"model_path": "m.gguf"}))


@contextlib.contextmanager
def engines(kind: Kind, folder: Path) -> Iterator[dict[str, Worker]]:
    """llama-servers: `plain` says the sentence, `agent` thinks, calls tools, and stops when it has their results. And
    `worker`, our own with llama-cpp-python, which says the sentence too."""
    make_model(folder / "plain.gguf")
    with ExitStack() as stack:
        plain = stack.enter_context(started(kind, folder, "plain", folder / "plain.gguf", token=TOKEN))
        agent = stack.enter_context(agent_engine(kind, folder))
        worker = stack.enter_context(llama_cpp_worker(folder, folder / "plain.gguf", "inner-worker"))
        yield {"plain": plain.ready(), "agent": agent.ready(), "worker": worker.ready()}


def agent_engine(kind: Kind, folder: Path, *flags: str) -> Worker:
    """The `agent` alone, with further flags; not ready yet."""
    make_caller(folder / "agent.gguf")
    (folder / "agent.jinja").write_text(AGENT_TEMPLATE)
    template = ("--chat-template-file", str(folder / "agent.jinja"))
    return started(kind, folder, "agent", folder / "agent.gguf", *template, *flags, token=TOKEN)


def route_of(name: str, engine: Worker) -> ModelRoute:
    """The table's entry, as the controller makes it."""
    url = f"http://127.0.0.1:{engine.port}"
    if name == "worker":
        return route(name, [url], served_name="inner-worker", apis=_OF_WORKER)
    model = route(name, [url], token=TOKEN, served_name=f"inner-{name}", apis=_OF_LLAMA_SERVER, target_inflight=4)
    return model.model_copy(update={"backend": "llama_server", "notices_leaving": LlamaServer.notices_leaving})


@contextlib.asynccontextmanager
async def responses_gateway(workers: Mapping[str, Worker]) -> AsyncIterator[GatewayHarness]:
    async with gateway_harness() as gateway:
        await gateway.publish(*(route_of(name, engine) for name, engine in workers.items()))
        yield gateway
