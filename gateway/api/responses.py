"""POST /v1/responses."""

from __future__ import annotations

from fastapi import FastAPI

from gateway.api.declare import declare_inference
from gateway.api.schemas import Anything, ResponsesRequest
from gateway.parts import Api

APIS = (Api("/v1/responses", streams=True),)


def declare(app: FastAPI) -> None:
    """Declare the route."""
    text = "OpenAI's responses, blocking or as server-sent events, where the engine speaks them itself."
    declare_inference(app, APIS[0], request=ResponsesRequest, answer=Anything, summary="Responses", text=text)
