"""POST /v1/embeddings."""

from __future__ import annotations

from fastapi import FastAPI

from gateway.api.declare import declare_inference
from gateway.api.schemas import EmbeddingList, EmbeddingRequest
from gateway.exchange.api_spec import ApiSpec

APIS = (ApiSpec("/v1/embeddings", inputs=("input",), scope="inference"),)


def declare(app: FastAPI) -> None:
    """Add the route of `APIS` to `app`, so that its OpenAPI document has it and other methods on its path get
    `method_not_allowed`. The requests themselves are served by `InferenceDispatcher`, which must be given `APIS`,
    too."""
    declare_inference(
        app,
        APIS[0],
        request=EmbeddingRequest,
        answer=EmbeddingList,
        summary="Embeddings",
        text="One vector for each input. `dimensions` is for models that are declared with `matryoshka`, whose vectors \
the gateway shortens, and for engines that do it themselves; else only the model's own length is taken.",
        more_codes=("dimensions_unsupported",),
    )
