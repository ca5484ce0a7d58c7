"""Clients of MCP servers: of a gateway's `/mcp`, by the `mcp` package and by hand as JSON-RPC, and of the worker's
bridge."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final, Literal

import httpx2
from aiohttp import web
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CallToolResult, TextContent

from tests.fakes.gateway_harness import GatewayHarness
from tests.support.wait import until

Generation = Literal["2026-07-28", "legacy"]
GENERATIONS: Final[tuple[Generation, ...]] = ("2026-07-28", "legacy")
"""Of the protocol: without a handshake, and with it."""
INFERENCE_TOOLS: Final = ["list_models", "search_documents"]
ADMIN_TOOLS: Final = [
    *("get_model", "get_memory", "load_model", "unload_model", "get_plan", "list_events", "get_logs", "pull_model"),
]
ROW = {
    "name": "m", "runtime_state": "loading", "is_loaded": False, "replicas": 1, "loaded_replicas": 0,
    "load_progress": 0.25, "inflight_requests": 0, "last_error": None, "retry_at": None, "blocked": [], "held_by": [],
    "load_recommendations": {"a": "b"}, "definition": {"model_path": "m.gguf"},
}  # fmt: skip
"""The row of a model that the controller answers."""


@asynccontextmanager
async def mcp_client(
    url: str, secret: str | None = None, generation: Generation = "2026-07-28", headers: Mapping[str, str] | None = None
) -> AsyncIterator[Client]:
    """A client of the gateway at `url`. `secret` None: it shows no key."""
    own = {} if secret is None else {"authorization": f"Bearer {secret}"}
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(httpx2.AsyncClient(headers={**own, **(headers or {})}, timeout=120))
        transport = streamable_http_client(f"{url}/mcp", http_client=http)
        yield await stack.enter_async_context(Client(transport, mode=generation))


async def list_names(client: Client) -> list[str]:
    return [tool.name for tool in (await client.list_tools()).tools]


async def call(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    """Call a tool that must not fail; its structured content."""
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, text_of(result)
    fields: dict[str, Any] = result.structured_content
    return fields


async def call_failing(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    """Call a tool that must fail; the error, whose code and next steps the text says, too."""
    result = await client.call_tool(tool, arguments)
    assert result.is_error, text_of(result)
    error: dict[str, Any] = result.structured_content["error"]
    assert text_of(result).splitlines()[0].startswith(f"{error['code']}: ")
    assert text_of(result).endswith("".join(f"\n- {step}" for step in error["next_steps"]))
    return error


def text_of(result: CallToolResult) -> str:
    [content] = result.content
    assert isinstance(content, TextContent)
    return content.text


def message(method: str, **params: Any) -> dict[str, Any]:
    """A JSON-RPC request of the generation with a handshake, which needs none here."""
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}


HEADERS: Final = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
"""What each request must have."""


def answer_rows(gateway: GatewayHarness, *states: str, **more: Any) -> None:
    """Let the controller answer rows with these states, one after the other; the last one for ever."""
    left = list(states)

    async def answer(_: web.Request) -> web.Response:
        return web.json_response(ROW | more | {"runtime_state": left.pop(0) if len(left) > 1 else left[0]})

    gateway.controller.admin.answer = answer


def read_health(base_url: str) -> int | None:
    """The status of the health route, asked without a token; None: nobody answers."""
    try:
        return httpx2.get(f"{base_url}/health").status_code
    except httpx2.TransportError:
        return None


@asynccontextmanager
async def bridge_client(base_url: str, token: str) -> AsyncIterator[Client]:
    """A client with the replica's token, of a bridge whose server has introduced itself."""
    await until("the server has introduced itself", lambda: read_health(base_url) == 200)
    async with (
        httpx2.AsyncClient(headers={"Authorization": f"Bearer {token}"}, timeout=60) as http,
        Client(streamable_http_client(f"{base_url}/mcp", http_client=http)) as client,
    ):
        yield client


async def call_text(client: Client, tool: str, **arguments: str) -> str:
    [content] = (await client.call_tool(tool, arguments)).content
    assert isinstance(content, TextContent)
    return content.text
