"""What tools at work need, in a process of its own: an engine whose model calls tools, MCP servers, and a web page.

    python -m tests.bench.tool_sides     prints one JSON object (`Sides`), then serves until SIGTERM

The model makes of a request that offers tools one call in each round, of the tool whose name ends with the last word
of the user's message, after `ROUND_S`; what offers no tools it answers at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import os
from contextlib import AsyncExitStack
from typing import Any, Final, TypedDict

from aiohttp import web

from tests.fakes.fake_mcp_server import FakeMcpServer, never, tool
from tests.fakes.fake_tool_model import Call, Move, ToolModel

ROUND_S: Final = 0.5
"""Seconds that the model takes for a round that calls: an engine's rounds take about as long, or longer."""
NICENESS: Final = 19
"""So that what is measured does not wait for a core that tools and clients take."""
FLOOD_BYTES: Final = 100 * 1024 * 1024
_PART: Final = b"x" * 65536
_PAGE: Final = "<html><body>" + "<p>The brown fox jumps over <b>a lazy dog</b>.</p>" * 10_000 + "</body></html>"
_ARGUMENTS: Final = {
    "search_files": {"text": "nowhere to be found"},
    "calculate": {"expression": "2 ** 100"},
}


class Sides(TypedDict):
    engine: str
    page: str
    flood: str
    """Of the MCP server whose tool `dump` answers 100 MiB."""
    mute: str
    """Of the MCP server whose tool `hang` never answers."""


def decide(body: dict[str, Any], page: str) -> Move:
    offered = [each["function"]["name"] for each in body.get("tools", ())]
    asked = next(each["content"] for each in reversed(body["messages"]) if each["role"] == "user")
    wanted = asked.split()[-1]
    names = [name for name in offered if name.endswith(wanted)]
    if not names or body.get("tool_choice") == "none":
        return Move("Done.")
    arguments = {"url": page} if wanted == "fetch_url" else _ARGUMENTS.get(wanted, {})
    return Move(calls=[Call(names[0], arguments)])


async def _flood(request: web.Request, message: dict[str, Any]) -> web.StreamResponse:
    """Answer with a text of `FLOOD_BYTES`, as fast as it is read."""
    response = web.StreamResponse(headers={"content-type": "application/json"})
    await response.prepare(request)
    head = {"jsonrpc": "2.0", "id": message["id"]}
    with contextlib.suppress(ConnectionError):  # the gateway does not read it to its end
        await response.write(json.dumps(head).encode()[:-1] + b', "result": {"content": [{"type": "text", "text": "')
        for _ in itertools.repeat(None, FLOOD_BYTES // len(_PART)):
            await response.write(_PART)
        await response.write(b'"}]}}')
    return response


async def _serve_app(stack: AsyncExitStack, app: web.Application) -> str:
    runner = web.AppRunner(app, handler_cancellation=True)
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    return f"http://127.0.0.1:{runner.addresses[0][1]}"


async def _serve() -> None:
    async with AsyncExitStack() as stack:
        servers = FakeMcpServer(), FakeMcpServer()
        for server, name, answer in zip(servers, ("dump", "hang"), (_flood, never), strict=True):
            server.tools, server.answers = [tool(name)], {name: answer}
            await server.start()
            stack.push_async_callback(server.stop)

        async def show_page(_: web.Request) -> web.Response:
            return web.Response(text=_PAGE, content_type="text/html")

        pages = web.Application()
        pages.router.add_get("/", show_page)
        page = await _serve_app(stack, pages) + "/"
        model = ToolModel(lambda body: decide(body, page))

        async def complete(request: web.Request) -> web.StreamResponse:
            if b'"tools"' in await request.read():
                await asyncio.sleep(ROUND_S)
            answered = await model.answer(request)
            model.requests.clear()
            return answered

        engine = web.Application(client_max_size=64 * 1024 * 1024)
        engine.router.add_post("/v1/chat/completions", complete)
        flood, mute = (f"http://127.0.0.1:{server.port}/mcp" for server in servers)
        sides: Sides = {"engine": await _serve_app(stack, engine), "page": page, "flood": flood, "mute": mute}
        print(json.dumps(sides), flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    os.nice(NICENESS)
    logging.disable()  # the gateway reads no flood to its end, of which aiohttp complains
    asyncio.run(_serve())
