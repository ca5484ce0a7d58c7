"""The transport of `httpx2` whose requests and connections are checked."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from dataclasses import dataclass

import httpcore2
import httpx2

from common.network.address_rule import AllowedHosts, default_port
from common.network.backend import CheckedBackend, OpenBackends, Pace, Resolver
from common.network.errors import AddressRefusedError


@dataclass(frozen=True, slots=True)
class Origin:
    """Scheme, host in lower case, and port of a URL. Decides who may be asked, and who is sent a token."""

    scheme: str
    host: str
    port: int


def origin_of(url: httpx2.URL) -> Origin:
    """Return the origin of a URL; port 0 for a scheme that has no default."""
    return Origin(url.scheme, url.host.lower(), url.port or default_port(url.scheme))


class CheckedTransport(httpx2.HTTPTransport):
    """Transport of `httpx2` that checks the origin of every request, and the addresses of every host that it connects
    to, by a `CheckedBackend`. No proxy is asked."""

    def __init__(
        self,
        allowed: AllowedHosts,
        find_origin_refusal: Callable[[Origin], str | None],
        *,
        tls: ssl.SSLContext,
        resolver: Resolver,
        open_backends: OpenBackends,
        pace: Pace | None = None,
    ) -> None:
        """`allowed`: hosts whose addresses may be anywhere. `find_origin_refusal` returns why an origin must not be
        asked; None: it may be. `tls`: certificates that are trusted. `open_backends`: what ends the connections.
        `pace`: how slow a peer may be; None: the default."""
        super().__init__(verify=tls, trust_env=False)
        self._find_origin_refusal = find_origin_refusal
        self.backend = CheckedBackend(allowed, resolver, pace)
        open_backends.add(self.backend)
        self._pool = httpcore2.ConnectionPool(ssl_context=tls, network_backend=self.backend, max_connections=64)

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send one request and return the answer, whose body is still to be read. Blocks. Raises AddressRefusedError
        where the origin or an address of its host is refused, InterruptedConnectionError where the backend was
        interrupted, and httpx2.TransportError where the request fails in another way."""
        origin = origin_of(request.url)
        refusal = self._find_origin_refusal(origin)
        if refusal is not None:
            raise AddressRefusedError(f"{origin.host} must not be connected to: {refusal}")
        return super().handle_request(request)
