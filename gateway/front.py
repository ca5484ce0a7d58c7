"""The front door: every request gets its id here, foreign ones are turned away, and no failure leaves without the
envelope."""

from __future__ import annotations

import itertools
import logging
import secrets
from collections.abc import Callable, Mapping

from controller.schema.errors import RoundhouseError
from gateway.asgi import AsgiApp, Message, Receive, Scope, Send, send_error
from gateway.hosts import HostRule

logger = logging.getLogger(__name__)

UNGATED = frozenset({"/health", "/metrics"})


def request_ids() -> Callable[[], str]:
    """Makes ids: a random part for this process, and a counter."""
    process = secrets.token_hex(4)
    numbers = itertools.count(1)
    return lambda: f"req-{process}-{next(numbers):x}"


class FrontDoor:
    """The outermost ASGI application.

    The inference routes are called directly, since the layers of the web framework cost more than the rest of the
    request; they are declared there all the same, for the OpenAPI document and for wrong methods.
    """

    def __init__(
        self, framework: AsgiApp, direct: Mapping[str, AsgiApp], rule: HostRule, begin_stop: Callable[[], None]
    ) -> None:
        """`direct` maps a path to the application that answers its POSTs."""
        self._framework = framework
        self.begin_stop = begin_stop
        """Called when the server begins to stop: ends what would go on for ever."""
        self._direct = direct
        self._rule = rule
        self._next_id = request_ids()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; lifespan messages pass through."""
        if scope["type"] != "http":
            await self._framework(scope, receive, send)
            return
        request_id = self._next_id()
        scope.setdefault("state", {})["request_id"] = request_id
        path = scope["path"]
        if path not in UNGATED:
            try:
                self._rule.check(scope["headers"])
            except RoundhouseError as error:
                await send_error(send, error, request_id)
                return
        direct = self._direct.get(path)
        if direct is not None and scope["method"] == "POST":
            await direct(scope, receive, send)
        else:
            await self._through_framework(scope, receive, send, request_id)

    async def _through_framework(self, scope: Scope, receive: Receive, send: Send, request_id: str) -> None:
        started = False

        async def with_id(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", request_id.encode())]
            await send(message)

        try:
            await self._framework(scope, receive, with_id)
        except Exception:
            logger.exception("request %s failed", request_id)
            if not started:
                await send_error(
                    send, RoundhouseError("internal_error", "The gateway failed on this request."), request_id
                )
