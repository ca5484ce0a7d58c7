"""Header lines that the gateway itself adds to answers, and to requests to engines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from controller.schema.errors import RoundhouseError
from gateway.admission.admission import QueuePlace
from gateway.admission.ticket import AT_ONCE
from gateway.ingress.cors import Cors
from gateway.server.asgi import Header
from gateway.server.call import header_lines
from gateway.tenancy.api_keys import Caller
from gateway.tenancy.clients import UNFIT_TEXT, clean_client_text, find_client_text
from gateway.tenancy.rate_limits import client_headers

_TO_ENGINE: Final = (b"traceparent", b"tracestate")
"""Request headers of clients that are forwarded to engines. Never credentials."""
_AT_ONCE_LINES: Final = b"x-queue-position: 1\r\nx-queue-depth: 1\r\nx-estimated-wait-ms: 0\r\n"
_REMEMBERED: Final = 256
"""Maximum number of client header lines that are remembered."""


class ResponseHeaders:
    """Makes the header lines that the gateway itself adds to answers and to requests to engines.

    One object serves all requests. Lines are bytes, each with CRLF.
    """

    def __init__(self, cors: Cors) -> None:
        self._cors = cors
        self._clients: dict[bytes, bytes] = {}

    def client_headers(
        self,
        id_lines: bytes,
        headers: Sequence[Header],
        caller: Caller,
        place: QueuePlace | None,
        rate_lines: bytes,
    ) -> bytes:
        """Return the lines of every inference answer: request id, client id, place in the queue, rate limits, and CORS.

        `id_lines`, `rate_lines`: finished lines of the request id and of the rate limits. `headers`: the request's,
        with names in lower case. `place` None: the request was in no queue, so the lines of the place are left out.
        """
        lines = b"%b%b%b%b" % (
            id_lines,
            self._client_line(headers, caller),
            b"" if place is None else _place_lines(place),
            rate_lines,
        )
        return lines + self._cors.header_lines(headers) if self._cors.is_on else lines

    def refusal_lines(self, error: RoundhouseError, caller: Caller) -> bytes:
        """Return the header lines that a refusal of a request with `error` has in addition to those of
        `client_headers`.

        That is `x-ratelimit-client` for `rate_limit_exceeded`, and `WWW-Authenticate` for `invalid_api_key`; empty for
        other codes.
        """
        if error.entry.code == "rate_limit_exceeded":
            return header_lines(client_headers(caller))
        return header_lines(refusal_headers(error))

    def engine_headers(self, request_id: str, headers: Sequence[Header]) -> bytes:
        """Return the lines of a request to an engine: its id, and the client's `traceparent` and `tracestate`.

        Trace headers with unfit characters are left out. `headers`: the client's, with names in lower case, of which no
        other is forwarded.
        """
        lines = b"x-request-id: %b\r\n" % request_id.encode()
        for name, value in headers:
            if name in _TO_ENGINE and not UNFIT_TEXT.search(value):
                lines += b"%b: %b\r\n" % (name, value)
        return lines

    def _client_line(self, headers: Sequence[Header], caller: Caller) -> bytes:
        if caller.name is not None or caller.is_limited:
            return b"x-client-id: %b\r\n" % caller.client_id
        client_text = find_client_text(headers)
        line = self._clients.get(client_text)
        if line is None:
            line = b"x-client-id: %b\r\n" % clean_client_text(client_text)
            if len(self._clients) < _REMEMBERED:
                self._clients[client_text] = line
        return line


def _place_lines(place: QueuePlace) -> bytes:
    if place is AT_ONCE:
        return _AT_ONCE_LINES
    lines = b"x-queue-position: %d\r\nx-queue-depth: %d\r\n" % (place.position, place.depth)
    return lines if place.wait_ms is None else lines + b"x-estimated-wait-ms: %d\r\n" % place.wait_ms


def refusal_headers(error: RoundhouseError) -> list[Header]:
    """Return the header `www-authenticate` for the error `invalid_api_key`; empty for other errors."""
    return [(b"www-authenticate", b"Bearer")] if error.entry.code == "invalid_api_key" else []
