"""The engine's side of the hot path: an HTTP/1.1 client by callbacks.

A request on a kept connection costs one write and what its answer's reads cost; a task exists only while a connection
comes about. No proxies of the environment, no cookies, no redirects, no decompression.
"""

from __future__ import annotations

import asyncio
import logging
import ssl

from controller.schema.routing import Endpoint
from gateway.upstream.connection import (
    EngineBrokenError,
    EngineCall,
    EngineConnection,
    EngineDiedError,
    EngineFailureError,
    EngineGarbledError,
    EngineListener,
    EngineRefusedError,
    Headers,
    RequestBody,
)
from gateway.upstream.pool import ConnectionPool, Origin
from gateway.upstream.target import Target, head_of, target_of

__all__ = [
    "EngineBrokenError",
    "EngineCall",
    "EngineClient",
    "EngineDiedError",
    "EngineFailureError",
    "EngineGarbledError",
    "EngineListener",
    "EngineRefusedError",
    "Headers",
    "RequestBody",
]

logger = logging.getLogger(__name__)

_MAX_ROUTES = 1024
_MAX_HEADS = 64
_LONGEST_KEPT_PATH = 64
"""Characters. Longer paths, and queries, hold what a client wrote, and do not come again."""
_NEED_NO_BODY = ("GET", "DELETE")


class _EngineRoute:
    """What is known of an endpoint: made once, then looked up by the endpoint's identity."""

    __slots__ = ("endpoint", "heads", "origin", "target")

    def __init__(self, endpoint: Endpoint, target: Target, origin: Origin[EngineConnection]) -> None:
        self.endpoint = endpoint
        self.target = target
        self.origin = origin
        self.heads: dict[tuple[str, str], bytes] = {}


class EngineClient:
    """Connections to engines, kept open between requests. Belongs to one event loop."""

    def __init__(
        self,
        connect_timeout_s: float,
        *,
        ssl_context: ssl.SSLContext | None = None,
        pool: ConnectionPool[EngineConnection] | None = None,
    ) -> None:
        """`connect_timeout_s` covers name, TCP and TLS. Without `ssl_context`, the system's authorities are trusted."""
        self._connect_timeout_s = connect_timeout_s
        self._ssl_context = ssl_context
        self._pool: ConnectionPool[EngineConnection] = pool or ConnectionPool()
        self._routes: dict[int, _EngineRoute] = {}
        self._connect_tasks: dict[asyncio.Task[None], Origin[EngineConnection]] = {}
        """Each opens a connection to its origin."""
        self._is_closed = False

    @property
    def open_connections(self) -> int:
        """Connections, idle or in use."""
        return self._pool.open_count

    @property
    def idle_connections(self) -> int:
        """Connections that wait for a request."""
        return self._pool.idle_count

    @property
    def busy_connections(self) -> int:
        """Connections that carry a request."""
        return self._pool.open_count - self._pool.idle_count

    @property
    def connecting_requests(self) -> int:
        """Requests whose connection is coming about."""
        return len(self._connect_tasks)

    def send_request(
        self,
        endpoint: Endpoint,
        method: str,
        path: str,
        headers: bytes,
        body: RequestBody,
        listener: EngineListener,
        *,
        fresh: bool,
    ) -> EngineCall:
        """Send a request; what becomes of it, the listener is told later. `fresh` opens a connection of its own.

        `path` is one of our own API. `headers` are whole lines, each with its line break, without those that every
        request has (host, authorization, content-type, content-length, accept, accept-encoding, user-agent). They go
        out as they are: foreign values must be checked before.

        Raises:
            ValueError: `method` or `path` could not stand in a request line.
        """
        call = EngineCall(listener)
        route = self._routes.get(id(endpoint))
        if route is None or route.endpoint is not endpoint:
            try:
                route = self._add_route(endpoint)
            except ValueError as error:
                asyncio.get_running_loop().call_soon(call.fail_call, EngineRefusedError(str(error)), None)
                return call
        head = route.heads.get((method, path)) or _head(route, method, path)
        if body or method not in _NEED_NO_BODY:
            size = len(body) if isinstance(body, bytes) else sum(map(len, body))
            head = b"%bcontent-length: %d\r\n%b\r\n" % (head, size, headers)
        else:
            head = b"%b%b\r\n" % (head, headers)
        idle_connections = route.origin.idle_connections
        if idle_connections and not fresh:
            idle_connections.pop().send_request(call, head, body)
        else:
            self._start_connecting(call, route.origin, head, body)
        return call

    async def close(self) -> None:
        """Cancel every request, and wait until every connection is closed. What is sent from now on is refused."""
        self._is_closed = True
        tasks = list(self._connect_tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await self._pool.close()

    def _start_connecting(
        self, call: EngineCall, origin: Origin[EngineConnection], head: bytes, body: RequestBody
    ) -> None:
        loop = asyncio.get_running_loop()
        if self._is_closed:
            loop.call_soon(call.fail_call, EngineRefusedError("the gateway is stopping"), None)
            return
        call.connect_task = task = loop.create_task(self._connect_and_send(call, origin, head, body))
        self._connect_tasks[task] = origin
        task.add_done_callback(self._connect_tasks.pop)

    async def _connect_and_send(
        self, call: EngineCall, origin: Origin[EngineConnection], head: bytes, body: RequestBody
    ) -> None:
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                connection = await self._open_connection(origin)
        except TimeoutError as error:
            call.fail_call(EngineRefusedError(f"it accepted no connection within {self._connect_timeout_s:g} s"), error)
        except ssl.SSLError as error:
            call.fail_call(EngineRefusedError("its TLS certificate or handshake was not accepted"), error)
        except (OSError, UnicodeError) as error:
            call.fail_call(EngineRefusedError(), error)
        except Exception as error:
            logger.exception("a connection to an engine could not be opened")
            call.fail_call(EngineRefusedError(), error)
        else:
            call.connect_task = None
            if connection.is_lost:
                call.fail_call(EngineBrokenError(), None)
                return
            self._pool.add_connection(connection)
            connection.send_request(call, head, body)
            if call.is_paused:
                connection.pause()

    async def _open_connection(self, origin: Origin[EngineConnection]) -> EngineConnection:
        tls, host, port = origin.address
        if tls and self._ssl_context is None:
            self._ssl_context = ssl.create_default_context()
        connection = EngineConnection(origin, self._pool)
        try:
            await asyncio.get_running_loop().create_connection(
                lambda: connection, host, port, ssl=self._ssl_context if tls else None
            )
        except BaseException:
            connection.give_up()
            raise
        return connection

    def _add_route(self, endpoint: Endpoint) -> _EngineRoute:
        if len(self._routes) >= _MAX_ROUTES:
            # Each routing table brings endpoints of its own. Those of old ones, with their tokens, must not add up.
            self._routes.clear()
            self._pool.forget_unused(self._connect_tasks.values())
        target = target_of(endpoint)
        route = self._routes[id(endpoint)] = _EngineRoute(endpoint, target, self._pool.origin_of(target.address))
        return route


def _head(route: _EngineRoute, method: str, path: str) -> bytes:
    head = head_of(route.target, method, path)
    if len(path) <= _LONGEST_KEPT_PATH and "?" not in path:
        if len(route.heads) >= _MAX_HEADS:
            route.heads.clear()
        route.heads[method, path] = head
    return head
