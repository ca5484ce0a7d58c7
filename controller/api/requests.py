"""Shared parts of the routes: who asks, documented error answers, error handlers, and the orderly end of answers when
the controller stops.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Path, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection

from common.program import AsgiApp, Message, Receive, Send, answer_error
from contract.errors import ERROR_CODES, ErrorEnvelope, RoundhouseError
from controller.config.messages import explain_errors, suggest_name
from controller.redaction import mask_text
from controller.runtimes.base import RuntimeUnavailableError


class StopMiddleware:
    """ASGI middleware that ends requests of the admin API (paths below `/v1/`) when the controller stops: an answer
    that has begun ends where it is, and any other becomes the error `controller_unavailable` (503). Other requests and
    WebSockets are passed on unchanged. `wait_for_end` returns once the controller is to end."""

    def __init__(self, app: AsgiApp, wait_for_end: Callable[[], Awaitable[None]]) -> None:
        self._app = app
        self._wait_for_end = wait_for_end

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer one request, through the app. When the controller stops, cancel the app's work on the request: an
        answer that has begun ends where it is, and any other becomes the error `controller_unavailable` (503). Requests
        of paths outside of `/v1/` and WebSockets are passed on to the app unchanged."""
        # Other routes end by themselves: gateways' links are closed, and the shutdown request is answered.
        if scope["type"] != "http" or not scope["path"].startswith("/v1/"):
            await self._app(scope, receive, send)
            return
        is_started = is_ended = False

        async def noted(message: Message) -> None:
            nonlocal is_started, is_ended
            is_started = True
            is_ended = message["type"] == "http.response.body" and not message.get("more_body", False)
            await send(message)

        answer_task = asyncio.ensure_future(self._app(scope, receive, noted))
        ending_task = asyncio.ensure_future(self._wait_for_end())
        try:
            await asyncio.wait({answer_task, ending_task}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ending_task.cancel()
            if not answer_task.done():
                answer_task.cancel()
        with suppress(asyncio.CancelledError):
            await answer_task
        if not is_ended:
            await _send_end(send, is_started=is_started)


async def _send_end(send: Send, *, is_started: bool) -> None:
    body = b""
    if not is_started:
        error = RoundhouseError("controller_unavailable", "The controller is stopping.")
        body = error.json_bytes()
        headers = [(name.encode(), value.encode()) for name, value in error.build_headers().items()]
        headers += [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": error.entry.status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})


ACTOR_HEADER = "x-roundhouse-actor"
"""Header with the name of whoever asks, as the gateway or the command line says it. No other client reaches the
controller."""
_MOST_CHARS = 100


def _actor(request: Request) -> str:
    actor = request.headers.get(ACTOR_HEADER, "")[:_MOST_CHARS]
    return actor if actor.isprintable() and actor else "operator"


Actor = Annotated[str, Depends(_actor)]
Name = Annotated[
    str,
    Path(
        description="Name or alias of the model; it may contain `/`.",
        examples=["clockwork"],
        min_length=1,
        max_length=400,
    ),
]


async def check_parameters(request: HTTPConnection) -> None:
    """FastAPI dependency that refuses query parameters that the route does not declare, such as a typo of `wait`. For
    HTTP requests and WebSockets.

    Raises RoundhouseError `schema_violation`, whose `param` is the first unknown one.
    """
    dependant = getattr(request.scope.get("route"), "dependant", None)
    known_names = {field.alias for field in dependant.query_params} if dependant is not None else set()
    for name in request.query_params:
        if name not in known_names:
            hint = suggest_name(name, known_names)
            raise RoundhouseError("schema_violation", f"`{name}` is unknown in the query{hint}.", param=name)


def error_responses(*codes: str) -> dict[int | str, dict[str, Any]]:
    """Return the OpenAPI `responses` of a route: by HTTP status, what these error codes mean, and those that every
    route has (`schema_violation`, `internal_error`, `controller_unavailable`). Raises KeyError for an unknown code."""
    by_status: dict[int | str, list[str]] = {}
    for code in dict.fromkeys((*codes, "schema_violation", "internal_error", "controller_unavailable")):
        by_status.setdefault(ERROR_CODES[code].status, []).append(code)
    return {status: _documented_response(codes) for status, codes in by_status.items()}


def _documented_response(codes: list[str]) -> dict[str, Any]:
    text = " ".join(f"`{code}`: {ERROR_CODES[code].meaning}" for code in codes)
    examples = {
        code: {"value": RoundhouseError(code, ERROR_CODES[code].meaning).build_envelope("req-1").model_dump()}
        for code in codes
    }
    content: dict[str, Any] = {"examples": examples}
    if "internal_error" in codes:
        # One model per route puts the schema into the document, and the other responses refer to it: FastAPI builds a
        # validator for each.
        return {"model": ErrorEnvelope, "description": text, "content": {"application/json": content}}
    content["schema"] = {"$ref": "#/components/schemas/ErrorEnvelope"}
    return {"description": text, "content": {"application/json": content}}


def declare_errors(app: FastAPI) -> None:
    """Install exception handlers on `app`, so that every error is answered in the error envelope:
    RuntimeUnavailableError as `controller_unavailable`, a request that does not fit its route as `schema_violation`,
    `unknown_route` or `method_not_allowed`, and an unforeseen error as `internal_error`, after which uvicorn logs
    it."""

    @app.exception_handler(RoundhouseError)
    async def own(request: Request, error: RoundhouseError) -> Response:
        return answer_error(request, error)

    @app.exception_handler(RequestValidationError)
    async def wrong_schema(request: Request, error: RequestValidationError) -> Response:
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if error.errors()[0]["loc"][:1] == ("body",) and not kind.endswith("json"):
            content_type = kind or "missing"
            words = f"The body is read with the header `Content-Type: application/json` only; it is {content_type}."
            return answer_error(request, RoundhouseError("schema_violation", words))
        return answer_error(request, _schema_violation(error))

    @app.exception_handler(HTTPException)
    async def framework(request: Request, error: HTTPException) -> Response:
        if error.status_code == 405:
            words = f"{request.scope['path']} is not for {request.method}."
            answer = answer_error(request, RoundhouseError("method_not_allowed", words))
            answer.headers.update(error.headers or {})
            return answer
        return answer_error(request, _framework_error(request, error))

    @app.exception_handler(RuntimeUnavailableError)
    async def unavailable(request: Request, error: RuntimeUnavailableError) -> Response:
        return answer_error(request, RoundhouseError("controller_unavailable", mask_text(str(error))))

    @app.exception_handler(Exception)
    async def unexpected(request: Request, _error: Exception) -> Response:
        # Starlette raises the exception again after this handler, and uvicorn logs it.
        return answer_error(request, _internal_error())


def _framework_error(request: Request, error: HTTPException) -> RoundhouseError:
    if error.status_code == 400:
        # FastAPI raises this where its parser fails without a position in the text.
        return RoundhouseError("schema_violation", "The body is not JSON that can be read.")
    if error.status_code == 404:
        return RoundhouseError("unknown_route", f"There is no {request.scope['path']}.")
    return _internal_error()


def _internal_error() -> RoundhouseError:
    return RoundhouseError("internal_error", "The controller failed on this request.")


def _schema_violation(error: RequestValidationError) -> RoundhouseError:
    first_error = error.errors()[0]
    location = [str(step) for step in first_error["loc"]]
    if first_error["type"] == "json_invalid":
        place = f" near character {first_error['loc'][-1]}" if isinstance(first_error["loc"][-1], int) else ""
        return RoundhouseError("schema_violation", f"The body is not JSON{place}: {first_error['ctx']['error']}.")
    place, field = location[0], ".".join(location[1:])
    if first_error["type"] == "extra_forbidden":
        return RoundhouseError("schema_violation", f"`{field}` is unknown in the {place}.", param=field)
    subject = f"`{field}` in the {place}" if field else f"The {place}"
    return RoundhouseError("schema_violation", f"{subject} {explain_errors(first_error)}.", param=field or None)
