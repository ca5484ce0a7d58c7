"""/v1/admin/*: the controller's routes. The gateway forwards their requests to the controller unchanged.

This module does not know which admin routes exist; their part of /openapi.json is the controller's own document.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Final

from fastapi import FastAPI
from starlette.routing import Route

from common.program_client import ProgramAnswer, ProgramClient, ProgramGoneError
from controller.schema.errors import RoundhouseError
from gateway.api.deadline import Lifetime
from gateway.control.link import check_token_taken
from gateway.ingress.route_access import require_access
from gateway.protocols.common.sse import end_of_events
from gateway.server.asgi import ClientGoneError, Header, Receive, Scope, Send, read_body, request_id_of

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
    "x-load-progress",
    "cache-control",
    "location",
    "etag",
    "allow",
)
"""Response headers of the controller that are forwarded to the client."""


def declare(app: FastAPI, forward: AdminForward) -> None:
    """Add one route to `app` for all paths and methods below /v1/admin/; the controller decides which of them exist.

    `forward` serves it. The route is not in the OpenAPI document: `document` adds the controller's own.
    """
    app.router.routes.append(Route(PATH, require_access("admin")(forward), include_in_schema=False))


class AdminForward:
    """ASGI application that forwards authorized admin requests to the controller, and its answers to the client.

    An answer has no time limit, since loads take minutes; a request's body has `MAX_BODY_BYTES` and `BODY_TIMEOUT_S`.
    One object serves all requests of the gateway.
    """

    def __init__(self, controller: ProgramClient) -> None:
        self._controller = controller
        self._running: set[Lifetime] = set()
        self._endless: set[Lifetime] = set()

    def begin_stop(self) -> None:
        """End running answers without a Content-Length, such as event streams, with `gateway_stopping`.

        Call when the gateway begins to stop. Other requests go on until `end_all`; new ones are still served.
        """
        for lifetime in list(self._endless):
            lifetime.end_with(_stopping_error())

    def end_all(self) -> None:
        """End every running request with `gateway_stopping`, and return before they have ended.

        Call when the grace period of a stop is over. Requests whose body is still being read are not ended.
        """
        for lifetime in list(self._running):
            lifetime.end_with(_stopping_error())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward one request and its answer.

        Raises:
            RoundhouseError: before anything was sent to the client: `unknown_route`, `body_too_large`,
                `request_timeout` for a slow body, `controller_unavailable` or `gateway_stopping`. A later failure ends
                the answer that has begun.
        """
        client_answer = _ClientAnswer(send, request_id_of(scope))
        target = _target(scope)
        try:
            with Lifetime(None) as lifetime:
                body = await _read_body(scope, receive)
                lifetime.watch_client(receive, lambda: client_answer.is_ended)
                self._running.add(lifetime)
                try:
                    await self._forward(scope, target, body, client_answer, lifetime)
                finally:
                    self._running.discard(lifetime)
                    self._endless.discard(lifetime)
        except ClientGoneError:
            pass
        except RoundhouseError as error:
            await client_answer.fail_request(error)
        except asyncio.CancelledError:
            await client_answer.fail_request(
                _stopping_error()
            )  # not raised again: the task ends here, as its canceller wants

    async def _forward(
        self, scope: Scope, target: str, body: bytes, client_answer: _ClientAnswer, lifetime: Lifetime
    ) -> None:
        try:
            async with await self._controller.send_request(
                scope["method"], target, _forwarded_headers(scope), body
            ) as answer:
                check_token_taken(answer)
                if "content-length" not in answer.headers:
                    self._endless.add(lifetime)
                await client_answer.relay_answer(answer)
        except ProgramGoneError as error:
            message = f"The controller does not answer: {error}. Inference goes on without it."
            raise RoundhouseError("controller_unavailable", message) from error


class _ClientAnswer:
    """An answer to a client. Until it has begun, an error can have a status of its own."""

    def __init__(self, send: Send, request_id: str) -> None:
        self._send = send
        self._request_id = request_id
        self._is_begun = False
        self._is_events = False
        self.is_ended = False

    async def relay_answer(self, answer: ProgramAnswer) -> None:
        """Forward the controller's answer part by part; server-sent events only whole, so that an error can follow.

        Raises:
            ProgramGoneError: the controller's connection broke within the answer. Call `fail_request` then.
        """
        self._is_begun = True
        self._is_events = answer.headers.get("content-type", "").startswith("text/event-stream")
        headers = _returned_headers(answer.headers)
        if self._is_events:
            headers.append((b"x-accel-buffering", b"no"))  # a proxy in front must not collect the events
        await self._send({"type": "http.response.start", "status": answer.status, "headers": headers})
        held_data = b""
        while part := await answer.read_part():
            held_data += part
            end = end_of_events(held_data) if self._is_events else len(held_data)
            if end:
                await self._send_part(held_data[:end])
                held_data = held_data[end:]
        await self._send_end(held_data)

    async def fail_request(self, error: RoundhouseError) -> None:
        """End an answer that has begun because of `error`: an event stream with a last event, any other unfinished.

        Raises:
            RoundhouseError: `error`, if nothing was sent yet.
        """
        if not self._is_begun:
            raise error
        if self._is_events and not self.is_ended:
            envelope = json.dumps(error.build_envelope(self._request_id).model_dump(), ensure_ascii=False)
            await self._send_end(b"event: error\ndata: " + envelope.encode() + b"\n\n")

    async def _send_part(self, part: bytes) -> None:
        await self._send({"type": "http.response.body", "body": part, "more_body": True})

    async def _send_end(self, part: bytes) -> None:
        self.is_ended = True
        await self._send({"type": "http.response.body", "body": part, "more_body": False})


async def _read_body(scope: Scope, receive: Receive) -> bytes:
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            return await read_body(scope, receive, MAX_BODY_BYTES)
    except TimeoutError:
        message = f"The body was not complete after {BODY_TIMEOUT_S:g} s."
        raise RoundhouseError("request_timeout", message) from None


def _target(scope: Scope) -> str:
    """Return path and query as the client wrote them.

    Raises:
        RoundhouseError: `unknown_route` if the path has `.` or `..`, which could lead out of /v1/admin/.
    """
    if not {".", ".."}.isdisjoint(scope["path"].split("/")):
        raise RoundhouseError("unknown_route", f"There is no {scope['path']!r:.200}.")
    path: str = scope["raw_path"].decode("latin-1")
    query: str = scope["query_string"].decode("latin-1")
    return f"{path}?{query}" if query else path


def _forwarded_headers(scope: Scope) -> dict[str, str]:
    headers = {name.decode(): value.decode("latin-1") for name, value in scope["headers"] if name in _ASKED}
    client, caller = scope.get("client"), scope["state"]["caller"]
    headers["x-request-id"] = request_id_of(scope)
    actor = "api" if caller.name is None else f"key {caller.name}"
    headers["x-roundhouse-actor"] = f"{actor} {client[0]}" if client else actor
    return headers


def _returned_headers(headers: Mapping[str, str]) -> list[Header]:
    return [(name.encode(), headers[name].encode("latin-1")) for name in _ANSWERED if name in headers]


def _stopping_error() -> RoundhouseError:
    return RoundhouseError("gateway_stopping", "The gateway was stopped before the answer was complete.")
