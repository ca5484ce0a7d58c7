"""A Roundhouse whose model says and calls what a test decides, and whose tools answer what a test decides."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

from tests.fakes.fake_mcp_server import Answer, FakeMcpServer, fake_mcp_server, reply, tool
from tests.fakes.fake_tool_model import Fields, Move, ToolModel, tool_model
from tests.support.loop_thread import open_in_thread
from tests.support.page_browser import require_page
from tests.support.roundhouse_stack import RoundhouseStack, serving

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
        async def answer(_: web.Request, asked: Fields) -> web.StreamResponse:
            return web.json_response(reply(asked, result))

        return answer

    server.tools = [tool(name) for name in results]
    server.answers = {name: answering(result) for name, result in results.items()}


def _offer_texts(server: FakeMcpServer, texts: Sequence[str]) -> None:
    async def get_prompt(_: web.Request, asked: Fields) -> web.StreamResponse:
        content = {"type": "text", "text": "\n\n".join(texts)}
        return web.json_response(reply(asked, {"messages": [{"role": "user", "content": content}]}))

    async def read_resource(_: web.Request, asked: Fields) -> web.StreamResponse:
        contents = [{"uri": asked["params"]["uri"], "mimeType": "text/html", "text": "\n\n".join(texts)}]
        return web.json_response(reply(asked, {"contents": contents}))

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
