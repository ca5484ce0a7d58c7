"""A fake MCP server, which a test declares to the gateway when it knows what the server offers."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.fakes.fake_mcp_server import FakeMcpServer, fake_mcp_server


@pytest.fixture
async def server() -> AsyncIterator[FakeMcpServer]:
    async with fake_mcp_server() as server:
        yield server
