"""A routing table, indexed for requests: models by name and alias, keys by secret. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from controller.schema.routing import ModelRoute, RoutingTable, Stamp
from controller.schema.tools import McpServerRoute, ToolRoute
from gateway.tenancy.api_keys import KeyRing


@dataclass(frozen=True, slots=True)
class Routes:
    """A routing table, indexed for the look-ups of requests. Immutable: a new table makes new `Routes`. `models` has
    each model by its own name alone, `names` by its aliases, too."""

    instance: str
    """Name of the installation whose controller made the table."""
    stamp: Stamp
    """Version of the table; later ones of the same installation are greater."""
    models: Mapping[str, ModelRoute]
    """Models by their own names, in the table's order."""
    names: Mapping[str, ModelRoute]
    """Models by every name that clients may use. A model's own name wins over another model's alias."""
    replicas: frozenset[str]
    """Names of the replicas that take new requests: those of all models' endpoints, remote models' included, and those
    of the MCP servers that the controller runs."""
    keys: KeyRing
    tools: tuple[ToolRoute, ...] = ()
    """The enabled built-in tools."""
    mcp_servers: tuple[McpServerRoute, ...] = ()
    """The declared MCP servers."""
    refused_gateways: tuple[str, ...] = ()
    """A sentence for each other gateway that the controller refuses."""

    @classmethod
    def of(cls, table: RoutingTable, former: Routes | None = None) -> Routes:
        """Index a routing table. Nothing is raised for an alias that two models have: the later model gets it.

        `former`: the table before it. Models and endpoints that are equal there stay the same objects, so that what is
        known of them by identity (an engine's address, heads of requests) is neither made anew nor kept twice.
        """
        known = {} if former is None else former.models
        models = {route.name: _reuse_equals(known.get(route.name), route) for route in table.models}
        replicas = [endpoint.replica for route in models.values() for endpoint in route.endpoints]
        replicas += [server.replica for server in table.mcp_servers if server.replica is not None]
        aliases = {alias: route for route in models.values() for alias in route.aliases}
        return cls(
            instance=table.instance,
            stamp=table.stamp,
            models=MappingProxyType(models),
            names=MappingProxyType(aliases | models),
            keys=KeyRing.of(table.keys),
            replicas=frozenset(replicas),
            tools=table.tools,
            mcp_servers=table.mcp_servers,
            refused_gateways=table.refused_gateways,
        )

    def sole_model(self, path: str) -> str | None:
        """Return the own name of the only model, in whatever state, whose engine serves `path`; None if none or several
        do.

        `path`: as in `ModelRoute.apis`, such as `/v1/embeddings`.
        """
        model_names = [route.name for route in self.models.values() if path in route.apis]
        return model_names[0] if len(model_names) == 1 else None


def _reuse_equals(known: ModelRoute | None, route: ModelRoute) -> ModelRoute:
    """Return `known` where it equals `route`, else `route` with those of its endpoints that equal known ones."""
    if known is None:
        return route
    if known == route:
        return known
    endpoints = tuple(next((each for each in known.endpoints if each == new), new) for new in route.endpoints)
    return route.model_copy(update={"endpoints": endpoints})
