"""Roundhouses for tests of the page: with the demo model, with a model whose words a test decides, and with everything
that the page manages.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

from aiohttp import web

from tests.fakes.fake_mcp_server import Answer, FakeMcpServer, fake_mcp_server, reply, tool
from tests.fakes.fake_tool_model import Fields, Move, ToolModel, tool_model
from tests.support.fake_hub.repositories import HubRepository, make_gguf
from tests.support.fake_hub.server import FakeHub
from tests.support.page_browser import require_page
from tests.support.roundhouse_stack import RoundhouseStack, serving
from tests.support.scripted_model_file import make_scripted_model
from tests.support.wait import until

T = TypeVar("T")


@contextlib.contextmanager
def open_in_thread(context: AbstractAsyncContextManager[T]) -> Iterator[T]:
    """Enter `made` on the event loop of a thread of its own, which runs until this ends."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield asyncio.run_coroutine_threadsafe(context.__aenter__(), loop).result(60)
        asyncio.run_coroutine_threadsafe(context.__aexit__(None, None, None), loop).result(60)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(60)
        loop.close()


CLOCKWORK: Mapping[str, Any] = {"model_path": "clockwork.gguf", "llama_server_n_ctx": 4096}


@contextlib.contextmanager
def clockwork_stack(
    root: Path, clockwork: Path, models: Mapping[str, Any], tools: str | None = None
) -> Iterator[RoundhouseStack]:
    """Controller and gateway as processes, once the model named `clockwork` of `models` is loaded. `tools`: a further
    desired-state file."""
    require_page()
    stack = RoundhouseStack(root, "process", {"ROUNDHOUSE_MDNS": "off", "ROUNDHOUSE_PATH_PREFIX": PATH_PREFIX})
    shutil.copy(clockwork, stack.models / "clockwork.gguf")
    stack.declare(models)
    if tools is not None:
        (stack.desired / "tools.yaml").write_text(tools)

    with serving(stack, "clockwork"):
        yield stack


PATH_PREFIX = "/llm"
"""Under which the page is served, too, as by a proxy that passes a prefix on."""
MODEL = "speaker"
SERVER = "desk"


@dataclass
class SpokenStack:
    """Controller and gateway as processes, with the remote model `speaker` and the server of tools `desk`."""

    stack: RoundhouseStack
    model: ToolModel
    scripts: dict[str, Sequence[Move]] = field(default_factory=dict)
    """The model's moves for a message of the user, one for each round of calls; the last for ever."""

    @property
    def url(self) -> str:
        return self.stack.url

    async def add_conversation(
        self, title: str, items: Sequence[Fields], settings: Mapping[str, Any] | None = None
    ) -> str:
        """Store a conversation with these items, and return its id."""
        body = {"metadata": {"title": title}, "settings": {"model": MODEL, **(settings or {})}}
        conversation = (await self.stack.request("POST", "/v1/conversations", body)).success["id"]
        for first in range(0, len(items), 20):
            part = {"items": list(items[first : first + 20])}
            assert (await self.stack.request("POST", f"/v1/conversations/{conversation}/items", part)).success
        return str(conversation)


@contextlib.contextmanager
def spoken_stack(
    root: Path, results: Mapping[str, Fields], texts: Sequence[str] = (), servers: Mapping[str, str] | None = None
) -> Iterator[SpokenStack]:
    """A stack that runs. `results`: the result of MCP that each tool of the server has, by its name. `texts`: names of
    its prompts and resources, each of which has all these texts. `servers`: addresses of further servers, by name."""
    require_page()
    scripts: dict[str, Sequence[Move]] = {}
    with (
        open_in_thread(tool_model(decide=lambda body: _decide(scripts, body))) as model,
        open_in_thread(fake_mcp_server()) as server,
    ):
        _offer(server, results)
        _offer_texts(server, texts)
        stack = RoundhouseStack(root, "process", {"ROUNDHOUSE_MDNS": "off", "ROUNDHOUSE_PROBE_INTERVAL_S": "0.2"})
        declared = {"backend": "openai_remote", "base_url": f"{model.url}/v1", "modalities": ["text", "image"]}
        stack.declare({MODEL: declared})
        urls = {SERVER: f"http://127.0.0.1:{server.port}/mcp", **(servers or {})}
        stack.write("tools.yaml", {"mcp_servers": {name: {"url": url} for name, url in urls.items()}})
        with serving(stack):
            asyncio.run(stack.model_where(MODEL, lambda model: model.state.value == "loaded", "loaded"))
            yield SpokenStack(stack, model, scripts)


def message(role: str, text: str, annotations: Sequence[Fields] = ()) -> Fields:
    if role == "assistant":
        part: Fields = {"type": "output_text", "text": text, "annotations": list(annotations)}
    else:
        part = {"type": "input_text", "text": text}
    return {"type": "message", "role": role, "content": [part]}


def _offer(server: FakeMcpServer, results: Mapping[str, Fields]) -> None:
    def answering(result: Fields) -> Answer:
        async def answer(_: web.Request, request: Fields) -> web.StreamResponse:
            return web.json_response(reply(request, result))

        return answer

    server.tools = [tool(name) for name in results]
    server.answers = {name: answering(result) for name, result in results.items()}


def _offer_texts(server: FakeMcpServer, texts: Sequence[str]) -> None:
    async def get_prompt(_: web.Request, request: Fields) -> web.StreamResponse:
        content = {"type": "text", "text": "\n\n".join(texts)}
        return web.json_response(reply(request, {"messages": [{"role": "user", "content": content}]}))

    async def read_resource(_: web.Request, request: Fields) -> web.StreamResponse:
        contents = [{"uri": request["params"]["uri"], "mimeType": "text/html", "text": "\n\n".join(texts)}]
        return web.json_response(reply(request, {"contents": contents}))

    argument = {"name": texts[0], "description": texts[0]} if texts else {}
    server.prompts = [{"name": each, "description": each} for each in texts]
    server.prompts += [{"name": "asks", "arguments": [argument]}] if texts else []
    server.resources = [{"uri": each, "name": each, "description": each} for each in texts]
    server.answers |= {"prompts/get": get_prompt, "resources/read": read_resource}


def _decide(scripts: Mapping[str, Sequence[Move]], body: Fields) -> Move:
    messages = body["messages"]
    last = max(n for n, each in enumerate(messages) if each["role"] == "user")
    content = messages[last]["content"]
    text = content if isinstance(content, str) else "".join(part.get("text", "") for part in content)
    moves = scripts[text]
    rounds = sum(1 for each in messages[last:] if each.get("tool_calls"))
    return moves[min(rounds, len(moves) - 1)]


REPOSITORY = "clock/work-GGUF"
FILE = "work-Q4_K_M.gguf"
LARGE = "clock/large-GGUF"
LARGE_FILE = "large-Q4_K_M.gguf"
CITING = ("Coal is stored beside the shed ", "[1]", ".")
"""What the model `citing` says, whatever it is asked."""
MODELS: Mapping[str, Any] = {
    "clockwork": {"model_path": "clockwork.gguf", "llama_server_n_ctx": 4096},
    "resting": {"model_path": "clockwork.gguf", "enabled": False},
    "broken": {"model_path": "missing.gguf"},
    "citing": {"model_path": "citing.gguf", "llama_server_n_ctx": 4096, "enabled": False},
}
"""One model that serves, one that nobody wants, one whose file is missing, and one that cites."""


def make_hub(clockwork: Path) -> FakeHub:
    """A hub with `REPOSITORY`, which has the file `clockwork`, and `LARGE`, whose weights are zeros."""
    return FakeHub(
        [
            HubRepository(REPOSITORY, {FILE: clockwork, "README.md": b"hi"}),
            HubRepository(LARGE, {LARGE_FILE: make_gguf(width=1024)}),
        ]
    )


@contextlib.contextmanager
def managed_stack(root: Path, clockwork: Path, hub: FakeHub) -> Iterator[RoundhouseStack]:
    """Controller, gateway, retrieval and transfers as processes. Downloads come from the hub, which runs."""
    require_page()
    stack = RoundhouseStack(root, "process", _settings(root, hub))
    stack.settings["ROUNDHOUSE_GATEWAY_URL"] = stack.url
    shutil.copy(clockwork, stack.models / "clockwork.gguf")
    make_scripted_model(stack.models / "citing.gguf", CITING)
    stack.declare(MODELS)

    async def retrieval_answers() -> bool:
        return (await stack.request("GET", "/v1/documents")).status == 200

    stack.start("transfers")
    stack.start("retrieval")
    with serving(stack, "clockwork"):
        asyncio.run(until("retrieval answers", retrieval_answers))
        yield stack


def _settings(root: Path, hub: FakeHub) -> dict[str, str]:
    return {
        "ROUNDHOUSE_MDNS": "off",
        "ROUNDHOUSE_RESPONSES_RETENTION_H": "36",
        "ROUNDHOUSE_RETRIEVAL_LISTEN": f"unix:{root}/r.sock",
        "ROUNDHOUSE_RETRIEVAL_URL": f"unix:{root}/r.sock",
        "ROUNDHOUSE_TRANSFERS_LISTEN": f"unix:{root}/t.sock",
        "ROUNDHOUSE_TRANSFERS_URL": f"unix:{root}/t.sock",
        "ROUNDHOUSE_HUB_ENDPOINT": hub.endpoint,
        "ROUNDHOUSE_TRANSFERS_ALLOW_HOSTS": "127.0.0.1",
    }


KEYS: Mapping[str, list[str]] = {"reader": ["inference"], "boss": ["inference", "admin"]}
"""Keys of `keyed_stack`, with their scopes."""


def secret_of(key: str) -> str:
    return f"rh-secret-of-{key}"


@contextlib.contextmanager
def keyed_stack(root: Path, clockwork: Path) -> Iterator[RoundhouseStack]:
    """Controller and gateway as processes, with the model `clockwork`, which takes requests with `KEYS` alone."""
    require_page()
    stack = RoundhouseStack(root, "process", {"ROUNDHOUSE_MDNS": "off"})
    shutil.copy(clockwork, stack.models / "clockwork.gguf")
    stack.declare({"clockwork": MODELS["clockwork"]})
    keys = {
        name: {"sha256": sha256(secret_of(name).encode()).hexdigest(), "scopes": scopes}
        for name, scopes in KEYS.items()
    }

    async def is_closed() -> bool:
        return (await stack.request("GET", "/v1/models")).status == 401

    with serving(stack, "clockwork"):
        # The keys come last: without one, the stack's own questions would be refused.
        stack.write("keys.yaml", {"keys": keys})
        asyncio.run(until("the keys are in force", is_closed))
        yield stack
