"""The ASGI application of transfers: its routes, and the answers to errors."""

from __future__ import annotations

import errno
import logging
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from common.internal_tokens import OPEN_PATHS, TRANSFERS_TOKEN
from common.log_formats import tag_request
from common.shared_token import SharedToken
from common.tracebacks import without_tracebacks
from controller.schema.errors import RoundhouseError

log = logging.getLogger(__name__)

AsgiApp = Callable[
    [MutableMapping[str, Any], Callable[[], Awaitable[Any]], Callable[[Any], Awaitable[None]]], Awaitable[None]
]


def create_app(routes: Iterable[Route]) -> Starlette:
    """Build the application of these routes and `/health`. A RoundhouseError of a handler becomes an error answer in
    its envelope, an error of the disk `models_disk_full` or `models_folder_failed`; any other exception is logged and
    becomes `internal_error`. No token is checked: see `TokenCheck`."""
    return Starlette(
        routes=[*routes, Route("/health", _answer_health, methods=["GET"])],
        exception_handlers={
            RoundhouseError: _answer_own_error,
            HTTPException: _answer_framework_error,
            OSError: _answer_disk_error,
            ClientDisconnect: _answer_nobody,
            Exception: _answer_unexpected_error,
        },
    )


class TokenCheck:
    """ASGI middleware that refuses an HTTP request unless its header `x-roundhouse-transfers-token` has the token.
    `/health` needs none. For a program that listens on a port; a unix socket is protected by its file mode."""

    def __init__(self, app: AsgiApp, token: SharedToken) -> None:
        self._app = app
        self._token = token

    async def __call__(
        self,
        scope: MutableMapping[str, Any],
        receive: Callable[[], Awaitable[Any]],
        send: Callable[[Any], Awaitable[None]],
    ) -> None:
        """Pass a request on, or answer the error `invalid_api_key` without calling the application. Other ASGI scopes
        are always passed on."""
        if scope["type"] == "http" and scope["path"] not in OPEN_PATHS["transfers"]:
            shown = dict(scope["headers"]).get(TRANSFERS_TOKEN.header.encode(), b"")
            if not self._token.matches(shown):
                error = RoundhouseError("invalid_api_key", f"The header {TRANSFERS_TOKEN.header} is missing or wrong.")
                answer = Response(error.json_bytes(), error.entry.status, media_type="application/json")
                await answer(scope, receive, send)
                return
        await self._app(scope, receive, send)


def _answer_error(request: Request, error: RoundhouseError) -> Response:
    body = error.json_bytes(request.headers.get("x-request-id"))
    return Response(body, error.entry.status, error.build_headers(), media_type="application/json")


def _answer_own_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RoundhouseError)
    return _answer_error(request, without_tracebacks(error))


def _answer_framework_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code = "method_not_allowed" if error.status_code == 405 else "unknown_route"
    return _answer_error(request, RoundhouseError(code, f"There is no {request.method} {request.scope['path']}."))


def _answer_disk_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, OSError)
    log.warning("request %s: the models folder fails: %s", request.headers.get("x-request-id"), error)
    code = "models_disk_full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "models_folder_failed"
    return _answer_error(request, RoundhouseError(code, f"The models folder: {error.strerror or error}."))


def _answer_nobody(request: Request, error: Exception) -> Response:
    return Response(status_code=499)  # the client has gone


def _answer_unexpected_error(request: Request, error: Exception) -> Response:
    request_id = request.headers.get("x-request-id")
    log.error("request %s failed", request_id, exc_info=error, extra=tag_request(request_id))
    return _answer_error(request, RoundhouseError("internal_error", "Transfers failed on this request."))


async def _answer_health(request: Request) -> Response:
    return PlainTextResponse("ok")
