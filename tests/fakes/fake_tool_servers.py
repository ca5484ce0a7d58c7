"""A fake in the place of the gateway's connections to MCP servers: its tools are functions of a test."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from assistant.tools.arguments import ArgumentCheck
from assistant.tools.mcp_client.catalog import Catalog, OfferedTool, ServerStatus
from assistant.tools.spec import ToolCall, ToolResult, ToolSpec
from contract.tools import McpServerRoute
from tests.fakes.gateway_harness import GatewayHarness

Fields = dict[str, Any]
CITY: Fields = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


@dataclass
class FakeTool:
    """One tool, `SERVER__TOOL`."""

    name: str
    answer: Callable[[ToolCall], Awaitable[ToolResult]]
    parameters: Fields = field(default_factory=lambda: CITY)
    writes: bool = False

    @property
    def spec(self) -> ToolSpec:
        server = self.name.partition("__")[0]
        return ToolSpec(self.name, self.name, f"What {self.name} does.", self.parameters, self.writes, server)

    async def run(self, call: ToolCall) -> ToolResult:
        return await self.answer(call)


@dataclass
class FakeServers:
    """Servers whose tools a test has set."""

    tools: list[FakeTool] = field(default_factory=list)
    calls: list[tuple[str, Fields]] = field(default_factory=list)
    running: int = 0
    cancelled: int = 0
    routes: Sequence[McpServerRoute] = ()

    @property
    def has_any(self) -> bool:
        return bool(self.tools)

    def has_server(self, name: str) -> bool:
        return any(tool.spec.server == name for tool in self.tools)

    def has_tool(self, name: str) -> bool:
        return any(tool.name == name for tool in self.tools)

    def follow_table(self, routes: Sequence[McpServerRoute]) -> None:
        self.routes = routes

    def list_tools(self) -> list[ToolSpec]:
        return [tool.spec for tool in self.tools]

    def list_status(self) -> list[ServerStatus]:
        return [ServerStatus(route.name, "down", 0.0, "for an operator", Catalog()) for route in self.routes]

    async def find_tool(self, server: str, name: str) -> OfferedTool | None:
        for tool in self.tools:
            if tool.name == name:
                route = McpServerRoute(name=server, url=None)
                return OfferedTool(route, _Counted(self, tool), ArgumentCheck(tool.parameters))
        return None


@dataclass
class _Counted:
    servers: FakeServers
    tool: FakeTool

    @property
    def spec(self) -> ToolSpec:
        return self.tool.spec

    async def run(self, call: ToolCall) -> ToolResult:
        servers = self.servers
        servers.calls.append((self.tool.name, call.arguments))
        servers.running += 1
        try:
            return await self.tool.answer(call)
        except asyncio.CancelledError:
            servers.cancelled += 1
            raise
        finally:
            servers.running -= 1


def install(gateway: GatewayHarness, *tools: FakeTool) -> FakeServers:
    """Put these tools in the place of the gateway's servers."""
    runner: Any = gateway.assistant.tools
    servers = runner._servers = FakeServers(list(tools))
    return servers
