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
    """The requests that are being forwarded to one program, so that a stop of the gateway can end them.

    Use it in one event loop. No method waits.
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
