"""Read an endpoint's URL and token into an address to connect to and the head of requests. Pure."""

from __future__ import annotations

import re
from typing import NamedTuple

from contract.hosts import EngineTls
from contract.routing import Endpoint

_BASE_URL = re.compile(
    r"(?P<scheme>https?)://(?P<host>\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::(?P<port>[0-9]{1,5}))?(?P<path>/[!-~]*)?",
    re.IGNORECASE | re.ASCII,
)
_PATH = re.compile(r"/[!-~]*", re.ASCII)
_TOKEN = re.compile(r"[!-~]+(?: [!-~]+)*", re.ASCII)
_METHOD = re.compile(r"[A-Z]+", re.ASCII)

_OWN_HEADERS = (
    b"content-type: application/json\r\n"
    b"accept: */*\r\n"
    b"accept-encoding: identity\r\n"  # the usage is read from the answer
    b"user-agent: roundhouse\r\n"
)


class Address(NamedTuple):
    """Address to open connections to. Endpoints with equal addresses share idle connections, also with other tokens."""

    tls: bool
    host: str
    """Name or IP address in lower case; IPv6 without brackets."""
    port: int
    through: EngineTls | None = None
    """How the host's relay at this address is opened; None: no relay is there."""


class Target(NamedTuple):
    """The parsed base URL and token of an endpoint, as `head_of` needs them. It holds the secret token."""

    address: Address
    base_path: str
    """Path of the base URL, which precedes every request's path; empty or with a leading slash."""
    host_header: bytes
    """Value of the Host header; with the port only if it is not the scheme's own."""
    authorization: bytes
    """A header line with CRLF; empty without a token."""
    api_prefix: str
    """Replaces `/v1` in paths; see `Endpoint.api_prefix`."""


def target_of(endpoint: Endpoint) -> Target:
    """Parse an endpoint's base URL and token. No name is resolved. An empty token counts as none.

    Raises:
        ValueError: the base URL is not http or https, has a user name, query or fragment, or a port outside of 1 to
            65535; or the token has characters that a header cannot hold. The text quotes neither.
    """
    url = endpoint.base_url
    match = _BASE_URL.fullmatch(url)
    if match is None or "?" in url or "#" in url:
        raise ValueError("its base_url is not of the form http://host:port or https://host:port/path")
    tls = match["scheme"].lower() == "https"
    default_port = 443 if tls else 80
    port = int(match["port"] or default_port)
    if not 0 < port < 65536:
        raise ValueError("the port in its base_url is not between 1 and 65535")
    host = match["host"]
    return Target(
        address=Address(tls, host.strip("[]").lower(), port, endpoint.tls),
        base_path=match["path"] or "",
        host_header=(host if port == default_port else f"{host}:{port}").encode(),
        authorization=_authorization(endpoint),
        api_prefix=endpoint.api_prefix,
    )


def head_of(target: Target, method: str, path: str) -> bytes:
    """Return the head of a request: the request line and the headers that every request has, each line with CRLF.

    The caller appends `content-length` where there is a body, the request's own headers and the empty line. `path`:
    path and query in the gateway's API. A leading `/v1/` becomes the endpoint's `api_prefix` and `/`, because a
    remote's base URL may contain it.

    Raises:
        ValueError: `method` is not of upper-case ASCII letters, or `path`, behind the path of the base URL, does not
            begin with `/`, or has a space, a `#`, a control character or one outside of ASCII.
    """
    api_path = target.api_prefix + path[len("/v1") :] if path.startswith("/v1/") else path
    full_path = target.base_path + api_path
    if _METHOD.fullmatch(method) is None or _PATH.fullmatch(full_path) is None or "#" in full_path:
        raise ValueError("a request's method or path holds characters that it must not")
    return b"%b %b HTTP/1.1\r\nhost: %b\r\n%b%b" % (
        method.encode(),
        full_path.encode(),
        target.host_header,
        target.authorization,
        _OWN_HEADERS,
    )


def _authorization(endpoint: Endpoint) -> bytes:
    token = "" if endpoint.token is None else endpoint.token.get_secret_value()
    if not token:
        return b""
    if _TOKEN.fullmatch(token) is None:
        raise ValueError("its token holds characters that a header cannot")
    return b"authorization: Bearer %b\r\n" % token.encode()
