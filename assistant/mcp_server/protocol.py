"""MCP over streamable HTTP, by the library `mcp`, for both of its generations: with a handshake, and without.

Each message stands alone, and clients count their requests from the same number on. So the gateway gives each client
that shakes hands an id, which it does not keep: a client's later messages show it, and tell its calls from others'.

This module imports the library, which takes memory and time: import it when a client asks.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, NamedTuple

from mcp.server.context import CallNext, HandlerResult, ServerMiddleware, ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.streamable_http import MCP_SESSION_ID_HEADER, REQUEST_CANCELLED
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

from assistant.mcp_server.handlers import CALLER_KEY, McpToolCalls, ToolCaller, UnknownToolError
from assistant.mcp_server.tools import Tool
from gateway.server.asgi import AsgiApp, Message, Receive, Scope, Send


class CancelledByClientError(Exception):
    """Raised in a running call when its client sends `notifications/cancelled` for the call."""


class CallKey(NamedTuple):
    """Names one call of one client: no two running calls have the same key, unless a client uses an id twice."""

    caller: str | None
    """Name of the caller's key; None: no keys are declared."""
    session: str
    """The id that the client was given."""
    request: str | int
    """Id of the call's JSON-RPC request, which the client has chosen."""


def make_session_id() -> str:
    """Return a new id for a client, of 32 hexadecimal digits, which nobody can guess."""
    return uuid.uuid4().hex


class CancellableCalls:
    """The running calls that a message can end. One for a gateway; used from one event loop."""

    def __init__(self) -> None:
        self._running: dict[CallKey, asyncio.Timeout] = {}

    @asynccontextmanager
    async def hold(self, key: CallKey | None) -> AsyncIterator[None]:
        """Let `cancel(key)` end what runs within the context, by a CancelledError in it. `key` None: no message can end
        it. Of two calls with the same key, which a client must not make, the later one can be ended.

        Raises:
            CancelledByClientError: when the context is left, if `cancel` was called with the key.
        """
        if key is None:
            yield
            return
        end = asyncio.timeout(None)
        try:
            async with end:
                self._running[key] = end
                try:
                    yield
                finally:
                    if self._running.get(key) is end:
                        del self._running[key]
        except TimeoutError:
            if end.expired():
                raise CancelledByClientError from None
            raise

    def cancel(self, key: CallKey) -> None:
        """End the running call with this key, and return before it has ended. Does nothing if there is none: it may
        have ended, or another gateway runs it."""
        end = self._running.get(key)
        if end is not None:
            with suppress(RuntimeError):  # it was cancelled before, and is about to end
                end.reschedule(asyncio.get_running_loop().time())


INSTRUCTIONS: Final = (
    "Roundhouse serves language models. These tools list, load, unload and read them. Errors have a `code` and "
    "`next_steps`. Answers are bounded: `cut` says what is missing."
)
SESSION_KEY: Final = "mcp_session"
"""Where the state of a request's scope has the id that its client is given with the answer; absent: none."""


@asynccontextmanager
async def serve_tools(calls: McpToolCalls, version: str, most_body_bytes: int) -> AsyncIterator[AsgiApp]:
    """Give an ASGI application that answers the requests of MCP clients, as long as the context lasts.

    It keeps no session: each request stands alone. A client that shakes hands is given an id, by which its message
    `notifications/cancelled` finds its call. The state of each request's scope must have a `ToolCaller` at
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
        if _has_handshake(scope):
            await with_handshake.handle_request(scope, receive, _send_with_session(scope, send))
        else:
            await without_handshake.handle_request(scope, receive, send)

    async with with_handshake.run(), without_handshake.run():
        yield serve_request


def _has_handshake(scope: Scope) -> bool:
    """Return whether a request is of the older generation of MCP, or names no version."""
    versions = [value.decode("latin-1") for name, value in scope["headers"] if name == b"mcp-protocol-version"]
    return not versions or versions[0] in HANDSHAKE_PROTOCOL_VERSIONS


def _send_with_session(scope: Scope, send: Send) -> Send:
    """Return a `send` that adds the id which the client is given, if it is."""

    async def send_message(message: Message) -> None:
        session = scope["state"].get(SESSION_KEY)
        if session is not None and message["type"] == "http.response.start":
            header = (MCP_SESSION_ID_HEADER.encode(), session.encode())
            message = {**message, "headers": [*message["headers"], header]}
        await send(message)

    return send_message


def _watch_cancellations() -> ServerMiddleware[Any]:
    """Return what gives each client that shakes hands an id, and ends its calls when it says so."""
    running = CancellableCalls()

    async def watch(ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        assert ctx.request is not None, "each message comes by HTTP"
        if ctx.method == "initialize":
            ctx.request.scope["state"][SESSION_KEY] = make_session_id()
        elif ctx.method == "notifications/cancelled":
            key = _find_call(ctx, (ctx.params or {}).get("requestId"))
            if key is not None:
                running.cancel(key)
        elif ctx.method == "tools/call":
            try:
                async with running.hold(_find_call(ctx, ctx.request_id)):
                    return await call_next(ctx)
            except CancelledByClientError:
                raise MCPError(code=REQUEST_CANCELLED, message="Request cancelled") from None
        return await call_next(ctx)

    return watch


def _find_call(ctx: ServerRequestContext[Any, Any], request: object) -> CallKey | None:
    """Return which call of a client `request` is, the id of its JSON-RPC request; None: the client has no id, or that
    is none."""
    assert ctx.request is not None
    session = ctx.request.headers.get(MCP_SESSION_ID_HEADER)
    if session is None or not isinstance(request, str | int):
        return None
    return CallKey(_caller_of(ctx).caller.name, session, request)


def _build_server(calls: McpToolCalls, version: str) -> Server[Any]:
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

    server: Server[Any] = Server(
        "roundhouse",
        version=version,
        title="Roundhouse",
        instructions=INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )
    server.middleware.append(_watch_cancellations())
    return server


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
