"""POST /v1/completions."""

from __future__ import annotations

from fastapi import FastAPI

from gateway.api.declare import declare_inference
from gateway.api.schemas import Completion, CompletionRequest
from gateway.asgi import AsgiApp
from gateway.proxy import Api

API = Api(path="/v1/completions", streams=True)


def declare(app: FastAPI, raw: AsgiApp) -> None:
    """Declare the route."""
    declare_inference(
        app,
        API.path,
        raw,
        request=CompletionRequest,
        answer=Completion,
        summary="Completion of a prompt",
        text="Blocking or, with `stream: true`, as server-sent events.",
    )
