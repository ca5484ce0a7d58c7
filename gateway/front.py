"""The front door of what goes through the web framework: every request gets its id here, is let in or turned away, and
no failure leaves without the envelope."""

from __future__ import annotations

import itertools
import logging
import secrets
from collections.abc import Callable

from controller.schema.errors import RoundhouseError
from controller.schema.keys import KeyScope
from gateway.asgi import AsgiApp, Header, Message, Receive, Scope, Send, send_error, send_whole
from gateway.cors import Cors
from gateway.gate import Gate
from gateway.headers import HeaderLines
from gateway.keys import Caller

logger = logging.getLogger(__name__)

UNGATED = frozenset({"/health", "/metrics"})
SCOPE_OF: tuple[tuple[str, KeyScope], ...] = (("/v1/admin/", "admin"),)
"""Path prefixes that need a scope. The other routes of the framework only describe: any valid key opens them."""


def request_ids() -> Callable[[], str]:
    """Makes ids: a random part for this process, and a counter."""
    process = secrets.token_hex(4)
    numbers = itertools.count(1)
    return lambda: f"req-{process}-{next(numbers):x}"


class FrontDoor:
    """The outermost ASGI application. Inference does not come by here: see `client_http`."""

    def __init__(
        self, framework: AsgiApp, gate: Gate, cors: Cors, lines: HeaderLines, next_id: Callable[[], str]
    ) -> None:
        self._framework = framework
        self._gate = gate
        self._cors = cors
        self._lines = lines
        self._next_id = next_id

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; lifespan messages pass through."""
        if scope["type"] != "http":
            await self._framework(scope, receive, send)
            return
        request_id = self._next_id()
        scope.setdefault("state", {})["request_id"] = request_id
        headers: list[Header] = scope["headers"]
        said = [(b"x-request-id", request_id.encode()), *self._cors.headers(headers)]
        if scope["method"] == "OPTIONS" and (preflight := self._cors.preflight(headers)):
            await send_whole(send, 204, [said[0], *preflight], b"")
            return
        if scope["path"] not in UNGATED:
            try:
                scope["state"]["caller"] = self._let_in(scope["path"], headers)
            except RoundhouseError as error:
                await send_error(send, error, request_id, [*said[1:], *self._lines.refusal_headers(error)])
                return
        await self._through_framework(scope, receive, send, request_id, said)

    def _let_in(self, path: str, headers: list[Header]) -> Caller:
        caller = self._gate.caller(headers)
        for prefix, needed in SCOPE_OF:
            if path.startswith(prefix):
                caller.needs(needed)
        return caller

    async def _through_framework(
        self, scope: Scope, receive: Receive, send: Send, request_id: str, said: list[Header]
    ) -> None:
        started = False

        async def with_headers(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                message["headers"] = [*message.get("headers", ()), *said]
            await send(message)

        try:
            await self._framework(scope, receive, with_headers)
        except Exception:
            logger.exception("request %s failed", request_id)
            if not started:
                failed = RoundhouseError("internal_error", "The gateway failed on this request.")
                await send_error(send, failed, request_id, said[1:])
