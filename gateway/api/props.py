"""GET /props and /lora-adapters: how an engine is set up, as llama.cpp tells it."""

from __future__ import annotations

from functools import partial

from fastapi import FastAPI

from gateway.api.declare import declare_inference
from gateway.api.schemas import Anything
from gateway.exchange.api_spec import ApiSpec

_read = partial(
    ApiSpec, method="GET", takes_slot=False, is_native=True, body="none", scope="inference", names_replica=True
)
_PROPS = _read("/props")
_LORA = _read("/lora-adapters")
APIS = (_PROPS, _LORA)


def declare(app: FastAPI) -> None:
    """Add the routes of `APIS` to `app`, so that its OpenAPI document has them and other methods on their paths get
    `method_not_allowed`. The requests themselves are served by `InferenceDispatcher`, which must be given `APIS`,
    too."""
    text = "Returns the engine's settings, including its chat template."
    declare_inference(app, _PROPS, request=None, answer=Anything, summary="Properties", text=text)
    text = "Lists the LoRA adapters that the engine has loaded, with their scales."
    declare_inference(app, _LORA, request=None, answer=Anything, summary="LoRA adapters", text=text)
