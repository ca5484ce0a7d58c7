"""The declared MCP servers: one connection each, which follows the routing table.

Importing this module does not import `mcp`: that happens when the first server is declared.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Final

from controller.schema.errors import RoundhouseError
from controller.schema.tools import SEPARATOR, McpServerRoute
from gateway.tools.mcp_client.catalog import OfferedTool, ServerStatus
from gateway.tools.spec import ToolSpec

if TYPE_CHECKING:
    from gateway.tools.mcp_client.server_connection import ServerConnection

CALL_WAIT_S: Final = 5.0
"""Seconds that a call waits for a server that is being connected."""


class McpServers:
    """Keeps a connection to each declared server. Run `run` as a task for the life of the gateway."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock`: Unix time in seconds."""
        self._clock = clock
        self._routes: dict[str, McpServerRoute] = {}
        self._changed = asyncio.Event()
        self._connections: dict[str, ServerConnection] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def follow_table(self, routes: Sequence[McpServerRoute]) -> None:
        """Have the servers of a routing table connected, and others no more. Returns at once."""
        wanted = {route.name: route for route in routes}
        if wanted != self._routes:
            self._routes = wanted
            self._changed.set()

    async def run(self) -> None:
        """Connect and disconnect servers as tables say, until cancelled. A failure of one touches no other."""
        try:
            while True:
                self._changed.clear()
                await self._apply_routes()
                await self._changed.wait()
        finally:
            self._routes = {}
            await self._end_connections(list(self._connections))

    @property
    def has_any(self) -> bool:
        """Whether a server is declared."""
        return bool(self._routes)

    def has_server(self, name: str) -> bool:
        """Return whether a server of this name is declared."""
        return name in self._routes

    def has_tool(self, name: str) -> bool:
        """Return whether a server offers, or offered last, a tool of this name."""
        connection = self._connections.get(name.partition(SEPARATOR)[0])
        return connection is not None and name in connection.status.catalog.tools

    def list_tools(self) -> list[ToolSpec]:
        """Return the tools of the servers that are connected, in no order."""
        statuses = [status for status in self.list_status() if status.state == "connected"]
        return [offer.tool.spec for status in statuses for offer in status.catalog.tools.values()]

    def list_status(self) -> list[ServerStatus]:
        """Return the declared servers, in the table's order."""
        return [self._connections[name].status for name in self._routes if name in self._connections]

    async def find_tool(self, server: str, name: str) -> OfferedTool | None:
        """Return the tool `name` (with the server's name before it) of a declared server; None: there is none.

        Waits up to `CALL_WAIT_S` for a server that is not connected, which is tried at once.

        Raises:
            RoundhouseError: `tool_failed`: the server is down.
        """
        if server not in self._routes:
            return None
        connection = self._connections.get(server)
        if connection is None or not await connection.wait_connected(CALL_WAIT_S):
            raise RoundhouseError("tool_failed", f"The MCP server {server} is not reachable now.")
        return connection.status.catalog.tools.get(name)

    async def _apply_routes(self) -> None:
        changed = [name for name, each in self._connections.items() if each.route != self._routes.get(name)]
        await self._end_connections(changed)
        if not self._routes.keys() - self._connections.keys():
            return
        # In a thread, for it takes a second, in which streams go on.
        module = await asyncio.to_thread(import_module, "gateway.tools.mcp_client.server_connection")
        for name, route in self._routes.items():
            if name not in self._connections:
                self._connections[name] = connection = module.ServerConnection(route, self._clock)
                self._tasks[name] = asyncio.create_task(connection.run())

    async def _end_connections(self, names: Sequence[str]) -> None:
        for name in names:
            del self._connections[name]
        tasks = [self._tasks.pop(name) for name in names]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
