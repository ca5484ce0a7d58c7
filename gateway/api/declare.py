"""Declare inference routes in FastAPI: for the OpenAPI document, and for answers to wrong methods.

The requests themselves are served by `gateway.server`, not by FastAPI.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable
from typing import Any, Final

from fastapi import FastAPI
from fastapi.routing import APIRoute
from pydantic import BaseModel

from controller.schema.errors import ERROR_CODES, ErrorEnvelope, RoundhouseError
from gateway.exchange.api_spec import ApiSpec
from gateway.ingress.route_access import require_access
from gateway.server.asgi import Receive, Scope, Send
from gateway.streams.stream_ids import LONGEST_ID

_MODEL: Final[dict[str, Any]] = {
    "name": "model",
    "in": "query",
    "required": False,
    "schema": {"type": "string"},
    "description": "Name or alias of the model, if the body does not name it.",
}
_ID: Final[dict[str, Any]] = {
    "name": "id",
    "in": "path",
    "required": True,
    "schema": {"type": "integer", "minimum": 0},
    "description": "Number of the engine's slot.",
}
_CONVERSATION_ID: Final[dict[str, Any]] = {
    "name": "X-Conversation-Id",
    "in": "header",
    "required": False,
    "schema": {"type": "string", "maxLength": LONGEST_ID},
    "description": "Applies with `stream: true`. The gateway keeps the stream under this id: generation continues if "
    "the client disconnects, and the stream can be read again at `/v1/stream/{conv_id}`. An id of the form "
    "`id::model` names the model, if the body does not name it.",
}
_PROGRESS: Final[dict[str, Any]] = {
    "name": "X-Progress",
    "in": "header",
    "required": False,
    "schema": {"type": "string", "enum": ["true"]},
    "description": "With `stream: true`: the stream begins at once, and comments (`: progress {...}`) tell what the "
    "request waits for: its place in the queue, the load of its model, the reading of its prompt.",
}
_LOAD_PROGRESS: Final[dict[str, Any]] = {
    "name": "X-Load-Progress",
    "in": "header",
    "required": False,
    "schema": {"type": "string", "enum": ["true"]},
    "description": "With `stream: true`: while the request waits for the load of its model, the stream begins at once, "
    "and comments (`: load-progress {...}`) tell of the load alone.",
}
_NATIVE: Final = """llama.cpp's own route. The model is named in the query (`?model=NAME`) or in the body; where only
one model has the route, it need not be named."""

TAGS: Final[list[dict[str, Any]]] = [
    {"name": "inference", "description": "OpenAI's API, answered by the engine of the model that a request names."},
    {"name": "engines", "description": "Routes of llama.cpp's own API, answered by the engine of the model."},
    {"name": "responses", "description": "Responses that are stored or running."},
    {"name": "streams", "description": "Streams that can be read again."},
    {"name": "stored", "description": "Stored chat completions, and conversations."},
    {"name": "retrieval", "description": "Documents, searches, and OpenAI's files and vector stores."},
    {"name": "tools", "description": "Tools that clients and models may call, where an operator has enabled them."},
    {"name": "models", "description": "Models that requests can name."},
    {"name": "operations", "description": "Health and metrics of the gateway. They need no key."},
]

INGRESS_CODES: Final = (
    "invalid_request",
    "invalid_api_key",
    "keys_required",
    "forbidden_host",
    "forbidden_origin",
    "rate_limit_exceeded",
    "controller_unavailable",
    "internal_error",
)
"""Error codes of every route that needs a key or a known host."""

ADMIN_SCOPE_CODES: Final = ("admin_closed", "admin_not_here")
"""Error codes of routes that need the scope `admin`, besides the others."""

INFERENCE: Final = (
    "invalid_json",
    "thinking_unsupported",
    "modality_unsupported",
    "multi_turn_unsupported",
    "tools_unsupported",
    "structured_output_unsupported",
    "logprobs_unsupported",
    "scope_required",
    "model_not_allowed",
    "unknown_model",
    "request_timeout",
    "body_too_large",
    "queue_full",
    "headers_too_large",
    "not_supported",
    "engine_error",
    "engine_unreachable",
    "engine_disconnected",
    "gateway_stopping",
    "model_not_loaded",
    "model_loading",
    "model_unloading",
    "model_failed",
    *INGRESS_CODES,
)
"""Error codes of every inference route."""

ADMIN: Final = (
    "scope_required",
    *ADMIN_SCOPE_CODES,
    "unknown_route",
    "request_timeout",
    "body_too_large",
    "headers_too_large",
    "gateway_stopping",
    *INGRESS_CODES,
)
"""Error codes of the gateway itself, not the controller, on admin routes."""

_ENVELOPE: Final = {"application/json": {"schema": {"$ref": "#/components/schemas/ErrorEnvelope"}}}
"""Content of a response that is an error. Not FastAPI's `model`, which builds a validator for each response of each
route: 0.09 s of a gateway's start. `ANY_OTHER` alone has it, and so the document has the schema."""

_OTHERS: Final[dict[int | str, dict[str, Any]]] = {
    "4XX": {
        "content": _ENVELOPE,
        "description": "The engine refuses the request. The answer has the engine's own status and message.",
    },
    "5XX": {
        "content": _ENVELOPE,
        "description": "The engine failed. The answer has the engine's own status and message.",
    },
}

_STREAM: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "content": {"text/event-stream": {"schema": {"type": "string", "description": "With `stream: true`."}}},
        "headers": {
            "x-session": {
                "description": "What the turn of a session finds in its replica; without a session there is none.",
                "schema": {"type": "string", "enum": ["new", "reused", "rebuilt"]},
            }
        },
    }
}

ANY_OTHER: Final[dict[int | str, dict[str, Any]]] = {
    "default": {"model": ErrorEnvelope, "description": "Any other error."}
}

_ANY_MODEL: Final = """A request for an `autoload` model that is not loaded waits for it; for any other such model it is
refused with the model's state. A model that is being loaded is named with `Retry-After` and, where the engine tells,
`x-load-progress` (0 to 1). Fields that are not listed reach the engine as they are; an engine's own error keeps its
status and message. In a stream that has begun, an error is the last event before `data: [DONE]`."""


def error_responses(*codes: str) -> dict[int | str, dict[str, Any]]:
    """Return the OpenAPI `responses` of a route that may answer with these error codes, by HTTP status, ascending.

    Each has the error envelope as its content, and a description with one Markdown line per code. Empty without codes.

    Raises:
        KeyError: a code is not in `ERROR_CODES`.
    """
    entries = sorted((ERROR_CODES[code] for code in codes), key=lambda entry: (entry.status, entry.code))
    return {
        status: {
            "description": "\n".join(f"- `{entry.code}`: {entry.meaning}" for entry in group),
            "content": _ENVELOPE,
        }
        for status, group in itertools.groupby(entries, key=lambda entry: entry.status)
    }


def admin_errors() -> dict[str, list[str]]:
    """Return the errors that the gateway itself, not the controller, may answer on admin routes.

    By HTTP status as text, one Markdown line per error code. For `openapi_merge.merge_documents`.
    """
    return {str(status): answer["description"].split("\n") for status, answer in error_responses(*ADMIN).items()}


def codes_paragraph(codes: Iterable[str]) -> str:
    """Return a Markdown paragraph for a route's description that lists `codes`, in the given order."""
    return f"Error codes: {', '.join(f'`{code}`' for code in codes)}."


class DirectRoute(APIRoute):
    """A route for the OpenAPI document only: `gateway.server` takes its requests before FastAPI sees them.

    A request that reaches it all the same gets `unknown_route`; one with another method `method_not_allowed`.
    `request`: schema of the body, not used for a GET; None: the body has no schema. `codes`: error codes that are
    described; one that is not in `ERROR_CODES` raises KeyError. `route_options`: as of FastAPI's `APIRoute`.
    """

    def __init__(
        self,
        api: ApiSpec,
        *,
        request: type[BaseModel] | None,
        answer: type[BaseModel],
        codes: tuple[str, ...],
        **route_options: Any,
    ):
        endpoint = require_access(api.scope)(_with_body(request) if api.method == "POST" else _without_body())
        responses = error_responses(*codes) | _OTHERS | (_STREAM if api.streams else {})
        super().__init__(
            api.path, endpoint, methods=[api.method], response_model=answer, responses=responses, **route_options
        )
        self.app = _unreachable


def _with_body(request: type[BaseModel] | None) -> Callable[..., Any]:
    async def declared(body: Any) -> None:
        """Never called. FastAPI reads the request's schema from the signature."""

    declared.__annotations__["body"] = request
    return declared


def _without_body() -> Callable[..., Any]:
    async def declared() -> None:
        """Never called. FastAPI reads from the signature that there is no body."""

    return declared


async def _unreachable(scope: Scope, receive: Receive, send: Send) -> None:
    raise RoundhouseError("unknown_route", f"There is no {scope['path']}.")


def declare_inference(
    app: FastAPI,
    api: ApiSpec,
    *,
    request: type[BaseModel] | None,
    answer: type[BaseModel],
    summary: str,
    text: str,
    more_codes: tuple[str, ...] = (),
) -> None:
    """Add the route of `api` to `app`, so that the OpenAPI document has it and other methods on its path get
    `method_not_allowed`.

    Its requests are served by `InferenceDispatcher`, which must be given `api`, too. `request`, `answer`: schemas of
    the bodies, for the document alone; `request` is ignored for a GET, which has no body: give None. `text`: the
    description, to which the text for all such routes and the error codes are added. `more_codes`: error codes of this
    route that `INFERENCE` lacks; a code that `ERROR_CODES` lacks raises KeyError.
    """
    name = f"{api.method.lower()}_{api.path.removeprefix('/v1/').strip('/')}"
    stream_codes = ("stream_stopped", "stream_replaced", "streams_full") if api.resumes else ()
    state_codes = ("route_disabled",) if api.is_inner_state else ()
    scope_codes = ADMIN_SCOPE_CODES if api.scope == "admin" else ()
    codes = (*more_codes, *INFERENCE, *stream_codes, *state_codes, *scope_codes)
    parameters = [_ID] if "{id}" in api.path else [_CONVERSATION_ID] if api.resumes else []
    if api.streams:
        parameters += [_PROGRESS, _LOAD_PROGRESS]
    if api.is_native:
        text = f"{text}\n\n{_NATIVE}"
        parameters.append(_MODEL)
    app.router.routes.append(
        DirectRoute(
            api,
            request=request,
            answer=answer,
            codes=codes,
            summary=summary,
            description=f"{text}\n\n{_ANY_MODEL}\n\n{codes_paragraph(codes)}",
            name=re.sub(r"\W+", "_", name).strip("_"),
            tags=["engines" if api.is_native else "inference"],
            openapi_extra={"parameters": parameters} if parameters else None,
            response_description="The engine's answer.",
        )
    )
