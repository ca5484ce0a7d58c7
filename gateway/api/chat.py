"""POST /v1/chat/completions."""

from __future__ import annotations

from fastapi import FastAPI

from gateway.api.declare import declare_inference
from gateway.api.schemas import ChatCompletion, ChatCompletionRequest
from gateway.asgi import AsgiApp
from gateway.proxy import Api

API = Api(path="/v1/chat/completions", streams=True)


def declare(app: FastAPI, raw: AsgiApp) -> None:
    """Declare the route."""
    declare_inference(
        app,
        API.path,
        raw,
        request=ChatCompletionRequest,
        answer=ChatCompletion,
        summary="Chat",
        text="Blocking or, with `stream: true`, as server-sent events.",
    )
