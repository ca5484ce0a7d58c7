"""The one HTTP client of downloads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

import httpcore2
import httpx2

from transfers.network.address_rule import AllowedHosts, default_port, find_scheme_refusal
from transfers.network.backend import CheckedBackend, Resolver, resolve_addresses
from transfers.network.errors import AddressRefusedError

MOST_REDIRECTS: Final = 8
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
USER_AGENT: Final = "roundhouse-transfers"


@dataclass(frozen=True, slots=True)
class Origin:
    """Scheme, host in lower case, and port: who gets to see a token."""

    scheme: str
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class NetworkOptions:
    """How sources are connected to."""

    allowed: AllowedHosts = field(default_factory=AllowedHosts)
    connect_timeout_s: float = 10.0
    read_timeout_s: float = 30.0
    """Seconds without a byte after which a connection is given up."""
    resolver: Resolver = resolve_addresses
    tokens: Mapping[Origin, Callable[[], str | None]] | None = None
    """Bearer token by origin, read for each request; a token that is None is left out. No other origin gets it."""


class CheckedTransport(httpx2.HTTPTransport):
    """Transport that checks the scheme of every request, and the address of every connection. No proxy is asked."""

    def __init__(self, options: NetworkOptions) -> None:
        super().__init__(trust_env=False)
        self._allowed = options.allowed
        self.backend = CheckedBackend(options.allowed, options.resolver)
        self._pool = httpcore2.ConnectionPool(
            ssl_context=httpx2.create_ssl_context(), network_backend=self.backend, max_connections=64
        )

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send one request. Raises AddressRefusedError, or an error of `httpx2`."""
        origin = origin_of(request.url)
        refusal = find_scheme_refusal(origin.scheme, origin.host, origin.port, self._allowed)
        if refusal is not None:
            raise AddressRefusedError(f"{origin.host} must not be connected to: {refusal}")
        return super().handle_request(request)


class SourceClient:
    """HTTP client whose redirects are followed by hand: each hop is checked, and a token goes to its origin alone.
    Safe for threads. Close it."""

    def __init__(self, options: NetworkOptions) -> None:
        self._options = options
        self._transport = CheckedTransport(options)
        timeout = httpx2.Timeout(options.read_timeout_s, connect=options.connect_timeout_s)
        self._client = httpx2.Client(
            transport=self._transport,
            timeout=timeout,
            trust_env=False,
            follow_redirects=False,
            headers={"user-agent": USER_AGENT, "accept-encoding": "identity"},
        )

    def interrupt(self) -> None:
        """End all requests that are under way, and those to come, with an error. May be called from any thread."""
        self._transport.backend.interrupt()

    def close(self) -> None:
        """End all connections. No request may be under way."""
        self._client.close()

    @contextmanager
    def open(self, url: str, headers: Mapping[str, str]) -> Iterator[tuple[httpx2.Response, list[httpx2.Response]]]:
        """Send `GET`, and yield the answer after the redirects, unread, and the redirects before it.

        Raises:
            AddressRefusedError: the host, or one that is redirected to, must not be connected to.
            InterruptedConnectionError: `interrupt` was called.
            httpx2.HTTPError: the connection failed, or there are too many redirects.
            httpx2.InvalidURL: a redirect names no URL.
        """
        hops: list[httpx2.Response] = []
        target = httpx2.URL(url)
        while True:
            request = self._client.build_request("GET", target, headers={**headers, **self._credentials(target)})
            response = self._client.send(request, stream=True)
            try:
                location = response.headers.get("location")
                if response.status_code not in _REDIRECTS or location is None:
                    yield response, hops
                    return
            finally:
                response.close()
            hops.append(response)
            if len(hops) > MOST_REDIRECTS:
                raise httpx2.TooManyRedirects(f"more than {MOST_REDIRECTS} redirects", request=request)
            following = target.join(location)
            if target.scheme == "https" and following.scheme != "https":
                raise AddressRefusedError(f"{target.host} redirects to {following.scheme}, which is not encrypted")
            target = following

    def _credentials(self, url: httpx2.URL) -> dict[str, str]:
        read_token = (self._options.tokens or {}).get(origin_of(url))
        token = None if read_token is None else read_token()
        return {} if token is None else {"authorization": f"Bearer {token}"}


def origin_of(url: httpx2.URL) -> Origin:
    """Return the origin of a URL; port 0 for a scheme that has no default."""
    return Origin(url.scheme, url.host.lower(), url.port or default_port(url.scheme))
