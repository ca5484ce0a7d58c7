"""Which of a tenant's stored objects a key may see. Pure."""

from __future__ import annotations

from gateway.routing.table import Routes
from gateway.tenancy.api_keys import Caller


def may_see_model(routes: Routes, caller: Caller, model: str | None) -> bool:
    """Return whether the caller may see objects that a model has made. `model`: its own name; None: no model."""
    if model is None:
        return True
    route = routes.models.get(model)
    return caller.may_see_name(model) if route is None else caller.may_see_model(route)
