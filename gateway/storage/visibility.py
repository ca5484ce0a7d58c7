"""What of a tenant's stored objects one of its keys may see. Pure."""

from __future__ import annotations

from gateway.routing.table import Routes
from gateway.tenancy.api_keys import Caller


def may_see_model(routes: Routes, caller: Caller, model: str | None) -> bool:
    """Whether a caller sees what the model of that own name has made; None: no model has made it."""
    if model is None:
        return True
    route = routes.models.get(model)
    return caller.may_see_name(model) if route is None else caller.may_see_model(route)
