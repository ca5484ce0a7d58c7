"""`fetch_url`: the text of a page of an allowed host, fetched in a thread, with bounds of bytes, redirects, time."""

from __future__ import annotations

import asyncio
import codecs
import re
import ssl
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import httpx2

from assistant.tools.files.job_runner import JobRunner, decode_text
from assistant.tools.spec import ToolCall, ToolResult, ToolSpec
from common.network.address_rule import AllowedHosts, default_port, parse_allowed_hosts
from common.network.transport import (
    AddressRefusedError,
    CheckedTransport,
    InterruptedConnectionError,
    OpenBackends,
    Origin,
    Resolver,
    resolve_addresses,
)

if TYPE_CHECKING:
    from common.network.transport import Resolver


_USUAL_PORTS = frozenset({80, 443})


class PageHosts:
    """The declared hosts. A host without a port stands for the ports 80 and 443; `*.example.org` for the hosts below
    example.org. Immutable."""

    def __init__(self, hosts: Iterable[str]) -> None:
        """`hosts`: in lower case. Raises ValueError: an entry is no host."""
        declared = tuple(hosts)
        self._parents = tuple(each[1:] for each in declared if each.startswith("*."))
        self.literal: AllowedHosts = parse_allowed_hosts(",".join(each for each in declared if "*" not in each))
        """Hosts that are declared by their whole names: their addresses may be private."""

    def find_refusal(self, scheme: str, host: str, port: int) -> str | None:
        """Return why a URL must not be asked, as a clause without a full stop; None: it may be. Its address is not
        looked at. `host`: in lower case."""
        if not default_port(scheme):
            return f"{scheme}: is not a scheme of pages"
        name = host.rstrip(".")
        if (name, port) in self.literal.hosts:
            return None
        if (name, None) not in self.literal.hosts and not any(name.endswith(parent) for parent in self._parents):
            return "the host is not among those that are allowed"
        return None if port in _USUAL_PORTS else f"port {port} is not among those that are allowed"


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
    """What a server answered: final address, status, media type, and at most `LARGEST_PAGE` bytes of the body."""

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
    charset = parameters.lower().partition("charset=")[2].partition(";")[0].strip().strip("\"'") or None
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


AT_ONCE: Final = 8
"""Pages that are fetched at the same time; further calls wait, within their own time."""
LONGEST_URL: Final = 2000
_TEXTS: Final = re.compile(r"text/.+|application/(.+\+)?(json|xml|yaml|javascript|x-yaml|x-ndjson|toml)|")
"""Media types of texts; the empty one is of servers that do not say."""
_PAGES: Final = frozenset({"text/html", "application/xhtml+xml"})
_CHARSETS: Final = re.compile(
    r"ascii|utf-(8|16|16-le|16-be)|(iso8859|iso2022|cp125|koi8|mac|euc)[\w-]*|cp(866|874|932|949)|shift_jis|gb\w+|big5\w*"
)
"""Python's names of the encodings of the web (WHATWG), and of some more."""
_META_CHARSET: Final = re.compile(rb"""<meta[^>]{0,200}charset\s*=\s*["']?\s*([\w.:-]{1,40})""", re.IGNORECASE)

SPEC: Final = ToolSpec(
    name="fetch_url",
    display_name="Fetch URL",
    description="Reads a web page or a text file from a URL. Only some hosts are allowed.",
    parameters={
        "type": "object",
        "properties": {
            "url": {
                "type": "string",
                "minLength": 8,
                "maxLength": LONGEST_URL,
                "description": "Address that begins with https:// or http://.",
            }
        },
        "required": ["url"],
        "additionalProperties": False,
    },
    writes=False,
    server=None,
)


@dataclass(slots=True)
class PageNetwork:
    """How pages are connected to. One serves all calls of a gateway.

    `httpx2` is imported, and the certificates are read, when the first page is fetched, in a thread.
    """

    resolver: Resolver | None = None
    """None: the system's."""
    tls: ssl.SSLContext | None = None
    """Certificates that are trusted; None: those of `httpx2`."""
    threads: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(AT_ONCE, "fetch"))
    """Where `fetch` is to be called."""

    def fetch(self, hosts: PageHosts, url: str, timeout_s: float, ending: FetchEnding) -> Page | ToolResult:
        """Fetch a page, or return a result with `is_error` that says why there is none. An answer with a status of an
        error is a page.

        Blocks: call it in `threads`. `timeout_s` bounds each single wait, in seconds; only `ending` ends the whole.
        """

        if self.tls is None:
            self.tls = make_tls()
        transport = open_transport(hosts, self.tls, self.resolver)
        ending.follow(transport.backend.interrupt)
        try:
            return fetch_page(transport, url, timeout_s)
        except PageProblem as problem:
            return ToolResult(str(problem), is_error=True)


class FetchEnding:
    """Ends the connections of one call from another thread. Safe for threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._interrupt: Callable[[], None] | None = None
        self._is_interrupted = False

    def follow(self, interrupt: Callable[[], None]) -> None:
        """Have `interrupt` called when the call ends; at once, in this thread, if it has ended. Call once."""
        with self._lock:
            self._interrupt = interrupt
            is_late = self._is_interrupted
        if is_late:
            interrupt()

    def interrupt(self) -> None:
        """End the connections, now or as soon as there are any, by calling what `follow` was given. May be called
        again, also after the page was fetched."""
        with self._lock:
            self._is_interrupted = True
            interrupt = self._interrupt
        if interrupt is not None:
            interrupt()


class FetchUrl:
    """The tool `fetch_url`. It fetches pages in threads, and reads the text of HTML in a process of its own."""

    spec = SPEC

    def __init__(self, hosts: Iterable[str], network: PageNetwork, jobs: JobRunner) -> None:
        """`hosts`: as declared. Raises ValueError: an entry is no host."""
        self._hosts = PageHosts(hosts)
        self._network = network
        self._jobs = jobs

    async def run(self, call: ToolCall) -> ToolResult:
        """Return the page's address, after redirects, and its text, with a last line where the page is longer than what
        was read. A result with `is_error` says why there is none: also a status other than 2xx, or what is no text.

        Cancelling ends the call's connections.

        Raises:
            RoundhouseError: `tool_failed`: the process that reads HTML ended at its limits, or does not start.
        """
        page = await self._fetch(call)
        if isinstance(page, ToolResult):
            return page
        if not 200 <= page.status < 300:
            return ToolResult(f"The server answers {page.status} {page.reason}".rstrip() + ".", is_error=True)
        if not _TEXTS.fullmatch(page.media_type) or b"\0" in page.body[:1024]:
            return ToolResult(f"{page.url} is no text, but {page.media_type or 'binary'}.", is_error=True)
        charset = _find_charset(page)
        if page.media_type in _PAGES:
            read = await self._jobs.run_job(call, "html_text", {"charset": charset}, data=page.body)
            if read.is_error:
                return read
            text = read.text
        else:
            text = await decode_text(page.body, charset)
        end = "\n[The page is longer, and only its beginning was read.]" if page.is_cut else ""
        return ToolResult(f"{page.url}\n\n{text}{end}")

    async def _fetch(self, call: ToolCall) -> Page | ToolResult:
        ending = FetchEnding()
        url = call.arguments["url"]
        try:
            return await asyncio.get_running_loop().run_in_executor(
                self._network.threads, self._network.fetch, self._hosts, url, call.timeout_s, ending
            )
        finally:
            ending.interrupt()


def _find_charset(page: Page) -> str:
    """Return Python's name of the page's encoding: what the server or the page says, if it is one of pages."""
    declared = _META_CHARSET.search(page.body[:2048]) if page.media_type in _PAGES else None
    for name in (page.charset, None if declared is None else declared[1].decode("ascii")):
        if name is not None and _is_charset(name):
            return name
    return "utf-8"


def _is_charset(name: str) -> bool:
    """Whether it names an encoding that pages are in: Python has others, such as one that decompresses."""
    try:
        return _CHARSETS.fullmatch(codecs.lookup(name).name) is not None
    except (LookupError, ValueError):
        return False
