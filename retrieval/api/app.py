"""Retrieval's HTTP interface as an ASGI application. Its only client is the gateway, which authenticates clients."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from common.internal_tokens import OPEN_PATHS, RETRIEVAL_TOKEN
from common.log_formats import tag_request
from common.shared_token import SharedToken
from common.tracebacks import without_tracebacks
from controller.schema.errors import RoundhouseError
from retrieval.api.requests import Handler, Handlers
from retrieval.documents.service import storage_error
from retrieval.schema.routes import ROUTES

log = logging.getLogger(__name__)

AsgiApp = Callable[
    [MutableMapping[str, Any], Callable[[], Awaitable[Any]], Callable[[Any], Awaitable[None]]], Awaitable[None]
]


def create_app(
    handlers: Handlers, render_metrics: Callable[[], Awaitable[bytes]], find_notice: Callable[[], str | None]
) -> Starlette:
    """Build the application: the routes of `retrieval.schema.routes.ROUTES`, `/health` and `/metrics`. A
    RoundhouseError of a handler becomes an error answer in its envelope, an error of the disk `storage_full` or
    `storage_failed`; any other exception is logged and becomes `internal_error`.

    `render_metrics` is called for each `GET /metrics`. `find_notice` returns what `GET /health` answers in place of
    `ok`: a sentence for operators; None: nothing. No token is checked: see `TokenCheck`. Raises KeyError for a
    route of the table without a handler, and ValueError for a handler without a route.
    """
    named = {(spec.method, spec.path) for spec in ROUTES}
    if extra := set(handlers) - named:
        raise ValueError(f"no route for {sorted(extra)}")
    routes = [Route(path, handlers[method, path], methods=[method]) for method, path in sorted(named)]
    # GET would answer HEAD, too; the gateway never asks that.
    routes.append(Route("/health", _health_handler(find_notice), methods=["GET"]))
    routes.append(Route("/metrics", _metrics_handler(render_metrics), methods=["GET"]))
    return Starlette(routes=routes, exception_handlers=_error_handlers())


class TokenCheck:
    """ASGI middleware that refuses HTTP requests whose header `x-roundhouse-retrieval-token` does not have the token.
    `/health` and `/metrics` need none. For a program that listens on a port; a unix socket is protected by its file
    mode."""

    def __init__(self, app: AsgiApp, token: SharedToken) -> None:
        self._app = app
        self._token = token

    async def __call__(
        self,
        scope: MutableMapping[str, Any],
        receive: Callable[[], Awaitable[Any]],
        send: Callable[[Any], Awaitable[None]],
    ) -> None:
        """Pass a request on, or answer the error `invalid_api_key` without calling the application. Other ASGI scopes,
        such as `lifespan`, are always passed on."""
        is_open = scope["type"] != "http" or scope["path"] in OPEN_PATHS["retrieval"]
        if not is_open and not self._is_known(dict(scope["headers"])):
            error = RoundhouseError("invalid_api_key", f"The header {RETRIEVAL_TOKEN.header} is missing or wrong.")
            await Response(error.json_bytes(), error.entry.status, media_type="application/json")(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _is_known(self, headers: Mapping[bytes, bytes]) -> bool:
        return self._token.matches(headers.get(RETRIEVAL_TOKEN.header.encode(), b""))


def _error_handlers() -> dict[Any, Callable[[Request, Exception], Response]]:
    def own_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, RoundhouseError)
        return _answer_error(request, without_tracebacks(error))

    def framework_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        code = "method_not_allowed" if error.status_code == 405 else "unknown_route"
        return _answer_error(request, RoundhouseError(code, f"There is no {request.method} {request.scope['path']}."))

    def disk_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, (OSError, sqlite3.Error))
        log.warning("request %s: the disk fails: %s", request.headers.get("x-request-id"), error)
        return _answer_error(request, storage_error(error))

    def client_gone(request: Request, error: Exception) -> Response:
        return Response(status_code=499)  # nobody reads it

    def unexpected(request: Request, error: Exception) -> Response:
        request_id = request.headers.get("x-request-id")
        log.error("request %s failed", request_id, exc_info=error, extra=tag_request(request_id))
        return _answer_error(request, RoundhouseError("internal_error", "Retrieval failed on this request."))

    return {
        RoundhouseError: own_error,
        HTTPException: framework_error,
        OSError: disk_error,
        sqlite3.Error: disk_error,
        ClientDisconnect: client_gone,
        Exception: unexpected,
    }


def _answer_error(request: Request, error: RoundhouseError) -> Response:
    body = error.json_bytes(request.headers.get("x-request-id"))
    return Response(body, error.entry.status, error.build_headers(), media_type="application/json")


def _health_handler(find_notice: Callable[[], str | None]) -> Handler:
    async def health(request: Request) -> Response:
        return PlainTextResponse(find_notice() or "ok")

    return health


def _metrics_handler(render_metrics: Callable[[], Awaitable[bytes]]) -> Handler:
    async def metrics(request: Request) -> Response:
        return Response(await render_metrics(), media_type="text/plain; version=0.0.4; charset=utf-8")

    return metrics
