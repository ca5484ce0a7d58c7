"""Which Host headers are accepted: with keys any well-formed one, without keys those that name this machine.

Otherwise a web page in a browser on this machine could use a gateway without keys, from its own origin, or under a name
of its own that it resolves to 127.0.0.1 (DNS rebinding).
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Sequence

from controller.schema.errors import RoundhouseError
from gateway.ingress.cors import Cors
from gateway.server.asgi import Header

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
    return text[0] == ":" and text[1:].isascii() and text[1:].isdigit()


def _is_address(name: str) -> bool:
    address, percent, zone = name.partition("%")
    try:
        ipaddress.ip_address(address)
    except ValueError:
        return False
    return not percent or (":" in address and _ZONE.fullmatch(zone) is not None)
