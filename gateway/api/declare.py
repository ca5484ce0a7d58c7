"""How an inference route is declared: in the web framework for the document, as a raw ASGI callable for the work."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any, Final

from fastapi import FastAPI
from fastapi.routing import APIRoute
from pydantic import BaseModel

from controller.schema.errors import ERROR_CODES, ErrorEnvelope
from gateway.asgi import AsgiApp

TAGS: Final[list[dict[str, Any]]] = [
    {"name": "inference", "description": "OpenAI's API, answered by the engine of the model that a request names."},
    {"name": "models", "description": "What can be named in a request."},
    {"name": "operations", "description": "How the gateway is. Never gated."},
]

GATE: Final = ("forbidden_host", "forbidden_origin", "internal_error")
"""Codes that any gated route may answer with."""

INFERENCE: Final = (
    "invalid_json",
    "invalid_request",
    "thinking_unsupported",
    "modality_unsupported",
    "multi_turn_unsupported",
    "unknown_model",
    "request_timeout",
    "body_too_large",
    "not_supported",
    "engine_error",
    "engine_unreachable",
    "engine_disconnected",
    "controller_unavailable",
    "gateway_stopping",
    "model_not_loaded",
    "model_loading",
    "model_unloading",
    "model_failed",
    *GATE,
)
"""Codes that an inference route may answer with."""

ADMIN: Final = (
    "unknown_route",
    "request_timeout",
    "body_too_large",
    "controller_unavailable",
    "gateway_stopping",
    *GATE,
)
"""Codes with which the gateway itself may answer on an admin route."""

_OTHERS: Final[dict[int | str, dict[str, Any]]] = {
    "4XX": {"model": ErrorEnvelope, "description": "The engine refuses the request; its own status and message."},
    "5XX": {"model": ErrorEnvelope, "description": "The engine failed; its own status and message."},
}

ANY_OTHER: Final[dict[int | str, dict[str, Any]]] = {
    "default": {"model": ErrorEnvelope, "description": "Any other error."}
}

_ANY_MODEL: Final = """A request for an `autoload` model that is not loaded waits for it; for any other such model it is
refused with the model's state. A model that is being loaded is named with `Retry-After` and, where the engine tells,
`x-load-progress` (0 to 1). Fields that are not listed reach the engine as they are; an engine's own error keeps its
status and message. In a stream that has begun, an error is the last event before `data: [DONE]`."""


def errors(*codes: str) -> dict[int | str, dict[str, Any]]:
    """The error answers of a route that may answer with `codes`, by status."""
    entries = sorted((ERROR_CODES[code] for code in codes), key=lambda entry: (entry.status, entry.code))
    return {
        status: {
            "model": ErrorEnvelope,
            "description": "\n".join(f"- `{entry.code}`: {entry.meaning}" for entry in group),
        }
        for status, group in itertools.groupby(entries, key=lambda entry: entry.status)
    }


def admin_errors() -> dict[str, list[str]]:
    """What the gateway itself may answer on an admin route: by status, lines of Markdown."""
    return {str(status): answer["description"].split("\n") for status, answer in errors(*ADMIN).items()}


def listed(codes: Iterable[str]) -> str:
    """A paragraph that names `codes`, for a route's description."""
    return f"Error codes: {', '.join(f'`{code}`' for code in codes)}."


class RawRoute(APIRoute):
    """A route of the document that an ASGI application answers."""

    def __init__(self, path: str, raw: AsgiApp, *, request: type[BaseModel], answer: type[BaseModel], **declared: Any):
        async def declare(body: Any) -> None:
            """Never called: its signature is what FastAPI reads the request's schema from."""

        declare.__annotations__["body"] = request
        super().__init__(
            path, declare, methods=["POST"], response_model=answer, responses=errors(*INFERENCE) | _OTHERS, **declared
        )
        self.app = raw


def declare_inference(
    app: FastAPI, path: str, raw: AsgiApp, *, request: type[BaseModel], answer: type[BaseModel], summary: str, text: str
) -> None:
    """Add `POST path` to `app`."""
    name = path.removeprefix("/v1/").replace("/", "_")
    text = f"{text}\n\n{_ANY_MODEL}\n\n{listed(INFERENCE)}"
    app.router.routes.append(
        RawRoute(
            path,
            raw,
            request=request,
            answer=answer,
            summary=summary,
            description=text,
            name=name,
            tags=["inference"],
            response_description="The engine's answer.",
        )
    )
