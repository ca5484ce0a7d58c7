"""How a fake MCP server answers a request, in place of what it would do."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from tests.fakes.fake_mcp_server import Answer, reply


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
