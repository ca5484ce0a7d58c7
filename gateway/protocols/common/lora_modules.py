"""LoRA modules of engines that serve each as a model of its own: how a request chooses one. Pure."""

from __future__ import annotations

from typing import Final

from controller.schema.errors import RoundhouseError
from controller.schema.routing import ModelRoute
from gateway.protocols.common.request import InferenceRequest

_FIELD: Final = "lora"


def route_to_module(request: InferenceRequest, route: ModelRoute) -> ModelRoute:
    """Return `route` with the LoRA module that the request names in `lora` as the engine's name for the model.

    The same object if the request names none, or if the engine reads the field itself (`ModelRoute.lora_modules` is
    None). The field stays in the request: the engines concerned ignore it.

    Raises:
        RoundhouseError: `invalid_request`: `lora` is no name of a module of the model.
    """
    modules = route.lora_modules
    if modules is None or (name := request.outline_fields.get(_FIELD)) is None:
        return route
    if name not in modules:
        known = f"one of {', '.join(modules)}" if modules else "left out: the model has no LoRA modules"
        raise RoundhouseError("invalid_request", f"`lora` must be {known}.", param=_FIELD)
    return route.model_copy(update={"served_name": name})
