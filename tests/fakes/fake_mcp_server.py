"""A fake: an MCP server of the protocol's version of 2025, with sessions, whose answers a test chooses.

The package `mcp` makes no server that hangs, breaks off, floods, lies, or knows nothing of the newest version.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from aiohttp import web

from contract.tools import McpServerRoute

Answer = Callable[[web.Request, dict[str, Any]], Awaitable[web.StreamResponse]]


def tool(name: str, **fields: Any) -> dict[str, Any]:
    """A tool as a server lists it."""
    return {"name": name, "description": f"Tool {name}.", "inputSchema": {"type": "object"}, **fields}


class FakeMcpServer:
    """Listens on loopback, and knows one session at a time."""

    def __init__(self) -> None:
        self.port = 0
        self.tools: list[dict[str, Any]] = [tool("echo")]
        self.prompts: list[dict[str, Any]] = []
        """As the server lists them; it has no prompts at all where there are none."""
        self.resources: list[dict[str, Any]] = []
        """The same of resources."""
        self.answers: dict[str, Answer] = {}
        """By the name of the tool that is called, or by method; else the arguments are answered."""
        self.headers: list[dict[str, str]] = []
        """Of every request, names in lower case."""
        self.methods: list[str] = []
        """Of JSON-RPC, in the order in which they came."""
        self.session = 0
        self.end_session: Answer = accept
        self.ends = 0
        """Sessions that clients have ended."""
        self.open_ends = 0
        self.open_calls = 0
        """Requests that are not answered yet."""
        self._streams: set[web.StreamResponse] = set()
        self._runner: web.AppRunner | None = None

    def route(self, name: str = "fake", **fields: object) -> McpServerRoute:
        """Its declaration, as the routing table has it."""
        return McpServerRoute.model_validate({"name": name, "url": f"http://127.0.0.1:{self.port}/mcp", **fields})

    async def start(self) -> None:
        """Listen; after a stop, at the same port again."""
        app = web.Application()
        app.router.add_post("/mcp", self._post)
        app.router.add_get("/mcp", self._get)
        app.router.add_delete("/mcp", self._delete)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port).start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """Break every connection and close the port."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    def forget_session(self) -> None:
        """Know the session no more, as a server that was started anew."""
        self.session += 1

    async def tell_of_change(self) -> None:
        """Tell all listeners that the list of tools has changed."""
        for stream in list(self._streams):
            with contextlib.suppress(OSError):
                await stream.write(
                    b'event: message\ndata: {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}\n\n'
                )

    async def _post(self, request: web.Request) -> web.StreamResponse:
        self.open_calls += 1
        try:
            return await self._answer(request)
        finally:
            self.open_calls -= 1

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        message = await request.json()
        method = message["method"]
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        self.methods.append(method)
        if method in self.answers:
            return await self.answers[method](request, message)
        if method == "initialize":
            result = {
                "protocolVersion": message["params"]["protocolVersion"],
                "capabilities": self._capabilities(),
                "serverInfo": {"name": "fake", "version": "1"},
            }
            self.session += 1
            return web.json_response(reply(message, result), headers={"mcp-session-id": str(self.session)})
        if method == "server/discover":
            error = {"code": -32601, "message": "Method not found"}
            return web.json_response({"jsonrpc": "2.0", "id": message["id"], "error": error})
        if request.headers.get("mcp-session-id") != str(self.session):
            return web.json_response({"error": "no such session"}, status=404)
        if "id" not in message:
            return web.Response(status=202)
        if method == "tools/list":
            return web.json_response(reply(message, {"tools": self.tools}))
        if method in ("prompts/list", "resources/list", "resources/templates/list"):
            kind = "resourceTemplates" if "templates" in method else method.partition("/")[0]
            listed = {"prompts": self.prompts, "resources": self.resources, "resourceTemplates": []}[kind]
            return web.json_response(reply(message, {kind: listed}))
        name = message["params"]["name"]
        if name in self.answers:
            return await self.answers[name](request, message)
        return web.json_response(reply(message, text_result(str(message["params"].get("arguments")))))

    def _capabilities(self) -> dict[str, Any]:
        kinds = {"prompts": self.prompts, "resources": self.resources}
        return {"tools": {"listChanged": True}, **{kind: {} for kind, listed in kinds.items() if listed}}

    async def _get(self, request: web.Request) -> web.StreamResponse:
        stream = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await stream.prepare(request)
        self._streams.add(stream)
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            self._streams.discard(stream)
        return stream

    async def _delete(self, request: web.Request) -> web.StreamResponse:
        self.ends += 1
        self.open_ends += 1
        try:
            return await self.end_session(request, {})
        finally:
            self.open_ends -= 1


def reply(message: dict[str, Any], result: dict[str, Any]) -> dict[str, Any]:
    """The answer to a request of JSON-RPC."""
    return {"jsonrpc": "2.0", "id": message["id"], "result": result}


def text_result(text: str) -> dict[str, Any]:
    """A result of a tool."""
    return {"content": [{"type": "text", "text": text}]}


async def accept(_: web.Request, __: dict[str, Any]) -> web.StreamResponse:
    """Answer that all is well."""
    return web.Response(status=200)


async def never(_: web.Request, __: dict[str, Any]) -> web.StreamResponse:
    """Never answer."""
    await asyncio.get_running_loop().create_future()
    raise AssertionError


def stream_of(part: bytes, times: int, media_type: str, first: bytes = b"") -> Answer:
    """An answer that begins with `first`, and goes on with a part so many times, and then breaks off."""

    async def answer(request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": media_type})
        await response.prepare(request)
        await response.write(first)
        for _number in range(times):
            await response.write(part)
        assert request.transport is not None
        request.transport.abort()
        return response

    return answer


@contextlib.asynccontextmanager
async def fake_mcp_server() -> AsyncIterator[FakeMcpServer]:
    """A server that listens."""
    server = FakeMcpServer()
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


def answering(result: dict[str, Any]) -> Answer:
    """Answer this."""

    async def answer(_: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        return web.json_response(reply(message, result))

    return answer


def refusing(code: int, words: str) -> Answer:
    """Answer an error of JSON-RPC."""

    async def answer(_: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        return web.json_response({"jsonrpc": "2.0", "id": message["id"], "error": {"code": code, "message": words}})

    return answer


def responding(status: int = 200, body: bytes = b"", **headers: str) -> Answer:
    """Answer this by HTTP; `%d` in the body is the id of the request, `_` in a header's name a dash."""

    async def answer(_: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return web.Response(status=status, body=body.replace(b"%d", str(message.get("id")).encode()), headers=named)

    return answer
