"""What a routing table means for a request: which model a name is, and which replica takes the next request. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from controller.schema.routing import Endpoint, ModelRoute, RoutingTable, Stamp


@dataclass(frozen=True, slots=True)
class Routes:
    """A routing table, indexed once. Never changed: a new table makes new `Routes`."""

    instance: str
    stamp: Stamp
    models: Mapping[str, ModelRoute]
    """Public name to model, in the table's order."""
    names: Mapping[str, ModelRoute]
    """Every name a client may use, aliases included. A model's own name wins over another model's alias."""
    replicas: frozenset[str]

    @classmethod
    def of(cls, table: RoutingTable) -> Routes:
        """Index `table`."""
        models = {route.name: route for route in table.models}
        aliases = {alias: route for route in table.models for alias in route.aliases}
        return cls(
            instance=table.instance,
            stamp=table.stamp,
            models=MappingProxyType(models),
            names=MappingProxyType(aliases | models),
            replicas=frozenset(endpoint.replica for route in table.models for endpoint in route.endpoints),
        )


def pick(
    endpoints: Iterable[Endpoint],
    inflight: Mapping[str, int],
    last_turn: Mapping[str, int],
    avoid: Collection[str] = (),
) -> Endpoint | None:
    """The replica with the least requests inside; of equals, the one whose last turn is longest ago.

    `inflight` and `last_turn` go by replica name; a name they lack has none inside, never had a turn. None: every
    endpoint is in `avoid`, or there are none.
    """
    return min(
        (endpoint for endpoint in endpoints if endpoint.replica not in avoid),
        key=lambda endpoint: (inflight.get(endpoint.replica, 0), last_turn.get(endpoint.replica, -1)),
        default=None,
    )
