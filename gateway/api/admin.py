"""/v1/admin/*: the controller's routes. The gateway forwards their requests to the controller unchanged.

This module does not know which admin routes exist; their part of /openapi.json is the controller's own document.
"""

from __future__ import annotations

import asyncio
from typing import Final

from fastapi import FastAPI
from starlette.routing import Route

from common.program_client import ProgramClient, ProgramGoneError
from controller.schema.errors import RoundhouseError
from gateway.api.deadline import Lifetime
from gateway.api.forwarding import (
    ForwardedAnswer,
    RunningForwards,
    forwarded_headers,
    forwarded_target,
    stopping_error,
)
from gateway.control.link import check_token_taken
from gateway.ingress.route_access import require_access
from gateway.server.asgi import ClientGoneError, Receive, Scope, Send, read_body, request_id_of

PATH: Final = "/v1/admin/{rest:path}"
MAX_BODY_BYTES: Final = 1024 * 1024
BODY_TIMEOUT_S: Final = 60.0

_ASKED: Final = (b"content-type", b"accept", b"last-event-id", b"if-none-match")
"""Request headers that are forwarded to the controller. Never credentials, nor what a client claims to be."""
_ANSWERED: Final = (
    "content-type",
    "content-length",
    "retry-after",
    "x-should-retry",
    "x-unsaved",
    "x-load-progress",
    "cache-control",
    "location",
    "etag",
    "allow",
)
"""Response headers of the controller that are forwarded to the client."""


def declare(app: FastAPI, forward: AdminForward) -> None:
    """Add one route to `app` for all paths and methods below /v1/admin/; the controller decides which of them exist.

    `forward` serves it. Its access is declared as `admin`, which `IngressMiddleware` enforces. The route is not in the
    OpenAPI document of `app`: `gateway.api.document` adds the controller's own description.
    """
    app.router.routes.append(Route(PATH, require_access("admin")(forward), include_in_schema=False))


class AdminForward:
    """ASGI application that forwards admin requests to the controller, and its answers to the client.

    It does not check access: `scope["state"]["caller"]` must be a caller that has been authorized. An answer has no
    time limit, since loads take minutes; a request's body may have `MAX_BODY_BYTES` (1 MiB) and take `BODY_TIMEOUT_S`
    (60 s). One object serves all requests of the gateway. The caller enters `controller` before the first request, and
    closes it.
    """

    def __init__(self, controller: ProgramClient) -> None:
        self._controller = controller
        self._running = RunningForwards()

    def begin_stop(self) -> None:
        """End running answers without a Content-Length, such as event streams, with `gateway_stopping`.

        Call when the gateway begins to stop. Other requests go on until `end_all`; new ones are still served.
        """
        self._running.begin_stop()

    def end_all(self) -> None:
        """End every running request with `gateway_stopping`, and return before they have ended.

        Call when the grace period of a stop is over. Requests whose body is still being read are not ended.
        """
        self._running.end_all()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward one request and its answer.

        Access is not checked: `scope["state"]["caller"]` must be authorized already.

        Raises:
            RoundhouseError: before anything was sent to the client: `unknown_route`, `body_too_large`,
                `request_timeout` for a slow body, `controller_unavailable` or `gateway_stopping`. A later failure ends
                the answer that has begun.
        """
        client_answer = ForwardedAnswer(send, request_id_of(scope), _ANSWERED)
        target = forwarded_target(scope)
        try:
            with Lifetime(None) as lifetime:
                body = await _read_body(scope, receive)
                lifetime.watch_client(receive, lambda: client_answer.is_ended)
                with self._running.hold(lifetime):
                    await self._forward(scope, target, body, client_answer, lifetime)
        except ClientGoneError:
            pass
        except RoundhouseError as error:
            await client_answer.fail_request(error)
        except asyncio.CancelledError:
            await client_answer.fail_request(
                stopping_error()
            )  # not raised again: the task ends here, as its canceller wants

    async def _forward(
        self, scope: Scope, target: str, body: bytes, client_answer: ForwardedAnswer, lifetime: Lifetime
    ) -> None:
        try:
            async with await self._controller.send_request(
                scope["method"], target, _forwarded_headers(scope), body
            ) as answer:
                check_token_taken(answer)
                if "content-length" not in answer.headers:
                    self._running.mark_endless(lifetime)
                await client_answer.relay_answer(answer)
        except ProgramGoneError as error:
            message = f"The controller does not answer: {error}. Inference goes on without it."
            raise RoundhouseError("controller_unavailable", message) from error


async def _read_body(scope: Scope, receive: Receive) -> bytes:
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            return await read_body(scope, receive, MAX_BODY_BYTES)
    except TimeoutError:
        message = f"The body was not complete after {BODY_TIMEOUT_S:g} s."
        raise RoundhouseError("request_timeout", message) from None


def _forwarded_headers(scope: Scope) -> dict[str, str]:
    return {**forwarded_headers(scope, _ASKED), "x-roundhouse-actor": name_actor(scope)}


def name_actor(scope: Scope) -> str:
    """Return who makes an authenticated request, for the controller's history.

    `key NAME ADDRESS` with the name of the client's key, or `api ADDRESS` for a caller without a key. ` ADDRESS` is
    missing if the client's address is not known.
    """
    client, caller = scope.get("client"), scope["state"]["caller"]
    actor = "api" if caller.name is None else f"key {caller.name}"
    return f"{actor} {client[0]}" if client else actor
