"""Which of a tenant's stored objects a key may see. Pure."""

from __future__ import annotations

from gateway.routing.table import Routes
from gateway.tenancy.api_keys import Caller


def may_see_model(routes: Routes, caller: Caller, model: str | None) -> bool:
    """Return whether the caller's key may see a stored object that a model has made.

    `model`: the model's own name; None: no model made the object, so that every key of the tenant may see it. A model
    that is no longer declared is checked by its name alone, without its aliases. The tenant is not checked here.
    """
    if model is None:
        return True
    route = routes.models.get(model)
    return caller.may_see_name(model) if route is None else caller.may_see_model(route)
