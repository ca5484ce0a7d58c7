"""How an inference route is declared: in the web framework for the document, as a raw ASGI callable for the work."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.routing import APIRoute
from pydantic import BaseModel

from controller.schema.errors import ErrorEnvelope
from gateway.asgi import AsgiApp

ERRORS: dict[int | str, dict[str, Any]] = {
    "4XX": {"model": ErrorEnvelope, "description": "The request cannot be served as it is; see `error.code`."},
    "5XX": {"model": ErrorEnvelope, "description": "The model, its engine or the gateway failed; see `error.code`."},
}


class RawRoute(APIRoute):
    """A route of the document that an ASGI application answers."""

    def __init__(self, path: str, raw: AsgiApp, *, request: type[BaseModel], answer: type[BaseModel], **declared: Any):
        async def declare(body: Any) -> None:
            """Never called: its signature is what FastAPI reads the request's schema from."""

        declare.__annotations__["body"] = request
        super().__init__(path, declare, methods=["POST"], response_model=answer, responses=ERRORS, **declared)
        self.app = raw


def declare_inference(
    app: FastAPI, path: str, raw: AsgiApp, *, request: type[BaseModel], answer: type[BaseModel], summary: str, text: str
) -> None:
    """Add `POST path` to `app`."""
    name = path.removeprefix("/v1/").replace("/", "_")
    app.router.routes.append(
        RawRoute(path, raw, request=request, answer=answer, summary=summary, description=text, name=name)
    )
