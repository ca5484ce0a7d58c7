"""Builds what the routing table permits: API keys, tools and MCP servers. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import SecretStr

from controller.schema.keys import Key, KeyDefinition
from controller.schema.tools import FetchTool, FolderTool, McpServer, McpServerRoute, ToolLimits, ToolRoute
from controller.state import DesiredState


def build_permissions(
    desired: DesiredState,
) -> tuple[tuple[Key, ...], tuple[ToolRoute, ...], tuple[McpServerRoute, ...]]:
    """Return the API keys, the tools and the MCP servers for the routing table."""
    return build_keys(desired.keys), build_tools(desired.tools), build_mcp_servers(desired.mcp_servers)


def build_keys(keys: Mapping[str, KeyDefinition]) -> tuple[Key, ...]:
    """Return the API keys for the routing table, in name order, with those that have expired: gateways check that. A
    key without a `tenant` gets its own name as one."""
    return tuple(_key(name, keys[name]) for name in sorted(keys))


def _key(name: str, key: KeyDefinition) -> Key:
    return Key(
        name=name,
        sha256=key.sha256,
        tenant=key.tenant or name,
        scopes=tuple(key.scopes),
        models=None if key.models is None else tuple(key.models),
        tools=tuple(key.tools),
        weight=key.weight,
        service_tiers=tuple(key.service_tiers),
        requests_per_minute=key.requests_per_minute,
        tokens_per_minute=key.tokens_per_minute,
        concurrency=key.concurrency,
        expires_at=None if key.expires is None else key.expires.timestamp(),
    )


def build_tools(tools: Mapping[str, ToolLimits]) -> tuple[ToolRoute, ...]:
    """Return the enabled built-in tools for the routing table, in name order."""
    return tuple(_tool(name, tools[name]) for name in sorted(tools))


def _tool(name: str, tool: ToolLimits) -> ToolRoute:
    return ToolRoute(
        name=name,
        timeout_s=tool.timeout_s,
        max_output_kib=tool.max_output_kib,
        hosts=tuple(tool.hosts) if isinstance(tool, FetchTool) else (),
        folder=tool.folder if isinstance(tool, FolderTool) else None,
    )


def build_mcp_servers(servers: Mapping[str, McpServer]) -> tuple[McpServerRoute, ...]:
    """Return the declared MCP servers for the routing table, in name order. One with `command` has no address."""
    return tuple(_server(name, servers[name]) for name in sorted(servers))


def _server(name: str, server: McpServer) -> McpServerRoute:
    return McpServerRoute(
        name=name,
        url=server.url,
        reason=None if server.url is not None else "it is not started",
        headers={header: SecretStr(value) for header, value in server.headers.items()},
        tools=None if server.tools is None else tuple(server.tools),
        timeout_s=server.timeout_s,
        max_output_kib=server.max_output_kib,
    )
