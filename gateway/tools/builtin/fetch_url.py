"""`fetch_url`: the text of a page of an allowed host."""

from __future__ import annotations

import asyncio
import codecs
import re
import ssl
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from gateway.tools.builtin.page_hosts import PageHosts
from gateway.tools.files.job_runner import JobRunner
from gateway.tools.files.sliced_decoding import decode_text
from gateway.tools.spec import ToolCall, ToolResult, ToolSpec

if TYPE_CHECKING:
    from common.network.backend import Resolver
    from gateway.tools.builtin.page_fetcher import Page

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

        Blocks, until `ending` is interrupted: `timeout_s` bounds each single wait, not the whole.
        """
        from gateway.tools.builtin.page_fetcher import PageProblem, fetch_page, make_tls, open_transport

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
    """Fetches pages in threads. What the page says is read in a process of its own, where it is HTML."""

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
