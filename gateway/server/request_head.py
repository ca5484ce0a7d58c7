"""What a request's head says before anybody serves it: size, target, codings, a wish for another protocol. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final
from urllib.parse import unquote_to_bytes

from controller.schema.errors import RoundhouseError
from gateway.server.asgi import Header

_SCHEMES: Final = (b"http://", b"https://")
_PATH_END: Final = re.compile(rb"[?#]")
_OTHER_NAMES: Final[Mapping[bytes, bytes]] = {
    b"/reranking": b"/v1/rerank",
    b"/v1/reranking": b"/v1/rerank",
    b"/v1/health": b"/health",
}
"""llama-server's other names of paths."""
_BARE: Final = re.compile(
    rb"/(?:(?:chat/completions|completions|conversations|embeddings|messages|responses)(?:/.*)?"
    rb"|models/(?!(?:load|unload)$)[^/].*)",
    re.DOTALL,
)
"""What a client asks for whose base address lacks `/v1`. `/models` itself is a route of its own, and two paths below it
are routes of llama-server's router that are not served."""


def head_size(target: bytes, headers: Iterable[Header]) -> int:
    """Bytes of the target and the headers, as far as they count against the limit."""
    return len(target) + sum(len(name) + len(value) + 4 for name, value in headers)


def in_origin_form(target: bytes, headers: Sequence[Header]) -> tuple[bytes, list[Header]]:
    """A target as clients of a proxy send it (`http://host/path`), in the form that routes have; its host counts
    instead of the Host header (RFC 9112, 3.2.2), but of several it makes none less. Other targets stay as they are."""
    for scheme in _SCHEMES:
        if target[: len(scheme)].lower() == scheme:
            rest = target[len(scheme) :]
            end = next((index for index, byte in enumerate(rest) if byte in b"/?#"), len(rest))
            origin = rest[end:] if rest[end : end + 1] == b"/" else b"/" + rest[end:]
            is_replaced = sum(name == b"host" for name, _ in headers) < 2
            kept_headers = [header for header in headers if not (is_replaced and header[0] == b"host")]
            return origin, [(b"host", rest[:end]), *kept_headers]
    return target, list(headers)


def with_declared_path(target: bytes) -> bytes:
    """A target in origin form with the path that its route declares, where clients have another name for that path:
    llama-server's, or the same without `/v1`. Any other target stays as it is."""
    end = _PATH_END.search(target)
    path = target[: end.start()] if end else target
    name = unquote_to_bytes(path) if b"%" in path else path
    if (declared_path := _OTHER_NAMES.get(name)) is not None:
        return declared_path + target[len(path) :]
    return b"/v1" + target if _BARE.fullmatch(name) else target


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


def wants_websocket(method: bytes, version: str, headers: Iterable[Header]) -> bool:
    """Whether a request that wishes for another protocol wishes for WebSocket, as browsers and programs ask for it."""
    wished = [value.lower() for name, value in headers if name == b"upgrade"]
    return method == b"GET" and version == "1.1" and wished == [b"websocket"]


def check_transfer_coding(headers: Iterable[Header]) -> None:
    """Refuse bodies that are more than chunked: the parser takes the chunks, and leaves what is in them as it is.

    Raises:
        RoundhouseError: `invalid_request`. Where the next request begins is known, and yet nothing may be read after
            it: a server that knows the coding could find another place.
    """
    codings = [value.decode("latin-1") for name, value in headers if name == b"transfer-encoding"]
    if codings and (len(codings) > 1 or codings[0].lower() != "chunked"):
        message = f"Bodies with Transfer-Encoding: {', '.join(codings):.100} are not decoded; `chunked` alone is."
        raise RoundhouseError("invalid_request", message)


def explain_unread_body(error: RoundhouseError, headers: Iterable[Header]) -> RoundhouseError:
    """`error`, which tells why a body could not be read; where it is `invalid_json`, and the client says that the body
    has a content coding, an error that names it."""
    codings = [value.decode("latin-1") for name, value in headers if name == b"content-encoding"]
    if error.entry.code != "invalid_json" or not codings or codings == ["identity"]:
        return error
    message = f"Bodies with Content-Encoding: {', '.join(codings):.100} are not decoded: send JSON as it is."
    return RoundhouseError("invalid_json", message)
