"""POST /v1/chat/completions."""

from __future__ import annotations

from fastapi import FastAPI

from gateway.api.declare import declare_inference
from gateway.api.schemas import ChatCompletion, ChatCompletionRequest
from gateway.parts import Api

APIS = (Api("/v1/chat/completions", streams=True),)


def declare(app: FastAPI) -> None:
    """Declare the route."""
    declare_inference(
        app,
        APIS[0],
        request=ChatCompletionRequest,
        answer=ChatCompletion,
        summary="Chat",
        text="Blocking or, with `stream: true`, as server-sent events.",
    )
