"""Builds what the routing table permits: API keys, tools and MCP servers. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from pydantic import SecretStr

from controller.engines.mcp import HTTP_PATH
from controller.schema.keys import Key, KeyDefinition
from controller.schema.routing import RoutingTable
from controller.schema.status import ModelState, ModelStatus
from controller.schema.tools import (
    REPLICA_PREFIX,
    FetchTool,
    FolderTool,
    McpServer,
    McpServerRoute,
    ToolLimits,
    ToolRoute,
)
from controller.state import DesiredState, ObservedState
from controller.status.model_status import is_routable


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """Where a replica of an MCP server answers; without a `url`: why none does, and whether one soon will
    (`is_expected`). By default: it is declared, and the controller has not looked at it yet.
    `token` None: the replica checks none."""

    url: str | None = None
    replica: str | None = None
    token: SecretStr | None = None
    reason: str | None = "it is not started"
    is_expected: bool = True


def build_permissions(
    desired: DesiredState, addresses: Mapping[str, ServerAddress]
) -> tuple[tuple[Key, ...], tuple[ToolRoute, ...], tuple[McpServerRoute, ...]]:
    """Return the API keys, the tools and the MCP servers for the routing table. `addresses`: see
    `build_mcp_servers`."""
    servers = build_mcp_servers(desired.mcp_servers, addresses)
    return build_keys(desired.keys), build_tools(desired.tools), servers


def find_addresses(
    observed: ObservedState, statuses: Iterable[ModelStatus], tokens: Callable[[str], str | None]
) -> dict[str, ServerAddress]:
    """Return where the MCP servers answer that the controller runs, by server name. A server without a ready replica
    gets an address without `url`, with the reason. `tokens` maps the name of a replica to its token; None: it has
    none."""
    addresses: dict[str, ServerAddress] = {}
    for status in statuses:
        if not status.name.startswith(REPLICA_PREFIX):
            continue
        routable = [each for each in observed.replicas if each.id.model == status.name and is_routable(each)]
        server = status.name.removeprefix(REPLICA_PREFIX)
        if routable:
            # A replica that replaces an older one is the newest.
            replica = max(routable, key=lambda each: (each.created_at, each.name))
            token = tokens(replica.name)
            url = f"{replica.base_url}{HTTP_PATH}"
            addresses[server] = ServerAddress(url, replica.name, SecretStr(token) if token else None, None, False)
        else:
            is_expected = status.state in (ModelState.LOADING, ModelState.LOADED)
            addresses[server] = ServerAddress(reason=_describe_state(status), is_expected=is_expected)
    return addresses


def _describe_state(status: ModelStatus) -> str:
    if status.last_error is not None:
        return f"it is {status.state}: {status.last_error}"
    return f"it is {status.state}"


def read_addresses(table: RoutingTable | None) -> dict[str, ServerAddress]:
    """Return the addresses in a routing table, by server name, for when nothing can be observed; None: there are
    none."""
    servers = table.mcp_servers if table is not None else ()
    return {
        each.name: ServerAddress(each.url, each.replica, each.token, each.reason, each.is_expected) for each in servers
    }


def build_keys(keys: Mapping[str, KeyDefinition]) -> tuple[Key, ...]:
    """Return the API keys for the routing table, in name order. Keys that have expired are included: gateways check the
    expiry. A key without a `tenant` gets its own name as its tenant."""
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


def build_mcp_servers(
    servers: Mapping[str, McpServer], addresses: Mapping[str, ServerAddress]
) -> tuple[McpServerRoute, ...]:
    """Return the declared MCP servers for the routing table, in name order. A server with a `command` gets the address
    that `addresses` has under its name; without one, its `url` is None and its reason is that it is not started."""
    return tuple(_server(name, servers[name], addresses.get(name, ServerAddress())) for name in sorted(servers))


def _server(name: str, server: McpServer, address: ServerAddress) -> McpServerRoute:
    if server.url is not None:
        address = ServerAddress(server.url, reason=None, is_expected=False)
    return McpServerRoute(
        name=name,
        url=address.url,
        reason=address.reason,
        is_expected=address.is_expected,
        replica=address.replica,
        token=address.token,
        headers={header: SecretStr(value) for header, value in server.headers.items()},
        tools=None if server.tools is None else tuple(server.tools),
        timeout_s=server.timeout_s,
        max_output_kib=server.max_output_kib,
    )
