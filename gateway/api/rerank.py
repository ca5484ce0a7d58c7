"""POST /v1/rerank: Jina's."""

from __future__ import annotations

from fastapi import FastAPI

from gateway.api.declare import declare_inference
from gateway.api.schemas import Anything, RerankRequest
from gateway.parts import Api

APIS = (Api("/v1/rerank"),)


def declare(app: FastAPI) -> None:
    """Declare the route."""
    text = "Documents by how well they answer a query."
    declare_inference(app, APIS[0], request=RerankRequest, answer=Anything, summary="Rerank", text=text)
