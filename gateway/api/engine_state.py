"""Routes that change or reveal an engine's inner state. They are off by default, and need the scope `admin`.

Of several replicas, `?replica=` chooses the one that is meant; what changes something is refused without it.
"""

from __future__ import annotations

from functools import partial

from fastapi import FastAPI

from gateway.api.declare import declare_inference
from gateway.api.schemas import Anything
from gateway.exchange.api_spec import ApiSpec

_state = partial(ApiSpec, takes_slot=False, is_native=True, scope="admin", is_inner_state=True, names_replica=True)
_SLOTS = _state("/slots", method="GET", body="none")
_SLOT = _state("/slots/{id}", body="any")
_PROPS = _state("/props")
_LORA = _state("/lora-adapters", body="any")
APIS = (_SLOTS, _SLOT, _PROPS, _LORA)

_OFF = (
    "Served only with `ROUNDHOUSE_ENGINE_STATE_ROUTES=1`; a key needs the scope `admin`. `?replica=` names a "
    "replica, by its number or its name."
)


def declare(app: FastAPI) -> None:
    """Add the routes of `APIS` to `app`, so that its OpenAPI document has them and other methods on their paths get
    `method_not_allowed`. The requests themselves are served by `InferenceDispatcher`, which must be given `APIS`,
    too."""
    routes = (
        (_SLOTS, None, "Slots", "The state of each slot of the engine, as a list."),
        (
            _SLOT,
            Anything,
            "Save, restore or erase a slot",
            "Performs the `action` of the query: `save` and `restore` need `llama_server_slot_save` in the model's "
            "definition, and a plain name in `filename`.",
        ),
        (
            _PROPS,
            Anything,
            "Set properties",
            "Changes the engine's settings, if the model's definition sets `llama_server_props`.",
        ),
        (
            _LORA,
            Anything,
            "Set LoRA scales",
            "Sets the scales of LoRA adapters, a list of `id` and `scale`, for all requests that do not set their own.",
        ),
    )
    for api, request, summary, text in routes:
        declare_inference(app, api, request=request, answer=Anything, summary=summary, text=f"{text}\n\n{_OFF}")
