"""Makes definitions of the declared MCP servers with a command, so that the controller runs them as it runs engines.
Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from controller.config.debounce import DebouncedState
from controller.engines.mcp import McpBridge, McpBridgeDefinition
from controller.schema.desired import Definition
from controller.schema.tools import replica_model

_FIELDS: Final[Mapping[str, str]] = {
    "command": "mcp_command",
    "network": "mcp_network",
    "mounts": "mcp_mounts",
    "image": "image",
    "env": "env",
}
"""Field of a server that its replica depends on, to the field of the definition."""


def with_server_replicas(state: DebouncedState) -> DebouncedState:
    """Return the state with a definition for each MCP server that has a command, named by `replica_model`, among
    `definitions` and `declared_models`. Without such a server, that is the state itself."""
    declared = declare_replicas(state.tools.declared_servers)
    if not declared:
        return state
    return replace(
        state,
        definitions={**state.definitions, **define_replicas(declared)},
        declared_models={**state.declared_models, **declared},
    )


def declare_replicas(declared_servers: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the fields of a definition for each declared server that has a command, by the name that `replica_model`
    makes of the server's. `declared_servers`: declared fields by server name."""
    return {
        replica_model(name): _replica_fields(fields)
        for name, fields in declared_servers.items()
        if fields.get("command") is not None
    }


def define_replicas(declared: Mapping[str, Mapping[str, Any]]) -> dict[str, Definition]:
    """Return the definitions, by the same names, of what `declare_replicas` returned. Raises pydantic's ValidationError
    where its servers were not valid."""
    return {name: McpBridgeDefinition.model_validate(fields) for name, fields in declared.items()}


def _replica_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {"backend": McpBridge.name} | {own: fields[each] for each, own in _FIELDS.items() if each in fields}
