"""Checks of a request's head before it is served: size, target, transfer codings, upgrades. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final
from urllib.parse import unquote_to_bytes

from contract.errors import RoundhouseError
from gateway.server.asgi import Header
from gateway.server.compressed_body import GZIP_CODINGS, explain_coding, find_codings

_SCHEMES: Final = (b"http://", b"https://")
_PATH_END: Final = re.compile(rb"[?#]")
_OTHER_NAMES: Final[Mapping[bytes, bytes]] = {
    b"/reranking": b"/v1/rerank",
    b"/v1/reranking": b"/v1/rerank",
    b"/v1/health": b"/health",
}
"""Other paths of llama-server, and the routes that they mean."""
ROUTER_PROPS_PATH: Final = b"/router/props"
"""The route that `GET /props` means where no model is named."""
_PROPS_PATH: Final = b"/props"
_SPARE_SLASHES: Final = re.compile(rb"//+")
_NAMED_MODEL: Final = re.compile(rb"[?&]model=[^&#]")
_BARE: Final = re.compile(
    rb"/(?:(?:chat/completions|completions|conversations|embeddings|messages|responses)(?:/.*)?"
    rb"|models/(?!(?:load|unload|sse)$)[^/].*)",
    re.DOTALL,
)
"""Paths of a client whose base URL lacks `/v1`. `/models` itself, `/models/load`, `/models/unload` and `/models/sse`
are routes of llama-server's router."""


def head_size(target: bytes, headers: Iterable[Header]) -> int:
    """Return the number of bytes of the target and the headers that count against `max_header_bytes`.

    Of each header these are its name, its value and 4 bytes; method and version do not count.
    """
    return len(target) + sum(len(name) + len(value) + 4 for name, value in headers)


def in_origin_form(target: bytes, headers: Sequence[Header]) -> tuple[bytes, list[Header]]:
    """Change a target in absolute form (`http://host/path`) to origin form (`/path`). Returns target and headers.

    The target's host replaces the Host header (RFC 9112, 3.2.2), unless there are several of them, so that these are
    still refused. Other targets are returned unchanged. `headers`: with names in lower case. Raises nothing: a
    malformed host is left to the check of the Host header.
    """
    for scheme in _SCHEMES:
        if target[: len(scheme)].lower() == scheme:
            rest = target[len(scheme) :]
            end = next((index for index, byte in enumerate(rest) if byte in b"/?#"), len(rest))
            origin = rest[end:] if rest[end : end + 1] == b"/" else b"/" + rest[end:]
            is_replaced = sum(name == b"host" for name, _ in headers) < 2
            kept_headers = [header for header in headers if not (is_replaced and header[0] == b"host")]
            return origin, [(b"host", rest[:end]), *kept_headers]
    return target, list(headers)


def with_declared_path(method: bytes, target: bytes) -> bytes:
    """Return the target with the path that the gateway declares, where it has another name of a declared route.

    Other names are those of llama-server (`/reranking`), `GET /props` without a model, and paths without `/v1`.
    `target`: in origin form, with its query, which is kept. Other targets are returned unchanged.
    """
    end = _PATH_END.search(target)
    path = target[: end.start()] if end else target
    name = unquote_to_bytes(path) if b"%" in path else path
    if (declared_path := _OTHER_NAMES.get(name)) is not None:
        return declared_path + target[len(path) :]
    if name == _PROPS_PATH and method in (b"GET", b"HEAD") and not _NAMED_MODEL.search(target, len(path)):
        return ROUTER_PROPS_PATH + target[len(path) :]
    return b"/v1" + target if _BARE.fullmatch(name) else target


def without_spare_slashes(path: bytes) -> bytes:
    """Return a path with one slash where several follow each other, and without the last one, unless it is all there
    is. `path`: percent-encoded, without its query; an encoded slash (`%2F`) is left."""
    return _SPARE_SLASHES.sub(b"/", path).rstrip(b"/") or b"/"


def without_prefix(target: bytes, prefix: bytes) -> bytes:
    """Return a target without the prefix under which a proxy serves the gateway; one that is not below it is returned
    unchanged. `prefix`: begins with a slash, and does not end with one."""
    is_below = target.startswith(prefix) and target[len(prefix) : len(prefix) + 1] == b"/"
    return target[len(prefix) :] if is_below else target


def check_protocol(method: bytes, version: str) -> None:
    """Check that a request is HTTP/1.0 or HTTP/1.1, and not CONNECT. `version`: such as `1.1`.

    Raises:
        RoundhouseError: `invalid_request` if it is not.
    """
    if method == b"CONNECT":
        raise RoundhouseError("invalid_request", "CONNECT is for proxies, and this is none.")
    if version not in ("1.1", "1.0"):
        raise RoundhouseError("invalid_request", f"The request's version is HTTP/{version}, and HTTP/1.1 is served.")


def without_upgrade(method: bytes, target: bytes, version: str, headers: Iterable[Header]) -> bytes:
    """Return the bytes of a request's head, the empty line included, without its Upgrade header.

    A server may ignore that header (RFC 9110, 7.8). `headers`: with names in lower case.
    """
    header_lines = b"".join(b"%b: %b\r\n" % header for header in headers if header[0] != b"upgrade")
    return b"%b %b HTTP/%b\r\n%b\r\n" % (method, target, version.encode(), header_lines)


def wants_websocket(method: bytes, version: str, headers: Iterable[Header]) -> bool:
    """Return whether a request asks for WebSocket alone: a GET of HTTP/1.1 with one Upgrade header, `websocket`. The
    handshake's other headers are not checked: see `websocket.accept_handshake`. `headers`: with names in lower case."""
    wished = [value.lower() for name, value in headers if name == b"upgrade"]
    return method == b"GET" and version == "1.1" and wished == [b"websocket"]


def check_transfer_coding(headers: Iterable[Header]) -> None:
    """Check that a body has no transfer coding but `chunked`, the only one that the parser decodes. `headers`: with
    names in lower case.

    Raises:
        RoundhouseError: `invalid_request` for any other coding or several headers. Read nothing after it: a server in
            front that knows the coding may see another end of the request.
    """
    codings = [value.decode("latin-1") for name, value in headers if name == b"transfer-encoding"]
    if codings and (len(codings) > 1 or codings[0].lower() != "chunked"):
        message = f"Bodies with Transfer-Encoding: {', '.join(codings):.100} are not decoded; `chunked` alone is."
        raise RoundhouseError("invalid_request", message)


def explain_unread_body(error: RoundhouseError, headers: Iterable[Header]) -> RoundhouseError:
    """Return the error `invalid_request` that names the body's content coding, if `error` is `invalid_json` and there
    is a coding other than gzip.

    Otherwise return `error` itself. `error`: why a body could not be read. `headers`: with names in lower case. The
    caller raises the result.
    """
    codings = find_codings(headers)
    if error.entry.code != "invalid_json" or not codings or codings in GZIP_CODINGS:
        return error
    return explain_coding(codings)
