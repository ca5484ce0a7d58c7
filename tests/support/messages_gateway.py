"""A gateway in front of real engines, each published twice where it speaks messages itself: once so that its messages
are translated, and once so that they pass through."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import anthropic

from contract.routing import ModelRoute
from controller.engines.llama_server import LlamaServer, LlamaServerDefinition
from tests.fakes.fake_controller import route
from tests.fakes.gateway_harness import GatewayHarness, gateway_harness
from tests.support.installed_engines import Kind, llama_cpp_worker, started
from tests.support.scripted_model_file import TEMPLATE, make_caller
from tests.support.worker_process import Worker
from worker.clockwork import make_model

TOKEN = "replica-token"
NATIVE = ("/v1/messages", "/v1/messages/count_tokens")
TRANSLATED = ("/v1/chat/completions", "/v1/chat/completions/input_tokens")
_OF_LLAMA_SERVER = LlamaServer().list_apis(LlamaServerDefinition.model_validate({"model_path": "m.gguf"}))


@contextlib.contextmanager
def llama_servers(kind: Kind, folder: Path) -> Iterator[dict[str, Worker]]:
    """`plain` says the sentence, `caller` thinks and calls tools."""
    make_model(folder / "plain.gguf")
    make_caller(folder / "caller.gguf")
    (folder / "caller.jinja").write_text(TEMPLATE)
    template = ("--chat-template-file", str(folder / "caller.jinja"))
    with ExitStack() as stack:
        plain = stack.enter_context(started(kind, folder, "plain", folder / "plain.gguf", token=TOKEN))
        caller = stack.enter_context(started(kind, folder, "caller", folder / "caller.gguf", *template, token=TOKEN))
        yield {"plain": plain.ready(), "caller": caller.ready()}


@contextlib.contextmanager
def worker_of_ours(folder: Path) -> Iterator[Worker]:
    """Our own worker with llama-cpp-python, which says the sentence."""
    make_model(folder / "plain.gguf")
    with llama_cpp_worker(folder, folder / "plain.gguf", "inner") as worker:
        yield worker.ready()


def routes_of(name: str, server: Worker) -> tuple[ModelRoute, ...]:
    """The models of a llama-server: as the controller publishes it, and `native-NAME`, whose messages pass through."""
    url = f"http://127.0.0.1:{server.port}"
    as_it_is = route(name, [url], token=TOKEN, served_name=f"inner-{name}", apis=_OF_LLAMA_SERVER, target_inflight=4)
    native = route(f"native-{name}", [url], token=TOKEN, served_name=f"inner-{name}", apis=NATIVE, target_inflight=4)
    own = {"backend": "llama_server", "notices_leaving": LlamaServer.notices_leaving}
    return as_it_is.model_copy(update=own), native.model_copy(update=own)


@contextlib.asynccontextmanager
async def messages_gateway(
    servers: Mapping[str, Worker], worker: Worker | None = None
) -> AsyncIterator[GatewayHarness]:
    models = [model for name, server in servers.items() for model in routes_of(name, server)]
    if worker is not None:
        models.append(route("worker", [f"http://127.0.0.1:{worker.port}"], served_name="inner", apis=TRANSLATED))
    async with gateway_harness() as gateway:
        await gateway.publish(*models)
        yield gateway


def client_of(gateway: GatewayHarness, key: str = "none") -> anthropic.AsyncAnthropic:
    """The SDK as anybody uses it, without retries."""
    return anthropic.AsyncAnthropic(base_url=gateway.url, api_key=key, max_retries=0)
