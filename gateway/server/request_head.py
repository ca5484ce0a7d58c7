"""What a request's head says before anybody serves it: its size, its target, its wish for another protocol. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from controller.schema.errors import RoundhouseError
from gateway.server.asgi import Header

_SCHEMES: Final = (b"http://", b"https://")


def head_size(target: bytes, headers: Iterable[Header]) -> int:
    """Bytes of the target and the headers, as far as they count against the limit."""
    return len(target) + sum(len(name) + len(value) + 4 for name, value in headers)


def in_origin_form(target: bytes, headers: Sequence[Header]) -> tuple[bytes, list[Header]]:
    """A target as clients of a proxy send it (`http://host/path`), in the form that routes have; its host counts
    instead of the Host header (RFC 9112, 3.2.2). Other targets stay as they are."""
    for scheme in _SCHEMES:
        if target[: len(scheme)].lower() == scheme:
            rest = target[len(scheme) :]
            end = next((index for index, byte in enumerate(rest) if byte in b"/?#"), len(rest))
            origin = rest[end:] if rest[end : end + 1] == b"/" else b"/" + rest[end:]
            return origin, [(b"host", rest[:end]), *(header for header in headers if header[0] != b"host")]
    return target, list(headers)


def check_protocol(method: bytes, version: str) -> None:
    """Refuse what HTTP/1 servers that are no proxies do not speak.

    Raises:
        RoundhouseError: `invalid_request`.
    """
    if method == b"CONNECT":
        raise RoundhouseError("invalid_request", "CONNECT is for proxies, and this is none.")
    if version not in ("1.1", "1.0"):
        raise RoundhouseError("invalid_request", f"The request's version is HTTP/{version}, and HTTP/1.1 is served.")


def without_upgrade(method: bytes, target: bytes, version: str, headers: Iterable[Header]) -> bytes:
    """The head of the same request, without its wish for another protocol, which may be ignored (RFC 9110, 7.8)."""
    header_lines = b"".join(b"%b: %b\r\n" % header for header in headers if header[0] != b"upgrade")
    return b"%b %b HTTP/%b\r\n%b\r\n" % (method, target, version.encode(), header_lines)
