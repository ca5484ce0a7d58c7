"""A routing table, indexed for requests: models by name and alias, keys by secret. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from controller.schema.routing import ModelRoute, RoutingTable, Stamp
from gateway.tenancy.api_keys import KeyRing


@dataclass(frozen=True, slots=True)
class Routes:
    """An indexed routing table. Immutable: a new table makes new `Routes`."""

    instance: str
    stamp: Stamp
    models: Mapping[str, ModelRoute]
    """Models by their own names, in the table's order."""
    names: Mapping[str, ModelRoute]
    """Models by every name that clients may use. A model's own name wins over another model's alias."""
    replicas: frozenset[str]
    """Names of all replicas that take requests."""
    keys: KeyRing

    @classmethod
    def of(cls, table: RoutingTable) -> Routes:
        """Index a routing table."""
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
        """Return the name of the only model whose engine serves `path`; None if none or several do."""
        model_names = [route.name for route in self.models.values() if path in route.apis]
        return model_names[0] if len(model_names) == 1 else None
