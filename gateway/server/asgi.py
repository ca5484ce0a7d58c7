"""Types and helpers for ASGI: read a request's body, send an answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any, Final

from contract.errors import RoundhouseError
from gateway.protocols.api_matrix import error_body
from gateway.protocols.common.large_body import LARGE_BYTES

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]
Header = tuple[bytes, bytes]


class ClientGoneError(Exception):
    """The client closed its connection before its request was read or its answer was complete, so nothing need be
    sent."""


def request_id_of(scope: Scope) -> str:
    """Return the id that the ingress middleware gave the request. KeyError for a request that did not pass it."""
    request_id: str = scope["state"]["request_id"]
    return request_id


def local_address_of(scope: Scope) -> str | None:
    """Return the gateway's own IP address, not the client's, on the request's connection; None: the socket has none."""
    server = scope.get("server")
    return str(server[0]) if server else None


async def send_whole(send: Send, status: int, headers: list[Header], body: bytes) -> None:
    """Send a complete answer, and add the header `content-length`, also to the caller's list `headers`. Names of
    headers are to be in lower case."""
    headers.append((b"content-length", b"%d" % len(body)))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})


def error_headers(error: RoundhouseError) -> list[Header]:
    """Return the headers of an error's answer, `Content-Type` included, without `Content-Length` and the request id.

    `Retry-After`, in whole seconds and at least 1, is among them whenever the error has a `retry_after_s`, or its code
    asks for a retry.
    """
    headers = error.build_headers()
    if error.retry_after_s is not None:
        headers.setdefault("retry-after", str(max(1, round(error.retry_after_s))))
    return [
        (b"content-type", b"application/json"),
        *((name.encode(), value.encode()) for name, value in headers.items()),
    ]


async def send_error(scope: Scope, send: Send, error: RoundhouseError, extra_headers: Iterable[Header] = ()) -> None:
    """Send `error` as the whole answer, with its status, its headers, the request id and `extra_headers`.

    The body has the form of the path's API family. No part of another answer may have been sent. KeyError for a request
    without an id (`request_id_of`).
    """
    request_id = request_id_of(scope)
    headers = [(b"x-request-id", request_id.encode()), *error_headers(error), *extra_headers]
    await send_whole(send, error.entry.status, headers, error_body(scope["path"], error, request_id))


def limit_body(receive: Receive, limit: int) -> Receive:
    """Return a `receive` for one request that raises RoundhouseError `body_too_large` once more than `limit` bytes of
    the body have arrived. Unlike `read_body`, it does not raise for a greater Content-Length alone."""
    size = 0

    async def receive_within_limit() -> Message:
        nonlocal size
        message = await receive()
        if message["type"] == "http.request":
            size += len(message["body"])
            if size > limit:
                raise _too_large_error(limit)
        return message

    return receive_within_limit


AWAITS_ROOM: Final = "roundhouse.awaits_room"
"""Key of a scope: whether the gateway waits for memory before it reads more of the body."""


async def read_body(
    scope: Scope, receive: Receive, limit: int, claim_room: Callable[[int], Awaitable[None]] | None = None
) -> bytes:
    """Read the whole body of a request, and return it; empty if it has none. `limit`: most bytes that it may have.
    `claim_room`: awaited before more is read of a body above `LARGE_BYTES` (256 KiB), with the most bytes that it may
    have; None: nobody counts its memory.

    Raises:
        RoundhouseError: `body_too_large` as soon as Content-Length announces more than `limit` bytes, or more have
            arrived. The rest of the body is not read.
        ClientGoneError: the client left before the end of the body.
    """
    content_length = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
    if int(content_length) > limit:
        raise _too_large_error(limit)
    if claim_room is not None and int(content_length) > LARGE_BYTES:
        await claim_room(int(content_length))
        claim_room = None
    message = await receive()
    if message["type"] == "http.request" and not message.get("more_body", False):
        if claim_room is not None and LARGE_BYTES < len(message["body"]) <= limit:
            await claim_room(len(message["body"]))
        return _check_size(limit, message["body"])
    parts: list[bytes] = []
    size = 0
    while True:
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        size += len(message["body"])
        if size > limit:
            raise _too_large_error(limit)
        if claim_room is not None and size > LARGE_BYTES:
            await claim_room(limit)
            claim_room = None
        parts.append(message["body"])
        if not message.get("more_body", False):
            return b"".join(parts)
        message = await receive()


def _check_size(limit: int, body: bytes) -> bytes:
    if len(body) > limit:
        raise _too_large_error(limit)
    return body


def _too_large_error(limit: int) -> RoundhouseError:
    return RoundhouseError("body_too_large", f"The body is larger than {limit} bytes, the most that is accepted.")
