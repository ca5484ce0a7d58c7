"""Fetches one page, within bounds of bytes, redirects and time. It blocks, and belongs into a thread."""

from __future__ import annotations

import ssl
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import httpx2

from common.network.backend import OpenBackends, Resolver, resolve_addresses
from common.network.errors import AddressRefusedError, InterruptedConnectionError
from common.network.transport import CheckedTransport, Origin
from gateway.tools.builtin.page_hosts import PageHosts

MOST_REDIRECTS: Final = 5
LARGEST_PAGE: Final = 4 * 1024 * 1024
"""Bytes of a page that are read, before and after it is decompressed."""
CONNECT_S: Final = 10.0
USER_AGENT: Final = "roundhouse-fetch"
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_WINDOWS: Final = {"gzip": 16 + zlib.MAX_WBITS, "x-gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
"""Window size for zlib, by content encoding."""
_HEADERS: Final = {
    "user-agent": USER_AGENT,
    "accept": "text/html, text/plain, application/json, */*;q=0.5",
    "accept-encoding": "identity",
}


class PageProblem(Exception):  # noqa: N818 - it is a problem of the page, which is told to the model
    """There is no page to read. The text says why, in words for the model that asked."""


@dataclass(frozen=True, slots=True)
class Page:
    """What a server answered."""

    url: str
    """After the redirects."""
    status: int
    reason: str
    """The server's words for the status; may be empty."""
    media_type: str
    """In lower case; empty: the server did not say."""
    charset: str | None
    """As the server names it, which may be no encoding; None: it names none."""
    body: bytes
    """Decompressed."""
    is_cut: bool
    """Whether there is more than `LARGEST_PAGE`."""


def make_tls() -> ssl.SSLContext:
    """Return a context that trusts the certificates of `httpx2`. Reads files, which takes long: call it once, in a
    thread."""
    return httpx2.create_ssl_context()


def open_transport(hosts: PageHosts, tls: ssl.SSLContext, resolver: Resolver | None) -> CheckedTransport:
    """Return a transport for one call of `fetch_page`, which connects to the declared hosts alone, and to private
    addresses only where `hosts` names the host in full. `resolver` finds the addresses of a host; None: the system's.
    Its requests raise AddressRefusedError for others."""

    def find_refusal(origin: Origin) -> str | None:
        return hosts.find_refusal(origin.scheme, origin.host, origin.port)

    return CheckedTransport(
        hosts.literal,
        find_refusal,
        tls=tls,
        resolver=resolve_addresses if resolver is None else resolver,
        open_backends=OpenBackends(),
    )


def fetch_page(transport: CheckedTransport, url: str, timeout_s: float) -> Page:
    """Ask for a page by GET, and follow up to `MOST_REDIRECTS` redirects; `transport` checks each as the first one.
    Blocks, and closes `transport` at the end.

    At most `LARGEST_PAGE` bytes are read. A page with a status of an error is returned, too. `timeout_s`: seconds of
    each single wait, not of the whole; a connection gets `CONNECT_S` at most.

    Raises:
        PageProblem: the address is no URL, or one that must not be connected to; the connection failed or was
            interrupted; there are too many redirects, or one leaves encryption; the page is compressed in an unknown
            way.
    """
    try:
        return _fetch_page(transport, url, timeout_s)
    except AddressRefusedError as error:
        raise PageProblem(f"{error}.") from None
    except (httpx2.HTTPError, httpx2.InvalidURL, InterruptedConnectionError) as error:
        raise PageProblem(f"The page cannot be read: {str(error) or type(error).__name__}.") from None


def _fetch_page(transport: CheckedTransport, url: str, timeout_s: float) -> Page:
    timeout = httpx2.Timeout(timeout_s, connect=min(CONNECT_S, timeout_s))
    target = read_url(url)
    with httpx2.Client(transport=transport, timeout=timeout, trust_env=False, headers=_HEADERS) as client:
        for _ in range(MOST_REDIRECTS + 1):
            with client.stream("GET", target, follow_redirects=False) as response:
                location = response.headers.get("location")
                if response.status_code not in _REDIRECTS or location is None:
                    return _read_page(response)
            client.cookies.clear()
            target = _follow(target, location)
    raise PageProblem(f"There are more than {MOST_REDIRECTS} redirects.")


def read_url(text: str) -> httpx2.URL:
    """Return the URL that a text names, without its fragment. Nothing is asked. Raises PageProblem: it is no address
    with `http` or `https` and a host, or holds a user or a password."""
    try:
        url = httpx2.URL(text)
    except httpx2.InvalidURL as error:
        raise PageProblem(f"This is no address of a page: {error}.") from None
    if url.scheme not in ("http", "https") or not url.host:
        raise PageProblem("This is no address of a page: it must begin with https:// or http:// and a host.")
    if url.userinfo:
        raise PageProblem("The address holds a user or a password, which are not sent.")
    return url.copy_with(fragment=None)


def _follow(url: httpx2.URL, location: str) -> httpx2.URL:
    try:
        target = read_url(str(url.join(location)))
    except httpx2.InvalidURL:
        raise PageProblem(f"{url.host} redirects to what is no address.") from None
    if url.scheme == "https" and target.scheme != "https":
        raise PageProblem(f"{url.host} redirects to {target.scheme}, which is not encrypted.")
    return target


def _read_page(response: httpx2.Response) -> Page:
    body, is_cut = _read_body(response)
    media_type, _, parameters = response.headers.get("content-type", "").partition(";")
    charset = parameters.partition("charset=")[2].partition(";")[0].strip().strip("\"'") or None
    return Page(
        str(response.url),
        response.status_code,
        response.reason_phrase,
        media_type.strip().lower(),
        charset,
        body,
        is_cut,
    )


def _read_body(response: httpx2.Response) -> tuple[bytes, bool]:
    """Return the body, decompressed, and whether it was cut. What is compressed is never decompressed further than the
    bound, so a small answer that would become a huge one costs no more than any other."""
    body = bytearray()
    for part in _decompress(response.iter_raw(64 * 1024), response.headers.get("content-encoding", "")):
        body += part
        if len(body) > LARGEST_PAGE:
            return bytes(body[:LARGEST_PAGE]), True
    return bytes(body), False


def _decompress(parts: Iterator[bytes], encoding: str) -> Iterator[bytes]:
    name = encoding.strip().lower()
    if name in ("", "identity"):
        yield from parts
        return
    if name not in _WINDOWS:
        raise PageProblem(f"The page is compressed as {name[:30]!r}, which was not asked for.")
    engine = zlib.decompressobj(_WINDOWS[name])
    try:
        for part in parts:
            data = part
            while data and not engine.eof:
                yield engine.decompress(data, 64 * 1024)
                data = engine.unconsumed_tail
    except zlib.error:
        raise PageProblem("The page is compressed in a way that cannot be read.") from None
