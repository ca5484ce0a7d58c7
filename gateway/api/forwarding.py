"""Requests that the gateway forwards to another program: headers, answers part by part, time limits; and `/v1/admin/*`,
the controller's routes, whose requests are forwarded unchanged.

This module does not know which admin routes exist; their part of /openapi.json is the controller's own document.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Final

from fastapi import FastAPI
from starlette.routing import Route

from common.program_client import ProgramAnswer, ProgramClient, ProgramGoneError
from contract.errors import RoundhouseError
from gateway.control.link import check_token_taken
from gateway.ingress.middleware import require_access
from gateway.protocols.common.streams import end_of_events
from gateway.server.asgi import ClientGoneError, Header, Receive, Scope, Send, read_body, request_id_of


class DeadlineError(Exception):
    """The time limit of a `Lifetime` is over. Raised at the end of the `with` block of that `Lifetime`."""


class Lifetime:
    """Context manager that cancels what its task awaits, and raises the reason instead of `CancelledError`.

    Enter it once, in the task of the request. The reason is `DeadlineError`, `ClientGoneError`, or that of `end_with`.
    A cancellation from elsewhere stays `CancelledError`, and any other exception of the block is raised as it is. One
    timer and one watch of the client serve a whole request: a timeout for each wait would cost more than the wait.
    """

    __slots__ = ("_is_over", "_loop", "_reason", "_task", "_timeout_s", "_timer", "_watch")

    def __init__(self, timeout_s: float | None) -> None:
        """`timeout_s`: seconds from entering the context to `DeadlineError`; None: no limit."""
        self._timeout_s = timeout_s
        self._reason: Exception | None = None
        self._is_over = False
        self._watch: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> Lifetime:
        """Start the timer. From here on, `DeadlineError` may be raised."""
        self._loop = asyncio.get_running_loop()
        task = asyncio.current_task(self._loop)
        assert task is not None
        self._task: asyncio.Task[object] = task
        if self._timeout_s is not None:
            self._timer = self._loop.call_later(self._timeout_s, self.end_with, DeadlineError())
        return self

    def watch_client(self, receive: Receive, is_answered: Callable[[], bool]) -> None:
        """Watch for a disconnect: from here on, `ClientGoneError` may be raised. Returns at once.

        Call once, within the context, after the body was read: nobody else may call `receive` any more. uvicorn's
        `send` returns silently after a disconnect, so only `receive` tells of it, but also when the answer is complete.
        `is_answered` tells the two apart: it must return True once the whole answer was sent.
        """
        # Never cancelled: the watch ends by itself with the answer or with the connection.
        self._watch = self._loop.create_task(self._until_disconnect(receive, is_answered))

    async def _until_disconnect(self, receive: Receive, is_answered: Callable[[], bool]) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        if not is_answered():
            self.end_with(ClientGoneError())

    def end_with(self, reason: Exception) -> None:
        """Cancel what the context's task awaits, so that the context raises `reason`. Returns at once. Call in the
        event loop after the context was entered. Does nothing after an earlier reason or the end of the context."""
        if not self._is_over and self._reason is None:
            self._reason = reason
            self._task.cancel()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._is_over = True
        if self._timer is not None:
            self._timer.cancel()
        reason, self._reason = self._reason, None
        if reason is not None and kind is asyncio.CancelledError and self._task.uncancel() == 0:
            try:
                raise reason from None
            finally:
                del reason  # its traceback leads to this frame


class RunningForwards:
    """The requests that are being forwarded to one program, so that a stop of the gateway can end them.

    Use it in one event loop. No method waits. A request counts, and can be ended, only within its `hold`: not while its
    body is read before.
    """

    def __init__(self) -> None:
        self._running: set[Lifetime] = set()
        self._endless: set[Lifetime] = set()

    @contextmanager
    def hold(self, lifetime: Lifetime) -> Iterator[None]:
        """Count a request as running within the block, so that `end_all` ends it by `lifetime`, which must have been
        entered."""
        self._running.add(lifetime)
        try:
            yield
        finally:
            self._running.discard(lifetime)
            self._endless.discard(lifetime)

    def mark_endless(self, lifetime: Lifetime) -> None:
        """Note that a running request's answer may never end by itself, so that `begin_stop` ends it. Call within
        `hold`."""
        self._endless.add(lifetime)

    def begin_stop(self) -> None:
        """End running answers that were marked endless, with `gateway_stopping`, and return before they have ended.

        Other requests go on until `end_all`; new ones are still served, also those marked endless from now on.
        """
        for lifetime in list(self._endless):
            lifetime.end_with(stopping_error())

    def end_all(self) -> None:
        """End every running request with `gateway_stopping`, and return before they have ended."""
        for lifetime in list(self._running):
            lifetime.end_with(stopping_error())


class ForwardedAnswer:
    """The answer to one client's request, taken from a program's answer.

    Call `relay_answer` once; `fail_request` if that, or what came before it, failed. `is_ended` says whether the last
    part was sent. Until the answer has begun, an error can have a status of its own.
    """

    def __init__(
        self, send: Send, request_id: str, returned_headers: Collection[str], extra_headers: Sequence[Header] = ()
    ) -> None:
        """`returned_headers`: names, in lower case, of the program's headers that the client gets. `extra_headers`:
        further headers that the client gets."""
        self._send = send
        self._request_id = request_id
        self._returned_headers = returned_headers
        self._extra_headers = extra_headers
        self._is_begun = False
        self._is_events = False
        self.is_ended = False

    async def relay_answer(self, answer: ProgramAnswer) -> None:
        """Send the client the status, the chosen headers and the body of the program's answer. Call once.

        The body is sent part by part as the parts come; of an event stream only whole events are sent, so that an error
        can follow. Returns when all is sent.

        Raises:
            ProgramGoneError: the program's connection broke within the answer. Call `fail_request` then.
        """
        self._is_begun = True
        self._is_events = answer.headers.get("content-type", "").startswith("text/event-stream")
        headers = [*_select_headers(answer.headers, self._returned_headers), *self._extra_headers]
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
        """End the answer because of `error`: an event stream that has begun gets a last event `error`.

        Any other answer that has begun gets nothing more and stays incomplete; one that is complete is left as it is.

        Raises:
            RoundhouseError: `error`, if nothing was sent yet: the caller answers it with a status of its own.
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


def forwarded_target(scope: Scope) -> str:
    """Return path and query as the client wrote them, percent-encoded; without a query there is no `?`.

    Raises:
        RoundhouseError: `unknown_route` if the path has `.` or `..`, which could lead to another route of the program.
    """
    if not {".", ".."}.isdisjoint(scope["path"].split("/")):
        raise RoundhouseError("unknown_route", f"There is no {scope['path']!r:.200}.")
    path: str = scope["raw_path"].decode("latin-1")
    query: str = scope["query_string"].decode("latin-1")
    return f"{path}?{query}" if query else path


def forwarded_headers(scope: Scope, names: Collection[bytes]) -> dict[str, str]:
    """Return those of the client's headers that are in `names` (in lower case), and the gateway's id of the request as
    `x-request-id`. Names that the request lacks are left out; of a repeated header the last value counts."""
    headers = {name.decode(): value.decode("latin-1") for name, value in scope["headers"] if name in names}
    headers["x-request-id"] = request_id_of(scope)
    return headers


def stopping_error() -> RoundhouseError:
    """Return, without raising it, `gateway_stopping` for an answer that is not complete."""
    return RoundhouseError("gateway_stopping", "The gateway was stopped before the answer was complete.")


def _select_headers(headers: Mapping[str, str], names: Collection[str]) -> list[Header]:
    return [(name.encode(), headers[name].encode("latin-1")) for name in names if name in headers]


ADMIN_PATH: Final = "/v1/admin/{rest:path}"
SHORT_BODY_BYTES: Final = 1024 * 1024
"""Largest body of an admin request, and of one to the MCP server."""
SHORT_BODY_TIMEOUT_S: Final = 60.0
"""Seconds in which it must have come."""

_REQUEST_HEADERS: Final = (b"content-type", b"accept", b"last-event-id", b"if-none-match")
"""Request headers that are forwarded to the controller. Never credentials, nor what a client claims to be."""
_RESPONSE_HEADERS: Final = (
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


def declare_admin(app: FastAPI, forward: AdminForward) -> None:
    """Add one route to `app` for all paths and methods below /v1/admin/; the controller decides which of them exist.

    `forward` serves it. Its access is declared as `admin`, which `IngressMiddleware` enforces. The route is not in the
    OpenAPI document of `app`: `gateway.api.document` adds the controller's own description.
    """
    app.router.routes.append(Route(ADMIN_PATH, require_access("admin")(forward), include_in_schema=False))


class AdminForward(RunningForwards):
    """ASGI application that forwards admin requests to the controller, and its answers to the client.

    It does not check access: `scope["state"]["caller"]` must be a caller that has been authorized. An answer has no
    time limit, since loads take minutes; a request's body may have `SHORT_BODY_BYTES` (1 MiB) and take
    `SHORT_BODY_TIMEOUT_S` (60 s). One object serves all requests of the gateway. The caller enters `controller` before
    the first request, and closes it.
    """

    def __init__(self, controller: ProgramClient) -> None:
        super().__init__()
        self._controller = controller

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward one request and its answer.

        Access is not checked: `scope["state"]["caller"]` must be authorized already.

        Raises:
            RoundhouseError: before anything was sent to the client: `unknown_route`, `body_too_large`,
                `request_timeout` for a slow body, `controller_unavailable` or `gateway_stopping`. A later failure ends
                the answer that has begun.
        """
        client_answer = ForwardedAnswer(send, request_id_of(scope), _RESPONSE_HEADERS)
        target = forwarded_target(scope)
        try:
            with Lifetime(None) as lifetime:
                body = await read_short_body(scope, receive)
                lifetime.watch_client(receive, lambda: client_answer.is_ended)
                with self.hold(lifetime):
                    await self._forward(scope, target, body, client_answer, lifetime)
        except ClientGoneError:
            pass
        except RoundhouseError as error:
            await client_answer.fail_request(error)
        except asyncio.CancelledError:
            await client_answer.fail_request(stopping_error())  # not raised again: the task ends here

    async def _forward(
        self, scope: Scope, target: str, body: bytes, client_answer: ForwardedAnswer, lifetime: Lifetime
    ) -> None:
        try:
            async with await self._controller.send_request(
                scope["method"], target, _forwarded_headers(scope), body
            ) as answer:
                check_token_taken(answer)
                if "content-length" not in answer.headers:
                    self.mark_endless(lifetime)
                await client_answer.relay_answer(answer)
        except ProgramGoneError as error:
            message = f"The controller does not answer: {error}. Inference goes on without it."
            raise RoundhouseError("controller_unavailable", message) from error


async def read_short_body(scope: Scope, receive: Receive) -> bytes:
    """Return a body of at most `SHORT_BODY_BYTES` (1 MiB). Raises RoundhouseError `body_too_large`, or
    `request_timeout` if it is not complete after `SHORT_BODY_TIMEOUT_S` (60 s); ClientGoneError if the client left
    before."""
    try:
        async with asyncio.timeout(SHORT_BODY_TIMEOUT_S):
            return await read_body(scope, receive, SHORT_BODY_BYTES)
    except TimeoutError:
        message = f"The body was not complete after {SHORT_BODY_TIMEOUT_S:g} s."
        raise RoundhouseError("request_timeout", message) from None


def _forwarded_headers(scope: Scope) -> dict[str, str]:
    return {**forwarded_headers(scope, _REQUEST_HEADERS), "x-roundhouse-actor": name_actor(scope)}


def name_actor(scope: Scope) -> str:
    """Return who makes an authenticated request, for the controller's history.

    `key NAME ADDRESS` with the name of the client's key, or `api ADDRESS` for a caller without a key. ` ADDRESS` is
    missing if the client's address is not known.
    """
    client, caller = scope.get("client"), scope["state"]["caller"]
    actor = "api" if caller.name is None else f"key {caller.name}"
    return f"{actor} {client[0]}" if client else actor
