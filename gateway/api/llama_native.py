"""POST /infill, /completion and /embedding: llama.cpp's own completions and embeddings."""

from __future__ import annotations

from fastapi import FastAPI

from gateway.api.declare import declare_inference
from gateway.api.schemas import Anything
from gateway.exchange.api_spec import ApiSpec

_INFILL, _COMPLETION, _EMBEDDING = APIS = (
    ApiSpec("/infill", streams=True, is_native=True, scope="inference"),
    ApiSpec("/completion", streams=True, is_native=True, inputs=("prompt",), scope="inference"),
    ApiSpec("/embedding", is_native=True, inputs=("input", "content"), scope="inference"),
)


def declare(app: FastAPI) -> None:
    """Add the routes of `APIS` to `app`, so that its OpenAPI document has them and other methods on their paths get
    `method_not_allowed`. The requests themselves are served by `InferenceDispatcher`, which must be given `APIS`,
    too."""
    routes = (
        (
            _INFILL,
            "Infill",
            "Generates the text between `input_prefix` and `input_suffix`, for models that are trained for it.",
        ),
        (
            _COMPLETION,
            "Completion, llama.cpp's",
            "Generates the text after `prompt`, in llama.cpp's own format (`content`, `stop`).",
        ),
        (
            _EMBEDDING,
            "Embeddings, llama.cpp's",
            "A list of `index` and `embedding`, whose vectors are as the model \
pools them: with `pooling` none, one for each token.",
        ),
    )
    for api, summary, text in routes:
        declare_inference(app, api, request=Anything, answer=Anything, summary=summary, text=text)
