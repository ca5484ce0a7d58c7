"""Retrieval's HTTP interface as an ASGI application. Its only client is the gateway, which authenticates clients."""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from common.program import error_handlers
from contract.retrieval import ROUTES
from retrieval.api.requests import Handler, Handlers
from retrieval.documents import storage_error


def create_app(
    handlers: Handlers, render_metrics: Callable[[], Awaitable[bytes]], find_notice: Callable[[], str | None]
) -> Starlette:
    """Build the application: the routes of `contract.retrieval.ROUTES`, `/health` and `/metrics`. A
    RoundhouseError of a handler becomes an error answer in its envelope, an error of the disk `storage_full` or
    `storage_failed`; any other exception is logged and becomes `internal_error`.

    `render_metrics` is called for each `GET /metrics`. `find_notice` returns what `GET /health` answers in place of
    `ok`: a sentence for operators; None: it answers `ok` alone. No token is checked: see `TokenCheck`. Raises KeyError
    for a route of the table without a handler, and ValueError for a handler without a route.
    """
    named = {(spec.method, spec.path) for spec in ROUTES}
    if extra := set(handlers) - named:
        raise ValueError(f"no route for {sorted(extra)}")
    routes = [Route(path, handlers[method, path], methods=[method]) for method, path in sorted(named)]
    # GET would answer HEAD, too; the gateway never asks that.
    routes.append(Route("/health", _health_handler(find_notice), methods=["GET"]))
    routes.append(Route("/metrics", _metrics_handler(render_metrics), methods=["GET"]))
    handlers_of_errors = error_handlers("retrieval", storage_error, OSError, sqlite3.Error)
    return Starlette(routes=routes, exception_handlers=handlers_of_errors)


def _health_handler(find_notice: Callable[[], str | None]) -> Handler:
    async def health(request: Request) -> Response:
        return PlainTextResponse(find_notice() or "ok")

    return health


def _metrics_handler(render_metrics: Callable[[], Awaitable[bytes]]) -> Handler:
    async def metrics(request: Request) -> Response:
        return Response(await render_metrics(), media_type="text/plain; version=0.0.4; charset=utf-8")

    return metrics
