"""Builds the routing table: models, API keys, tools and MCP servers. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from pydantic import SecretStr

from contract.hosts import EngineTls
from contract.keys import Key, KeyDefinition
from contract.routing import Endpoint, ModelRoute, RemoteProbe, RoutingTable, StartAttempt
from contract.status import ModelState, ModelStatus
from contract.tools import REPLICA_PREFIX, FetchTool, FolderTool, McpServer, McpServerRoute, ToolLimits, ToolRoute
from controller.config.validate import definition_source
from controller.engines import ENGINES
from controller.engines.base import Engine, EngineFigures
from controller.engines.mcp import HTTP_PATH
from controller.model_status import is_routable
from controller.planning.actions import WAITING_FOR_ROOM
from controller.state import DesiredModel, DesiredState, ObservedReplica, ObservedState, ReplicaKey, StartFailure


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
    tls: EngineTls | None = None
    """How to open connections to the relay of its host; None: none is between."""


def build_permissions(
    desired: DesiredState, addresses: Mapping[str, ServerAddress]
) -> tuple[tuple[Key, ...], tuple[ToolRoute, ...], tuple[McpServerRoute, ...]]:
    """Return the API keys, the tools and the MCP servers for the routing table, each in name order. `addresses`: where
    MCP servers with a `command` answer, by name, as `find_addresses` finds; a missing one counts as not started."""
    servers = build_mcp_servers(desired.mcp_servers, addresses)
    return build_keys(desired.keys), build_tools(desired.tools), servers


def find_addresses(
    observed: ObservedState, statuses: Iterable[ModelStatus], tokens: Callable[[str], str | None]
) -> dict[str, ServerAddress]:
    """Return by name where each MCP server answers that the controller runs. A server without a ready replica gets an
    address without `url`, with the reason. `tokens` returns the token of a replica by its name; None: it has none."""
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
            secret = SecretStr(token) if token else None
            addresses[server] = ServerAddress(url, replica.name, secret, None, False, replica.tls)
        else:
            is_expected = status.state in (ModelState.LOADING, ModelState.LOADED)
            cause = f": {status.last_error}" if status.last_error is not None else ""
            addresses[server] = ServerAddress(reason=f"it is {status.state}{cause}", is_expected=is_expected)
    return addresses


def read_addresses(table: RoutingTable | None) -> dict[str, ServerAddress]:
    """Return the addresses of MCP servers in a routing table, by name; none for None. It stands in for `find_addresses`
    while nothing can be observed."""
    servers = table.mcp_servers if table is not None else ()
    return {
        each.name: ServerAddress(each.url, each.replica, each.token, each.reason, each.is_expected, each.tls)
        for each in servers
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
        tls=address.tls,
        headers={header: SecretStr(value) for header, value in server.headers.items()},
        tools=None if server.tools is None else tuple(server.tools),
        timeout_s=server.timeout_s,
        max_output_kib=server.max_output_kib,
    )


Tokens = Callable[[str], str | None]
"""Maps the name of a replica or of a remote model to the bearer token that its endpoint expects; None: no token."""


def build_routes(
    desired: DesiredState,
    observed: ObservedState,
    statuses: Iterable[ModelStatus],
    tokens: Tokens,
    remote_probes: Mapping[str, RemoteProbe] = MappingProxyType({}),
    longest_tokens: Mapping[str, int] = MappingProxyType({}),
) -> tuple[ModelRoute, ...]:
    """Return one route per declared model, in the order of `statuses`. Models that are no longer declared get none, nor
    do replicas of MCP servers.

    A model that is not `loaded` by its status gets a route without endpoints. `tokens` is called with the name of each
    replica, or of a remote model, that gets an endpoint. `remote_probes` maps remote models to what gateways probe,
    `longest_tokens` models to the length in bytes of the longest token in their vocabulary.
    """
    serving: dict[str, list[ObservedReplica]] = defaultdict(list)
    for replica in observed.replicas:
        if is_routable(replica):
            serving[replica.id.model].append(replica)
    return tuple(
        _route(
            desired.models[status.name],
            status,
            serving[status.name],
            tokens,
            remote_probes.get(status.name),
            longest_tokens.get(status.name),
            observed.start_failures,
        )
        for status in statuses
        if status.name in desired.models and desired.models[status.name].backend in ENGINES
    )


def _route(
    model: DesiredModel,
    status: ModelStatus,
    replicas: list[ObservedReplica],
    tokens: Tokens,
    remote_probe: RemoteProbe | None,
    longest_token: int | None,
    failed_starts: Mapping[ReplicaKey, tuple[StartFailure, ...]],
) -> ModelRoute:
    engine = ENGINES[model.backend]
    remote = engine.describe_remote(model.definition)
    endpoints: tuple[Endpoint, ...] = ()
    if status.state is ModelState.LOADED:
        if remote is not None:
            token = tokens(model.name)
            secret = SecretStr(token) if token else None
            endpoints = (
                Endpoint(replica=model.name, base_url=remote.base_url, api_prefix="", token=secret, remote=True),
            )
        else:
            endpoints = tuple(
                _endpoint(engine, model, replica, tokens, failed_starts.get(replica.id.key, ()))
                for replica in sorted(replicas, key=lambda each: each.name)
            )
    return ModelRoute(
        name=model.name,
        backend=model.backend,
        role=model.definition.role,
        state=status.state,
        created=int(model.first_declared_at),
        aliases=tuple(model.definition.aliases),
        served_name=(remote.model or model.name) if remote else model.name,
        endpoints=endpoints,
        remote_probe=remote_probe,
        target_inflight=engine.target_inflight(model.definition),
        queue_limit=model.definition.queue_limit,
        max_choices=engine.max_choices(model.definition),
        choices_take_slots=engine.choices_take_slots,
        notices_leaving=engine.notices_leaving,
        apis=engine.list_apis(model.definition),
        extra_fields=engine.list_extra_fields(model.definition),
        # No request waits for a model that an operator is unloading, even if a request may load it afterwards.
        autoload=model.autoload and not (status.state is ModelState.UNLOADING and model.statement.kind == "unload"),
        reason=_reason_for_clients(model, status),
        last_error=status.plain_error,
        full_error=status.last_error if status.last_error != status.plain_error else None,
        exit_code=status.exit_code,
        source=definition_source(model.definition),
        is_runtime_declared=model.is_runtime_declared,
        retry_at=status.retry_at,
        progress=status.progress,
        capabilities=engine.derive_capabilities(model.definition),
        thinking_control=engine.thinking_control(model.definition),
        max_tokens_field=engine.max_tokens_field(model.definition),
        context_length=_context_length(engine, model, replicas),
        longest_token=longest_token if _are_alike(model, replicas) else None,
        system_first=any(replica.system_first for replica in replicas),
        takes_dimensions=engine.takes_dimensions,
        shortens_embeddings=model.definition.matryoshka,
        lora_modules=engine.lora_modules(model.definition),
        session_cache=engine.session_cache(model.definition),
        session_binding=engine.session_binding(model.definition),
    )


def _context_length(engine: Engine[Any], model: DesiredModel, replicas: list[ObservedReplica]) -> int | None:
    """Return the smallest context length that a serving engine reports; if none reports one, the declared one."""
    context_lengths = [
        replica.figures.context_length for replica in replicas if replica.figures.context_length is not None
    ]
    return min(context_lengths) if context_lengths else engine.context_length(model.definition)


def _are_alike(model: DesiredModel, replicas: list[ObservedReplica]) -> bool:
    """Return whether all serving engines run the declared definition and report the same context length. Otherwise, one
    may accept prompts that another refuses, or more than is declared."""
    told = {replica.figures.context_length if replica.id.spec_hash == model.spec_hash else None for replica in replicas}
    return len(told) == 1 and None not in told


def _reason_for_clients(model: DesiredModel, status: ModelStatus) -> str | None:
    """Return why the model is not loaded, for clients: for what it waits, or who unloaded it, but not which operator.
    None: it is loaded, being loaded or unloaded, or has failed."""
    if status.state is ModelState.LOADING:
        return next((reason for reason in status.blocked if reason.startswith(WAITING_FOR_ROOM)), None)
    if not status.state.is_at_rest:
        return None
    return "an operator unloaded it" if model.statement.kind == "unload" else model.statement.reason


def _endpoint(
    engine: Engine[Any],
    model: DesiredModel,
    replica: ObservedReplica,
    tokens: Tokens,
    failed_starts: tuple[StartFailure, ...],
) -> Endpoint:
    assert replica.base_url is not None
    token = tokens(replica.name)
    figures = EngineFigures(
        replica.figures.context_length, replica.kv_cache_tokens, is_preempting=replica.is_preempting
    )
    return Endpoint(
        replica=replica.name,
        index=replica.id.index,
        attempts=_start_attempts(replica, failed_starts),
        base_url=replica.base_url,
        tls=replica.tls,
        token=SecretStr(token) if token else None,
        kv_cache_tokens=engine.kv_cache_tokens(model.definition, figures),
        preempts_when_full=engine.preempts_when_full,
    )


def _start_attempts(replica: ObservedReplica, failed_starts: tuple[StartFailure, ...]) -> tuple[StartAttempt, ...]:
    attempts = [
        StartAttempt(result=f"failed: {_first_line(failed.error):.200}", duration_ms=round(1000 * failed.duration_s))
        for failed in failed_starts
    ]
    load_s = max(0.0, (replica.ready_since or replica.created_at) - replica.created_at)
    return (*attempts, StartAttempt(result="ok", duration_ms=round(1000 * load_s)))


def _first_line(text: str) -> str:
    return next(iter(text.splitlines()), "")
