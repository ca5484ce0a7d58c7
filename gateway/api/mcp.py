"""POST /mcp: Roundhouse as an MCP server (streamable HTTP, without sessions)."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.responses import Response

from controller.schema.errors import RoundhouseError
from gateway.api.admin import name_actor
from gateway.api.deadline import Lifetime
from gateway.api.declare import ANY_OTHER, INGRESS_CODES, codes_paragraph, error_responses
from gateway.ingress.route_access import require_access
from gateway.mcp_server.handlers import CALLER_KEY, ToolCaller
from gateway.mcp_server.served_tools import ServedTools
from gateway.server.asgi import (
    ClientGoneError,
    Message,
    Receive,
    Scope,
    Send,
    local_address_of,
    read_body,
    request_id_of,
)
from gateway.tenancy.clients import find_document_tenant

PATH: Final = "/mcp"
MAX_BODY_BYTES: Final = 1024 * 1024
BODY_TIMEOUT_S: Final = 60.0

_CODES: Final = ("request_timeout", "body_too_large", *INGRESS_CODES)
_DESCRIPTION: Final = """MCP's streamable HTTP transport: each body is one JSON-RPC message. `tools/list` lists the
tools that the key's scopes open, `tools/call` calls one; docs/mcp.md has the tools. There are no sessions, so that GET
and DELETE answer 405. A call that fails is a result with `isError` and the error envelope as `structuredContent`."""
_MESSAGE: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["jsonrpc", "method"],
    "properties": {
        "jsonrpc": {"const": "2.0"},
        "id": {"type": ["string", "integer"]},
        "method": {"type": "string", "examples": ["tools/list"]},
        "params": {"type": "object"},
    },
}
_ANSWERS: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "description": "The JSON-RPC answer; as an event stream where progress is told before it.",
        "content": {
            "application/json": {"schema": {"type": "object"}},
            "text/event-stream": {"schema": {"type": "string"}},
        },
    },
    202: {"description": "A notification was taken."},
}


def declare(app: FastAPI, tools: ServedTools) -> None:
    """Add the route `POST /mcp`, which `tools` serves, to `app`. Any key has access; `tools` offers the tools that the
    key's scopes allow. A body may have `MAX_BODY_BYTES` (1 MiB) and take `BODY_TIMEOUT_S` (60 s)."""

    @app.post(
        PATH,
        summary="Tools for agents (MCP)",
        description=f"{_DESCRIPTION}\n\n{codes_paragraph(_CODES)}",
        tags=["operations"],
        response_class=Response,
        responses=_ANSWERS | error_responses(*_CODES) | ANY_OTHER,
        openapi_extra={"requestBody": {"required": True, "content": {"application/json": {"schema": _MESSAGE}}}},
    )
    @require_access("any_key")
    async def mcp(request: Request) -> Response:
        return _McpResponse(tools)


class _McpResponse(Response):
    """A response that FastAPI calls with the request's scope, so that nothing is held in between."""

    def __init__(self, tools: ServedTools) -> None:
        super().__init__()
        self._tools = tools

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_answered = False

        async def note_end(message: Message) -> None:
            nonlocal is_answered
            is_answered = message["type"] == "http.response.body" and not message.get("more_body", False)
            await send(message)

        try:
            body = await _read_body(scope, receive)
            scope["state"][CALLER_KEY] = _identify_caller(scope)
            with Lifetime(None) as lifetime:
                lifetime.watch_client(receive, lambda: is_answered)
                await self._tools.serve_request(scope, _receive_again(body), note_end)
        except ClientGoneError:
            pass


def _identify_caller(scope: Scope) -> ToolCaller:
    caller = scope["state"]["caller"]
    return ToolCaller(
        caller=caller,
        actor=f"{name_actor(scope)} by mcp",
        tenant=find_document_tenant(caller, scope["headers"]),
        local_address=local_address_of(scope),
        request_id=request_id_of(scope),
    )


async def _read_body(scope: Scope, receive: Receive) -> bytes:
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            return await read_body(scope, receive, MAX_BODY_BYTES)
    except TimeoutError:
        message = f"The body was not complete after {BODY_TIMEOUT_S:g} s."
        raise RoundhouseError("request_timeout", message) from None


def _receive_again(body: bytes) -> Receive:
    """Return a `receive` that gives the whole body once, and then waits: `Lifetime` notices that the client leaves."""
    is_given = False

    async def receive() -> Message:
        nonlocal is_given
        if is_given:
            await asyncio.Event().wait()
        is_given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receive
