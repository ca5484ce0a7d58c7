"""ASGI's shapes, and what every part of the gateway does with them: read a body, send an answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

from controller.schema.errors import RoundhouseError
from gateway.protocols.error_form import error_body

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]
Header = tuple[bytes, bytes]


class ClientGoneError(Exception):
    """The client closed its connection; nobody is left to answer."""


def request_id_of(scope: Scope) -> str:
    """The id that the ingress middleware gave the request."""
    request_id: str = scope["state"]["request_id"]
    return request_id


def local_address_of(scope: Scope) -> str | None:
    """The address at which the request's connection arrived, as the system tells it; None: it has none."""
    server = scope.get("server")
    return str(server[0]) if server else None


async def send_whole(send: Send, status: int, headers: list[Header], body: bytes) -> None:
    """Send a complete answer; its length is added to `headers`."""
    headers.append((b"content-length", b"%d" % len(body)))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})


def error_headers(error: RoundhouseError) -> list[Header]:
    """The headers that belong to an error's envelope. A known time of the next attempt is named in any case."""
    headers = error.build_headers()
    if error.retry_after_s is not None:
        headers.setdefault("retry-after", str(max(1, round(error.retry_after_s))))
    return [
        (b"content-type", b"application/json"),
        *((name.encode(), value.encode()) for name, value in headers.items()),
    ]


async def send_error(scope: Scope, send: Send, error: RoundhouseError, extra_headers: Iterable[Header] = ()) -> None:
    """Answer with the error in the form of the path's API family, and `extra_headers`."""
    request_id = request_id_of(scope)
    headers = [(b"x-request-id", request_id.encode()), *error_headers(error), *extra_headers]
    await send_whole(send, error.entry.status, headers, error_body(scope["path"], error, request_id))


def limit_body(receive: Receive, limit: int) -> Receive:
    """`receive` for an application that may read the request's body itself.

    The returned function raises RoundhouseError `body_too_large` as soon as more than `limit` bytes have come.
    """
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


async def read_body(scope: Scope, receive: Receive, limit: int) -> bytes:
    """The request's body.

    Raises:
        RoundhouseError: `body_too_large`, as soon as more than `limit` bytes are announced or have come.
        ClientGoneError: the client left before it had sent all.
    """
    content_length = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
    if int(content_length) > limit:
        raise _too_large_error(limit)
    message = await receive()
    if message["type"] == "http.request" and not message.get("more_body", False):
        return _check_size(limit, message["body"])
    parts: list[bytes] = []
    size = 0
    while True:
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        size += len(message["body"])
        if size > limit:
            raise _too_large_error(limit)
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
