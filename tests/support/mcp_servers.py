"""Runs a real MCP server as a process of its own, which may be killed and started again at the same port."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator

from contract.tools import McpServerRoute
from tests.support.ports import free_port
from tests.support.wait import until


class McpProcess:
    """The server of `tests.support.mcp_server_program`."""

    def __init__(self) -> None:
        self.port = free_port()
        self._process: asyncio.subprocess.Process | None = None

    @property
    def url(self) -> str:
        """Where it speaks streamable HTTP."""
        return f"http://127.0.0.1:{self.port}/mcp"

    def route(self, name: str = "demo", **fields: object) -> McpServerRoute:
        """Its declaration, as the routing table has it."""
        return McpServerRoute.model_validate({"name": name, "url": self.url, **fields})

    async def start(self) -> None:
        """Start it, and wait until it listens."""
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.support.mcp_server_program",
            str(self.port),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        await until("the MCP server listens", self._listens)

    async def kill(self) -> None:
        """End it at once."""
        assert self._process is not None
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()

    async def _listens(self) -> bool:
        assert self._process is not None
        assert self._process.returncode is None, "it ended"
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", self.port)
        except OSError:
            return False
        writer.close()
        return True


@contextlib.asynccontextmanager
async def mcp_process() -> AsyncIterator[McpProcess]:
    server = McpProcess()
    await server.start()
    try:
        yield server
    finally:
        await server.kill()
