"""The routing table in force, and who follows a new one. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from types import MappingProxyType

from contract.errors import RoundhouseError
from contract.routing import ModelRoute, RoutingTable, Stamp
from contract.tools import McpServerRoute, ToolRoute
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
        do. `path`: as in `ModelRoute.apis`, such as `/v1/embeddings`."""
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


class LiveRoutes:
    """Holds the `Routes` in force: those of the latest routing table that the controller link accepted.

    One per gateway, used from one event loop only. So a table stays in force between a read and a decision unless an
    `await` lies between them. The table stays in force while the controller is away.
    """

    def __init__(self) -> None:
        self._current: Routes | None = None
        self._refusal: str | None = None
        self.on_table: Callable[[Routes], None] = lambda _: None
        """Called within `apply_table`, after the new table has come into force."""
        self.on_models: Callable[[Mapping[str, ModelRoute]], None] = lambda _: None
        """Called with the models by name, after `on_table`."""
        self.on_tools: Callable[[Routes], None] = lambda _: None
        """Called with the table whose tools are offered from now on, after `on_models`."""

    @property
    def current_or_none(self) -> Routes | None:
        """The table in force; None before the first table, and while the controller refuses this gateway."""
        return self._current

    @property
    def current(self) -> Routes:
        """The table in force.

        Raises:
            RoundhouseError: `controller_unavailable` before the first table, and while the controller refuses this
                gateway.
        """
        if self._current is None:
            message = self._refusal or "The gateway has not had a routing table from a controller yet."
            raise RoundhouseError("controller_unavailable", message)
        return self._current

    def check_table(self) -> None:
        """Raise RoundhouseError `controller_unavailable` where there is no table in force; else do nothing."""
        _ = self.current

    def drop_table(self, reason: str) -> None:
        """Put no table in force: the controller refuses this gateway, and works with another. New requests fail with
        `controller_unavailable` and the message `reason`, a public sentence, until `apply_table`; running ones that
        need no table go on. No callback is called."""
        self._current, self._refusal = None, reason

    def apply_table(self, table: RoutingTable) -> None:
        """Put `table` in force, then call `on_table`, `on_models` and `on_tools`.

        What a callback raises is raised when all were called: the table is in force then, and does not come again.
        Neither the stamp nor the instance of `table` is compared with the former table's: the caller has decided that
        it is to be applied (`control.link.judge_table`).
        """
        self._current = routes = Routes.of(table, self._current)
        with ExitStack() as stack:  # it calls the last one first, and the rest whatever one raises
            stack.callback(self.on_tools, routes)
            stack.callback(self.on_models, routes.models)
            stack.callback(self.on_table, routes)
