"""Requests that another program of Roundhouse answers: its answer is passed on part by part, and may have no end."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager

from common.program_client import ProgramAnswer
from controller.schema.errors import RoundhouseError
from gateway.api.deadline import Lifetime
from gateway.protocols.common.sse import end_of_events
from gateway.server.asgi import Header, Scope, Send, request_id_of


class RunningForwards:
    """The requests that are being forwarded, so that a stop of the gateway can end them."""

    def __init__(self) -> None:
        self._running: set[Lifetime] = set()
        self._endless: set[Lifetime] = set()

    @contextmanager
    def hold(self, lifetime: Lifetime) -> Iterator[None]:
        """Count a request as running within the block."""
        self._running.add(lifetime)
        try:
            yield
        finally:
            self._running.discard(lifetime)
            self._endless.discard(lifetime)

    def mark_endless(self, lifetime: Lifetime) -> None:
        """Note that a running request's answer may never end by itself. Call within `hold`."""
        self._endless.add(lifetime)

    def begin_stop(self) -> None:
        """End running answers that were marked endless, with `gateway_stopping`. Other requests go on until `end_all`;
        new ones are still served."""
        for lifetime in list(self._endless):
            lifetime.end_with(stopping_error())

    def end_all(self) -> None:
        """End every running request with `gateway_stopping`, and return before they have ended."""
        for lifetime in list(self._running):
            lifetime.end_with(stopping_error())


class ForwardedAnswer:
    """An answer to a client. Until it has begun, an error can have a status of its own."""

    def __init__(
        self, send: Send, request_id: str, returned_headers: Collection[str], extra_headers: Sequence[Header] = ()
    ) -> None:
        """`returned_headers`: names, in lower case, of the program's headers that the client gets. `extra_headers`:
        headers that it gets besides."""
        self._send = send
        self._request_id = request_id
        self._returned_headers = returned_headers
        self._extra_headers = extra_headers
        self._is_begun = False
        self._is_events = False
        self.is_ended = False

    async def relay_answer(self, answer: ProgramAnswer) -> None:
        """Forward the program's answer part by part; server-sent events only whole, so that an error can follow.

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


def forwarded_target(scope: Scope) -> str:
    """Return path and query as the client wrote them.

    Raises:
        RoundhouseError: `unknown_route` if the path has `.` or `..`, which could lead to another route of the program.
    """
    if not {".", ".."}.isdisjoint(scope["path"].split("/")):
        raise RoundhouseError("unknown_route", f"There is no {scope['path']!r:.200}.")
    path: str = scope["raw_path"].decode("latin-1")
    query: str = scope["query_string"].decode("latin-1")
    return f"{path}?{query}" if query else path


def forwarded_headers(scope: Scope, names: Collection[bytes]) -> dict[str, str]:
    """Return the client's headers of these names, in lower case, and the request's id as `x-request-id`."""
    headers = {name.decode(): value.decode("latin-1") for name, value in scope["headers"] if name in names}
    headers["x-request-id"] = request_id_of(scope)
    return headers


def stopping_error() -> RoundhouseError:
    """Return `gateway_stopping` for an answer that is not complete."""
    return RoundhouseError("gateway_stopping", "The gateway was stopped before the answer was complete.")


def _select_headers(headers: Mapping[str, str], names: Collection[str]) -> list[Header]:
    return [(name.encode(), headers[name].encode("latin-1")) for name in names if name in headers]
