"""Reads the metrics of all engines at once, so that Prometheus needs one target, and no way to the engines."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Final

import aiohttp

from common.host_tls import HostContexts
from common.network.answers import UnreadableAnswerError, gather_whole
from contract.routing import Endpoint
from gateway.metrics.engine_exposition import EnginePage, merge_pages
from gateway.routing.table import LiveRoutes

TIMEOUT_S: Final = 2.0
"""Seconds that one engine may take. Prometheus gives a target 10 s."""
AT_ONCE: Final = 64
"""Engines that are read at a time."""
MAX_BYTES: Final = 1024 * 1024
"""Bytes of one engine's page; of a longer one nothing is used."""
FRESH_S: Final = 5.0
"""Seconds for which a page is given again to whoever asks, so that nobody makes work for engines by asking."""


class EngineScraper:
    """Reads the `/metrics` of the engines in the routing table when it is asked, and merges them into one page. Use it
    as `async with`, in one event loop."""

    def __init__(self, live: LiveRoutes, now: Callable[[], float], timeout_s: float = TIMEOUT_S) -> None:
        """`now`: monotonic seconds. `timeout_s`: seconds that one engine may take."""
        self._live = live
        self._now = now
        self._timeout_s = timeout_s
        self._session: aiohttp.ClientSession
        self._page = ""
        self._read_at: float | None = None
        self._reading = asyncio.Lock()
        self._contexts = HostContexts()

    async def __aenter__(self) -> EngineScraper:
        # Not in __init__: aiohttp's sessions belong to a running event loop.
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=AT_ONCE),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"User-Agent": "roundhouse", "Accept": "text/plain"},
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._session.close()

    async def read_engines(self) -> str:
        """Return the metrics of all replicas that take requests, in Prometheus' text format, `FRESH_S` (5) seconds old
        at most; empty if there are none.

        An engine that fails or takes too long has only `roundhouse_engine_up` 0 and its seconds; nothing is raised.
        Callers at the same time share one reading. Remote models are not asked.
        """
        async with self._reading:
            if self._read_at is None or self._now() - self._read_at > FRESH_S:
                routes = self._live.current_or_none
                engines = [
                    (route.name, endpoint)
                    for route in (routes.models.values() if routes is not None else ())
                    for endpoint in route.endpoints
                    if not endpoint.remote
                ]
                limit = asyncio.Semaphore(AT_ONCE)
                pages = await asyncio.gather(*(self._read_engine(limit, *engine) for engine in engines))
                # Some hundred engines are some 10 ms of work, which must not hold up streams.
                self._page = await asyncio.to_thread(merge_pages, pages)
                self._read_at = self._now()
            return self._page

    async def _read_engine(self, limit: asyncio.Semaphore, model: str, endpoint: Endpoint) -> EnginePage:
        async with limit:
            began_at = self._now()
            try:
                text = await self._fetch(endpoint)
            except (aiohttp.ClientError, OSError, TimeoutError, ValueError, UnreadableAnswerError):
                text = None
            return EnginePage(model, endpoint.replica, text, self._now() - began_at)

    async def _fetch(self, endpoint: Endpoint) -> str | None:
        headers = {} if endpoint.token is None else {"Authorization": f"Bearer {endpoint.token.get_secret_value()}"}
        timeout = aiohttp.ClientTimeout(total=self._timeout_s)
        url, tls = f"{endpoint.base_url}/metrics", self._contexts.list_options(endpoint.tls)
        async with self._session.get(url, headers=headers, timeout=timeout, allow_redirects=False, **tls) as answer:
            if answer.status != 200:
                return None
            body = await gather_whole(answer.content.iter_any(), most_bytes=MAX_BYTES)
            return body.decode("utf-8", "replace")
