"""POST /v1/embeddings."""

from __future__ import annotations

from fastapi import FastAPI

from gateway.api.declare import declare_inference
from gateway.api.schemas import EmbeddingList, EmbeddingRequest
from gateway.asgi import AsgiApp
from gateway.proxy import Api

API = Api(path="/v1/embeddings", streams=False)


def declare(app: FastAPI, raw: AsgiApp) -> None:
    """Declare the route."""
    declare_inference(
        app,
        API.path,
        raw,
        request=EmbeddingRequest,
        answer=EmbeddingList,
        summary="Embeddings",
        text="One vector for each input.",
    )
