"""Which Host and Origin headers are accepted, with the CORS answers, and who may use routes of which scope. Pure.

Without the check of Host and Origin, a web page in a browser on this machine could use a gateway without keys, from its
own origin, or under a name of its own that it resolves to 127.0.0.1 (DNS rebinding). CORS answers are off unless the
operator names origins. All routes that need a scope are checked by `AdminGate`, whether FastAPI serves them or not.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection, Iterable, Sequence
from typing import Final

from contract.errors import RoundhouseError
from contract.keys import KeyScope
from gateway.server.asgi import Header
from gateway.tenancy.api_keys import Caller

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
            (b"access-control-allow-methods", b"GET, HEAD, POST, PUT, DELETE"),
            # Allow whatever the page asks for: SDKs send many headers of their own, and none of them grants access.
            (b"access-control-allow-headers", wanted_headers if _NAMES.fullmatch(wanted_headers) else _ALLOWED),
            (b"access-control-max-age", b"%d" % MAX_AGE_S),
        ]


def _header_value(headers: Sequence[Header], header_name: bytes) -> bytes | None:
    return next((value for name, value in headers if name == header_name), None)


_ZONE = re.compile(r"[A-Za-z0-9._~-]+")
"""Zone of an IPv6 address: the interface, after `%`. Python's `ipaddress` accepts nearly any text there."""
_AUTHORITY = re.compile(
    rb"(?:(?:[\w.~!$&'()*+,;=-]|%[0-9A-Fa-f]{2})+|\[(?P<address>[\w:.~%-]+)\])(?::[0-9]*)?", re.ASCII
)
"""A host with an optional port (RFC 3986, 3.2.2 and 3.2.3). Whether `address` is an IP address is checked apart."""
_REMEMBERED = 64
"""Maximum number of accepted Host headers that are remembered."""
_LONGEST_REMEMBERED = 300
"""Bytes of a Host header that is remembered; names with ports are shorter."""
_THIS_MACHINE = ("localhost", "127.0.0.1", "::1")


class HostCheck:
    """Decides which Host and Origin headers are accepted while no keys are declared.

    Accepted are loopback names of this machine, the addresses listened on, and names that the operator allows. An open
    gateway also accepts a Host that is an IP address: other machines reach it by its address, and DNS rebinding needs a
    name. Made once; `Authenticator` asks it for each request.
    """

    def __init__(self, hosts: Iterable[str], allowed_names: Iterable[str], *, is_open: bool) -> None:
        """`hosts`: addresses and names listened on. `allowed_names`: further names and addresses, in any case.
        `is_open`: accept any IP address as the Host."""
        self._names = frozenset({*_THIS_MACHINE, *(name.lower() for name in (*hosts, *allowed_names))})
        self._any_address = is_open
        self._accepted: set[bytes] = set()

    def check_request(self, headers: Sequence[Header], cors: Cors) -> None:
        """Check the Host and Origin headers of a request, and return if they are accepted.

        An Origin is accepted if `cors` allows it, if it is http(s) and names the same host and port as the Host header,
        or if it is http(s) and names this machine, a name listened on or an allowed name, at any port. Requests without
        Origin are accepted. `headers`: with names in lower case.

        Raises:
            RoundhouseError: `forbidden_host` if the Host header is not accepted, is missing or comes twice;
                `forbidden_origin` if an Origin header is not accepted.
        """
        hosts = [value for name, value in headers if name == b"host"]
        host = hosts[0] if len(hosts) == 1 else b""
        if host not in self._accepted:
            self._check_host(host)
        for name, value in headers:
            if name == b"origin" and not (cors.is_on and cors.allows_origin(value)):
                self._check_origin(value.decode("latin-1").lower(), host.decode("latin-1").lower())

    def _check_host(self, host_header: bytes) -> None:
        host = host_header.decode("latin-1").lower()
        if not self._is_ours(host):
            problem = f"is {host!r:.100}" if host else "is missing, or there are several"
            raise RoundhouseError("forbidden_host", f"The Host header {problem}; this gateway does not go by it.")
        if len(self._accepted) < _REMEMBERED and len(host_header) <= _LONGEST_REMEMBERED:
            self._accepted.add(host_header)

    def _check_origin(self, origin: str, host: str) -> None:
        scheme, separator, authority = origin.partition("://")
        is_page = separator and scheme in ("http", "https")
        if not is_page or not (authority == host or hostname_of(authority) in self._names):
            raise RoundhouseError("forbidden_origin", f"Pages of the origin {origin!r:.100} may not use this gateway.")

    def _is_ours(self, host: str) -> bool:
        name = hostname_of(host)
        return name in self._names or (self._any_address and _is_address(name))


def check_host_form(headers: Sequence[Header], *, may_lack_host: bool) -> None:
    """Check that a request has one well-formed Host header (RFC 9112, 3.2); any host will do.

    `may_lack_host`: the header may be absent, as in HTTP/1.0.

    Raises:
        RoundhouseError: `invalid_request` if the header is malformed, comes twice, or is missing although
            `may_lack_host` is False.
    """
    hosts = [value for name, value in headers if name == b"host"]
    if len(hosts) == 1:
        if not _is_authority(hosts[0]):
            text = hosts[0].decode("latin-1")
            raise RoundhouseError("invalid_request", f"The Host header is {text!r:.100}, which names no host.")
    elif hosts:
        raise RoundhouseError("invalid_request", "The request has several Host headers.")
    elif not may_lack_host:
        raise RoundhouseError("invalid_request", "The request has no Host header, and HTTP/1.1 demands one.")


def _is_authority(value: bytes) -> bool:
    match = _AUTHORITY.fullmatch(value)
    if match is None or match["address"] is None:
        return match is not None
    address = match["address"].decode()
    return ":" in address and _is_address(address)


def hostname_of(authority: str) -> str:
    """Return the name or address in `name`, `name:port`, `[address]` or `[address]:port`, without brackets.

    Empty if `authority` is none of these, or the name in it is empty. Whether the name is well-formed is not checked,
    and its case is kept.
    """
    if authority.startswith("["):
        name, bracket, port_part = authority[1:].partition("]")
        return name if bracket and (not port_part or _is_port(port_part)) else ""
    name, colon, port = authority.partition(":")
    return name if not colon or _is_port(colon + port) else ""


def _is_port(text: str) -> bool:
    return text == ":" or (text[0] == ":" and text[1:].isascii() and text[1:].isdigit())  # RFC 3986: may be empty


def _is_address(name: str) -> bool:
    address, percent, zone = name.partition("%")
    try:
        ipaddress.ip_address(address)
    except ValueError:
        return False
    return not percent or (":" in address and _ZONE.fullmatch(zone) is not None)


IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address


class AdminGate:
    """Checks the scope of authenticated callers, and at which local addresses admin requests may arrive.

    Made once from the settings; holds no state of requests.
    """

    def __init__(self, addresses: Collection[str] | None, *, is_open: bool) -> None:
        """`addresses`: local IP addresses at which admin requests are accepted; None: at any; empty: at none.

        Texts that are no IP address are ignored. `is_open`: whether admin requests without a key are accepted while no
        keys are declared.
        """
        self._addresses = None if addresses is None else {*map(parse_address, addresses)} - {None}
        self._is_open = is_open

    def allows_admin(self, caller: Caller, local_address: str | None) -> bool:
        """Return whether `caller` may use admin routes on a connection to `local_address`.

        `local_address`: the gateway's own IP address; None: the connection has none.
        """
        try:
            self.authorize_request(caller, "admin", local_address)
        except RoundhouseError:
            return False
        return True

    def authorize_request(self, caller: Caller, scope: KeyScope, local_address: str | None) -> None:
        """Check that `caller` may use a route of `scope`.

        `local_address`: the gateway's IP address on the request's connection; None: it has none.

        Raises:
            RoundhouseError: `scope_required` if the caller's key lacks the scope; for the scope `admin` also
                `admin_closed` if the caller has no key and `is_open` is False, or `admin_not_here` if requests at this
                local address are not accepted.
        """
        caller.require_scope(scope)
        if scope != "admin":
            return
        if caller.name is None and not self._is_open:
            raise RoundhouseError("admin_closed", "No keys are declared, and without keys nobody may administer here.")
        address = None if local_address is None else parse_address(local_address)
        if self._addresses is not None and address not in self._addresses:
            message = "The gateway takes no admin requests at the address at which this one arrived."
            raise RoundhouseError("admin_not_here", message)


def parse_address(text: str) -> IpAddress | None:
    """Return the IP address that `text` is; None if it is no IP address.

    IPv4-mapped IPv6 addresses (`::ffff:1.2.3.4`) become IPv4.
    """
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    mapped_address = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped_address or address


def refusal_headers(error: RoundhouseError) -> list[Header]:
    """Return the header `www-authenticate` for the error `invalid_api_key`; empty for other errors."""
    return [(b"www-authenticate", b"Bearer")] if error.entry.code == "invalid_api_key" else []
