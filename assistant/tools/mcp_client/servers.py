"""The declared MCP servers: one connection each, which follows the routing table, and the calls that run there.

Importing this module does not import `mcp`: that happens when the first server is declared.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Final

from assistant.tools.mcp_client.catalog import Catalog, OfferedTool, ServerStatus
from assistant.tools.spec import ToolSpec
from contract.errors import RoundhouseError
from contract.tools import SEPARATOR, McpServerRoute
from gateway.control.inflight import InflightCounts

if TYPE_CHECKING:
    from assistant.tools.mcp_client.server_connection import ServerConnection


CALL_WAIT_S: Final = 5.0
"""Seconds that a call waits for a server that is being connected, or that the controller is bringing up."""
_CONNECTION: Final = "assistant.tools.mcp_client.server_connection"


class McpServers:
    """Keeps a connection to each declared server. Run `run` as a task for the life of the gateway."""

    def __init__(self, clock: Callable[[], float], ledger: InflightCounts) -> None:
        """`clock`: Unix time in seconds. `ledger` counts the calls of the servers that the controller runs."""
        self._clock = clock
        self._ledger = ledger
        self._routes: dict[str, McpServerRoute] = {}
        self._are_declared = asyncio.Event()
        """Set once a server is declared."""
        self._are_made = asyncio.Event()
        """Set once connections are made at once: what makes them is imported."""
        self._make_connection: type[ServerConnection] | None = None
        self._connections: dict[str, ServerConnection] = {}
        """By server, as the table in force declares it."""
        self._tasks: set[asyncio.Task[None]] = set()
        """Those of `_connections`, and of earlier ones whose calls still run."""

    def follow_table(self, routes: Sequence[McpServerRoute]) -> None:
        """Have the servers of a routing table connected, and others no more. Returns at once.

        New calls go to the new connections at once; those that run over the former connections go on until they end.
        """
        self._routes = {route.name: route for route in routes}
        if self._routes:
            self._are_declared.set()
        former = [each for name, each in self._connections.items() if each.route != self._routes.get(name)]
        for connection in former:
            del self._connections[connection.route.name]
            connection.retire()
        self._connect_new({each.route.name: each.status.catalog for each in former})

    async def run(self) -> None:
        """Connect servers as tables say, until cancelled. A failure of one touches no other. When cancelled, ends all
        calls."""
        await self._are_declared.wait()
        # In a thread, for it takes a second, in which streams go on.
        self._make_connection = await asyncio.to_thread(import_connection)
        self._connect_new({})
        self._are_made.set()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            self._make_connection = None
            self._routes = {}
            self._connections = {}
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

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
        """Return the tools of the servers that are connected, or that a call may wait for, in no order."""
        statuses = [status for status in self.list_status() if status.is_offered]
        return [offer.tool.spec for status in statuses for offer in status.catalog.tools.values()]

    def list_status(self) -> list[ServerStatus]:
        """Return the declared servers, in the table's order. For the first second after the gateway's first server was
        declared, there may be none."""
        return [self._connections[name].status for name in self._routes if name in self._connections]

    async def find_tool(self, server: str, name: str) -> OfferedTool | None:
        """Return the tool `name` (with the server's name before it) of a declared server; None: there is none.

        Waits and raises as `find_connection`. Run the tool without an `await` in between: then the server is that of
        the table in force.
        """
        connection = await self.find_connection(server)
        return None if connection is None else connection.status.catalog.tools.get(name)

    async def find_connection(self, server: str) -> ServerConnection | None:
        """Return the connection to a declared server, which is connected; None: none of the name is declared.

        Waits up to `CALL_WAIT_S` for a server that is not connected, which is tried at once, or that the controller is
        bringing up. Use it without an `await` in between: then the server is that of the table in force.

        Raises:
            RoundhouseError: `tool_failed`: the server is down.
        """
        try:
            async with asyncio.timeout(CALL_WAIT_S):
                while server in self._routes:
                    connection = self._connections.get(server)
                    if connection is None:
                        await self._are_made.wait()
                    elif await connection.wait_connected():
                        return connection
                    elif connection is self._connections.get(server):
                        break
        except TimeoutError:
            pass
        route = self._routes.get(server)
        if route is None:
            return None
        if route.is_expected:
            words = f"is being started, and was not ready within {CALL_WAIT_S:g} s"
        else:
            words = "is not reachable now"
        raise RoundhouseError("tool_failed", f"The MCP server {server} {words}.")

    def _connect_new(self, known: Mapping[str, Catalog]) -> None:
        """Connect the servers that have no connection yet. `known`: what they offered before, by name."""
        if self._make_connection is None:
            return
        for name, route in self._routes.items():
            if name not in self._connections:
                connection = self._make_connection(route, self._clock, self._ledger, known.get(name))
                self._connections[name] = connection
                task = asyncio.create_task(connection.run())
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)


def import_connection() -> type[ServerConnection]:
    """Import and return `ServerConnection`. Call it in a thread: the first call takes a second, and freezes the objects
    that exist then out of garbage collection (`gc.freeze`)."""
    is_first = _CONNECTION not in sys.modules
    made: type[ServerConnection] = import_module(_CONNECTION).ServerConnection
    if is_first:
        # The import leaves some 50,000 objects, which stay. Measured: the next collection took 20 ms to look at them.
        gc.freeze()
    return made
