"""CORS: which pages of other origins may read answers. Off unless the operator names origins. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

from gateway.server.asgi import Header

MAX_AGE_S: Final = 600
_EXPOSED: Final = (
    b"x-request-id, x-client-id, x-queue-position, x-queue-depth, x-estimated-wait-ms, retry-after, x-should-retry, "
    b"x-load-progress, x-ratelimit-client, x-ratelimit-limit-requests, x-ratelimit-remaining-requests, "
    b"x-ratelimit-reset-requests, x-ratelimit-limit-tokens, x-ratelimit-remaining-tokens, x-ratelimit-reset-tokens, "
    b"x-stream-state, x-stream-first-offset, x-stream-length, x-stream-file, x-session, x-replica"
)
_ALLOWED: Final = (
    b"authorization, x-api-key, content-type, accept, last-event-id, x-client-id, x-conversation-id, "
    b"x-progress, x-load-progress, anthropic-version"
)
_NAMES: Final = re.compile(rb"[A-Za-z0-9_, -]{1,2000}")
_VARY: Final = (b"vary", b"origin")


class Cors:
    """Makes the CORS headers for the origins that the operator allows; none if there are none.

    Credentials (cookies) are never allowed: keys are in headers that a page must set itself.
    """

    def __init__(self, origins: Iterable[str]) -> None:
        """`origins`: as browsers write them, in lower case, such as `https://chat.example`; `*`: all; empty: CORS is
        off."""
        self._origins = frozenset(origin.encode().rstrip(b"/") for origin in origins)
        self._all = b"*" in self._origins
        self.is_on = bool(self._origins)

    def allows_origin(self, origin: bytes) -> bool:
        """Return whether pages of `origin`, the value of an Origin header in any case, may read answers."""
        return self._all or origin.lower() in self._origins

    def response_headers(self, request_headers: Sequence[Header]) -> list[Header]:
        """Return the CORS headers of an answer to a request with `request_headers`.

        A request without Origin, or with one that is not allowed, gets `Vary` only; where all origins are allowed,
        every request gets the headers, without `Vary`. With CORS off, the list is empty. Names of headers must be in
        lower case.
        """
        if not self.is_on:
            return []
        if self._all:
            return [(b"access-control-allow-origin", b"*"), (b"access-control-expose-headers", _EXPOSED)]
        origin = _header_value(request_headers, b"origin")
        if origin is None or not self.allows_origin(origin):
            return [_VARY]
        return [(b"access-control-allow-origin", origin), (b"access-control-expose-headers", _EXPOSED), _VARY]

    def header_lines(self, request_headers: Sequence[Header]) -> bytes:
        """Return `response_headers` as lines of an HTTP/1.1 header section, each with CRLF; empty with CORS off."""
        return b"".join(b"%b: %b\r\n" % header for header in self.response_headers(request_headers))

    def answer_preflight(self, request_headers: Sequence[Header]) -> list[Header]:
        """Return the headers that answer a browser's preflight, an OPTIONS request with these headers.

        Empty if CORS is off, the origin is missing or not allowed, or the request is no preflight; treat it as any
        other request then. The method is not looked at.
        """
        origin = _header_value(request_headers, b"origin")
        if not self.is_on or origin is None or not self.allows_origin(origin):
            return []
        if _header_value(request_headers, b"access-control-request-method") is None:
            return []
        wanted_headers = _header_value(request_headers, b"access-control-request-headers") or b""
        return [
            *self.response_headers(request_headers),
            (b"access-control-allow-methods", b"GET, POST, DELETE"),
            # Allow whatever the page asks for: SDKs send many headers of their own, and none of them grants access.
            (b"access-control-allow-headers", wanted_headers if _NAMES.fullmatch(wanted_headers) else _ALLOWED),
            (b"access-control-max-age", b"%d" % MAX_AGE_S),
        ]


def _header_value(headers: Sequence[Header], header_name: bytes) -> bytes | None:
    return next((value for name, value in headers if name == header_name), None)
