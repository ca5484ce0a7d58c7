"""What a routing table means for a request: which model a name is, and whose key it carries. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from controller.schema.routing import ModelRoute, RoutingTable, Stamp
from gateway.tenancy.api_keys import KeyRing


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
    keys: KeyRing

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
            keys=KeyRing.of(table.keys),
            replicas=frozenset(endpoint.replica for route in table.models for endpoint in route.endpoints),
        )

    def sole_model(self, path: str) -> str | None:
        """The one model whose engine offers `path`; None if there is none, or another."""
        model_names = [route.name for route in self.models.values() if path in route.apis]
        return model_names[0] if len(model_names) == 1 else None
