"""What programs' main functions share: exit codes, the reason of a failed start, signals, the check of the token that
another program shows, and the error answers of those that only programs ask.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from uvicorn.protocols.utils import ClientDisconnected

from common.internal_tokens import OPEN_PATHS, InternalToken
from common.line_writer import LineWriter
from common.log_formats import tag_request
from common.processes import without_tracebacks
from common.shared_token import SharedToken
from contract.errors import RoundhouseError

log = logging.getLogger(__name__)


EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
"""A setting is wrong."""
EXIT_ADDRESS: Final = 3
"""The address is taken."""
EXIT_LOCKED: Final = 4
"""Another process uses the program's folder."""


def refuse_start(program: str, code: int, reason: str) -> int:
    """Write to stderr, as one line, why a program does not start, and return `code`, its exit code."""
    LineWriter(sys.stderr).write_line(f"roundhouse {program}: {reason}")
    return code


def explain_settings(error: ValidationError | ValueError) -> str:
    """Return what is wrong with the settings in one line, which names the environment variables where they are
    known."""
    if not isinstance(error, ValidationError):
        return str(error)
    details = error.errors(include_url=False, include_context=False, include_input=False)
    return "; ".join(_explain_setting(detail["loc"], detail["msg"]) for detail in details)


def _explain_setting(place: tuple[int | str, ...], message: str) -> str:
    message = message.removeprefix("Value error, ")
    return f"{'_'.join(['ROUNDHOUSE', *(str(step).upper() for step in place)])}: {message}" if place else message


def call_at_end(end: Callable[[], None]) -> None:
    """Have each SIGTERM and SIGINT call `end` in the running event loop, and not end the process."""
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, end)


Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
AsgiApp = Callable[[Message, Receive, Send], Awaitable[None]]

REQUEST_ID_HEADER = "x-request-id"


class TokenCheck:
    """ASGI middleware that passes requests and WebSockets on which show the token, and HTTP requests of the program's
    `OPEN_PATHS`. Others get an error (401), and a WebSocket then raises ClientDisconnected, which uvicorn catches.

    For a program that listens on a port; a unix socket is protected by its file mode.
    """

    def __init__(self, app: AsgiApp, token: SharedToken, kind: InternalToken) -> None:
        """`token`: what to compare with. `kind`: its kind, which gives the header and, by `made_by`, the open paths."""
        self._app = app
        self._token = token
        self._kind = kind
        self._open_paths = OPEN_PATHS[kind.made_by]

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Serve one request or WebSocket, or pass another ASGI scope on, such as `lifespan`."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        is_open = scope["type"] == "http" and scope["path"] in self._open_paths
        if is_open or self._token.matches(headers.get(self._kind.header.encode(), b"")):
            await self._app(scope, receive, send)
            return
        error = RoundhouseError(self._kind.refusal, f"The header {self._kind.header} is missing or wrong.")
        request_id = headers.get(REQUEST_ID_HEADER.encode())
        body = error.json_bytes(request_id.decode("latin-1") if request_id else None)
        # A WebSocket is refused by an HTTP answer, before it is one.
        kind = "http" if scope["type"] == "http" else "websocket.http"
        error_headers = [(name.encode(), value.encode()) for name, value in error.build_headers().items()]
        error_headers += [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        await send({"type": f"{kind}.response.start", "status": error.entry.status, "headers": error_headers})
        await send({"type": f"{kind}.response.body", "body": body, "more_body": False})
        if kind != "http":
            # For uvicorn a handshake that was answered thus is incomplete, and an error in the log; this ends it.
            raise ClientDisconnected


ErrorHandler = Callable[[Request, Exception], Response]


def answer_error(request: Request, error: RoundhouseError) -> Response:
    """Return the answer to a request: the error's status and headers, and its JSON body with the request's id."""
    body = error.json_bytes(request.headers.get(REQUEST_ID_HEADER))
    return Response(body, error.entry.status, error.build_headers(), media_type="application/json")


def error_handlers(
    program: str, explain_disk: Callable[[Any], RoundhouseError], *disk_errors: type[Exception]
) -> dict[Any, ErrorHandler]:
    """Return the exception handlers of a Starlette application: a RoundhouseError is answered as it is; the framework's
    own as `method_not_allowed` (405) or `unknown_route`; `disk_errors` are logged and become what `explain_disk`
    returns for them; a client that left gets 499; any other exception is logged and becomes `internal_error`.
    `program`: its name in messages."""

    def own_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, RoundhouseError)
        return answer_error(request, without_tracebacks(error))

    def framework_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        code = "method_not_allowed" if error.status_code == 405 else "unknown_route"
        return answer_error(request, RoundhouseError(code, f"There is no {request.method} {request.scope['path']}."))

    def disk_error(request: Request, error: Exception) -> Response:
        log.warning("request %s: the disk fails: %s", request.headers.get(REQUEST_ID_HEADER), error)
        return answer_error(request, explain_disk(error))

    def client_gone(request: Request, error: Exception) -> Response:
        return Response(status_code=499)  # nobody reads it

    def unexpected(request: Request, error: Exception) -> Response:
        request_id = request.headers.get(REQUEST_ID_HEADER)
        log.error("request %s failed", request_id, exc_info=error, extra=tag_request(request_id))
        words = f"{program.capitalize()} failed on this request."
        return answer_error(request, RoundhouseError("internal_error", words))

    return {
        RoundhouseError: own_error,
        HTTPException: framework_error,
        **dict.fromkeys(disk_errors, disk_error),
        ClientDisconnect: client_gone,
        Exception: unexpected,
    }
