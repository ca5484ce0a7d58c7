"""What the client of a response in the background is answered: that it is queued, once that is stored."""

from __future__ import annotations

import asyncio
from typing import Protocol

from controller.schema.errors import RoundhouseError
from gateway.exchange.client_response import JSON_LINE
from gateway.protocols.common.conversation import Fields
from gateway.protocols.common.errors import encode_json
from gateway.protocols.common.large_body import LargeBody
from gateway.server.asgi import error_headers
from gateway.server.call import ClientCall, header_lines


class BackgroundRun(Protocol):
    """The response."""

    def cancel(self) -> None:
        """End it: its client has left, and nobody else knows of it."""


class BackgroundAck:
    """The handler of a call whose request goes on without it. Answers once."""

    __slots__ = ("_client", "_lines", "_queued_response", "_request_id", "_run")

    def __init__(
        self, run: BackgroundRun, client: ClientCall, lines: bytes, request_id: str, queued_response: Fields
    ) -> None:
        """`lines`: header lines of the answer."""
        self._run = run
        self._client: ClientCall | None = client
        self._lines = lines
        self._request_id = request_id
        self._queued_response = queued_response

    def answer_when_saved(self, save_future: asyncio.Future[None]) -> None:
        """It is stored, or cannot be."""
        error, client = save_future.exception(), self._release_client()
        if client is None:
            return
        if isinstance(error, RoundhouseError):
            lines = self._lines + header_lines(error_headers(error))
            client.send_whole(error.entry.status, lines, error.json_bytes(self._request_id))
        else:
            client.send_whole(200, self._lines + JSON_LINE, encode_json(self._queued_response))

    def take_body(self, body: bytes | LargeBody) -> None:
        """Never called, as `fail`: the request was complete before."""

    def fail_request(self, error: RoundhouseError) -> None:
        """See `begin`."""

    def client_gone(self) -> None:
        """See Handler."""
        self._run.cancel()
        self._release_client()

    def client_full(self) -> None:
        """See Handler. The one answer is short."""

    def client_ready(self) -> None:
        """See Handler."""

    def _release_client(self) -> ClientCall | None:
        client, self._client = self._client, None
        if client is not None:
            client.handler = None
        return client
