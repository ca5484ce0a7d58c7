"""Clients of the worker's bridge to an MCP server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import TextContent

from tests.support.wait import until


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
