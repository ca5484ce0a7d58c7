"""POST /tokenize, /detokenize and /apply-template: llama.cpp's own. They take no slot of the engine."""

from __future__ import annotations

from fastapi import FastAPI

from gateway.api.declare import declare_inference
from gateway.api.schemas import Anything
from gateway.exchange.api_spec import ApiSpec

_SAID = {
    "/tokenize": ("Tokens of a text", "Returns the tokens of `content`."),
    "/detokenize": ("Text of tokens", "Returns the text of `tokens`."),
    "/apply-template": ("Prompt of messages", "Returns the prompt that the model's chat template makes of `messages`."),
}
APIS = tuple(ApiSpec(path, takes_slot=False, is_native=True, scope="inference") for path in _SAID)


def declare(app: FastAPI) -> None:
    """Add the routes of `APIS` to `app`, so that its OpenAPI document has them and other methods on their paths get
    `method_not_allowed`. The requests themselves are served by `InferenceDispatcher`, which must be given `APIS`,
    too."""
    for api in APIS:
        summary, text = _SAID[api.path]
        declare_inference(app, api, request=Anything, answer=Anything, summary=summary, text=text)
