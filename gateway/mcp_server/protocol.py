"""MCP over streamable HTTP, by the library `mcp`, for both of its generations: with a handshake, and without.

This module imports the library, which takes memory and time: import it when a client asks.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INVALID_PARAMS,
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    PaginatedRequestParams,
    TextContent,
    ToolAnnotations,
)
from mcp_types import Tool as McpTool
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

from gateway.mcp_server.calls import ToolCalls, UnknownToolError
from gateway.mcp_server.handlers import CALLER_KEY, ToolCaller
from gateway.mcp_server.tools import Tool
from gateway.server.asgi import AsgiApp, Receive, Scope, Send

INSTRUCTIONS: Final = (
    "Roundhouse serves language models. These tools list, load, unload and read them. Errors have a `code` and "
    "`next_steps`. Answers are bounded: `cut` says what is missing."
)


@asynccontextmanager
async def serve_tools(calls: ToolCalls, version: str, most_body_bytes: int) -> AsyncIterator[AsgiApp]:
    """Give an ASGI application that answers the requests of MCP clients, as long as the context lasts.

    It keeps no session: each request stands alone. The state of each request's scope must have a `ToolCaller` at
    `CALLER_KEY`. `version`: of Roundhouse. Leaving cancels what runs.
    """
    server = _build_server(calls, version)

    def new_manager(*, is_json: bool) -> StreamableHTTPSessionManager:
        return StreamableHTTPSessionManager(
            server, stateless=True, json_response=is_json, max_request_body_size=most_body_bytes
        )

    # The library's event streams of the older generation watch for a stop by a task that never ends, and are cut by it.
    with_handshake, without_handshake = new_manager(is_json=True), new_manager(is_json=False)

    async def serve_request(scope: Scope, receive: Receive, send: Send) -> None:
        manager = with_handshake if _has_handshake(scope) else without_handshake
        await manager.handle_request(scope, receive, send)

    async with with_handshake.run(), without_handshake.run():
        yield serve_request


def _has_handshake(scope: Scope) -> bool:
    """Return whether a request is of the older generation of MCP, or names no version."""
    versions = [value.decode("latin-1") for name, value in scope["headers"] if name == b"mcp-protocol-version"]
    return not versions or versions[0] in HANDSHAKE_PROTOCOL_VERSIONS


def _build_server(calls: ToolCalls, version: str) -> Server[Any]:
    async def list_tools(ctx: ServerRequestContext[Any, Any], _: PaginatedRequestParams | None) -> ListToolsResult:
        return ListToolsResult(tools=[_describe_tool(tool) for tool in calls.list_tools(_caller_of(ctx))])

    async def call_tool(ctx: ServerRequestContext[Any, Any], params: CallToolRequestParams) -> CallToolResult:
        report = ctx.session.report_progress
        try:
            answer = await calls.call_tool(_caller_of(ctx), params.name, params.arguments or {}, report)
        except UnknownToolError:
            raise MCPError(code=INVALID_PARAMS, message=f"There is no tool {params.name!r:.100}.") from None
        return CallToolResult(
            content=[TextContent(type="text", text=answer.text)],
            structured_content=answer.fields,
            is_error=answer.is_error,
        )

    return Server(
        "roundhouse",
        version=version,
        title="Roundhouse",
        instructions=INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


def _caller_of(ctx: ServerRequestContext[Any, Any]) -> ToolCaller:
    assert ctx.request is not None, "each request comes by HTTP"
    caller: ToolCaller = ctx.request.scope["state"][CALLER_KEY]
    return caller


def _describe_tool(tool: Tool) -> McpTool:
    return McpTool(
        name=tool.name,
        title=tool.title,
        description=tool.description,
        input_schema=tool.build_schema(),
        annotations=ToolAnnotations(
            title=tool.title,
            read_only_hint=tool.is_read_only,
            destructive_hint=tool.is_destructive,
            idempotent_hint=tool.is_idempotent,
            open_world_hint=tool.is_open_world,
        ),
    )
