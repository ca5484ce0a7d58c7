"""HTTP/1.1 client for engines, by callbacks, for the hot path.

A request on a kept connection costs one write, and one callback per read of its answer; a task exists only while a
connection is being opened. The client ignores proxy variables, cookies and redirects, and does not decompress.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Collection
from typing import NamedTuple

from common.host_tls import HostContexts, reach_relay
from contract.routing import Endpoint
from gateway.upstream.connection import (
    ConnectionPool,
    EngineBrokenError,
    EngineCall,
    EngineConnection,
    EngineListener,
    EngineRefusedError,
    Origin,
    RequestBody,
)
from gateway.upstream.target import Target, head_of, target_of

logger = logging.getLogger(__name__)

_MAX_ROUTES = 1024
"""Endpoints whose `_EngineRoute` is kept."""
_MAX_HEADS = 64
"""Request heads that are kept per endpoint."""
_LONGEST_KEPT_PATH = 64
"""Characters. Heads of longer paths, and of queries, are not kept: clients wrote them, and they do not recur."""
_NEED_NO_BODY = ("GET", "DELETE")
RELAY_HANDSHAKE_S = 8
"""Seconds that the TLS of a connection to a host's relay may take besides. It needs turns of both programs, which a
burst of connections on a busy machine makes long."""
ABSENT_CONNECT_S = 0.1
"""Seconds that a connection to a replica which has left the routing table may still take: one that drains accepts it
within milliseconds."""


class _EngineRoute:
    """Address and request heads of an endpoint. Made once, and looked up by the endpoint's identity."""

    __slots__ = ("endpoint", "heads", "origin", "target")

    def __init__(self, endpoint: Endpoint, target: Target, origin: Origin[EngineConnection]) -> None:
        self.endpoint = endpoint
        self.target = target
        self.origin = origin
        self.heads: dict[tuple[str, str], bytes] = {}


class _Connecting(NamedTuple):
    """A request whose connection is being opened."""

    call: EngineCall
    origin: Origin[EngineConnection]
    replica: str


class EngineClient:
    """Sends HTTP/1.1 requests to engines, over connections that are kept open between requests.

    One per gateway, used from one event loop only. Nothing is retried, and only connecting has a time limit: callers
    cancel an `EngineCall` that takes too long. Call `close` at the end.
    """

    def __init__(
        self,
        connect_timeout_s: float,
        *,
        ssl_context: ssl.SSLContext | None = None,
        pool: ConnectionPool[EngineConnection] | None = None,
    ) -> None:
        """`connect_timeout_s`: seconds for name resolution, TCP and TLS together. `ssl_context` None: trust the
        system's certificate authorities. `pool` None: a pool of its own; `close` closes a given pool as well."""
        self._connect_timeout_s = connect_timeout_s
        self._ssl_context = ssl_context
        self._host_contexts = HostContexts()
        self._pool: ConnectionPool[EngineConnection] = pool or ConnectionPool()
        self._routes: dict[int, _EngineRoute] = {}
        self._connect_tasks: dict[asyncio.Task[None], _Connecting] = {}
        """Running tasks that open a connection."""
        self._is_closed = False

    @property
    def open_connections(self) -> int:
        """Number of open connections, idle or in use; those that are being opened are not counted."""
        return self._pool.open_count

    @property
    def idle_connections(self) -> int:
        """Number of open connections, to all engines together, that wait for a request."""
        return self._pool.idle_count

    @property
    def busy_connections(self) -> int:
        """Number of open connections, to all engines together, that are not idle: they carry a request, or are being
        closed."""
        return self._pool.open_count - self._pool.idle_count

    @property
    def connecting_requests(self) -> int:
        """Number of requests whose connection is being opened."""
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
        """Send a request on an idle connection, or a new one, and return at once.

        The answer, or the failure, is passed to `listener` later: `EngineRefusedError` also for an endpoint whose URL
        or token cannot be used, and after `close`. `path`: path and query in the gateway's own API; see
        `target.head_of`. `headers`: whole lines with CRLF, without those that every request has (host, authorization,
        content-type, content-length, accept, accept-encoding, user-agent). They are sent unchecked. `body` must not
        change until the answer has ended. `fresh`: open a new connection even if an idle one exists, which the engine
        may have closed meanwhile.

        Raises:
            ValueError: `method` or `path` has characters that a request line cannot hold.
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
            self._start_connecting(_Connecting(call, route.origin, endpoint.replica), head, body)
        return call

    def refuse_absent(self, replicas: Collection[str]) -> None:
        """Give connections that are being opened to replicas outside of `replicas` 0.1 s (`ABSENT_CONNECT_S`) more;
        then fail those requests with `EngineRefusedError`. Returns at once. Call it with the replicas of each new
        routing table.

        The address of a container that has ended does not refuse connections: nothing answers there, or the next
        container does, a second later.
        """
        loop = asyncio.get_running_loop()
        for task, connecting in self._connect_tasks.items():
            if connecting.replica not in replicas:
                loop.call_later(ABSENT_CONNECT_S, self._refuse_connecting, task)

    async def close(self) -> None:
        """Cancel all requests without calling their listeners, and wait until all connections are closed. The listeners
        of later requests get `EngineRefusedError`. A second call after the first has returned does nothing."""
        self._is_closed = True
        tasks = list(self._connect_tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await self._pool.close()

    def _refuse_connecting(self, task: asyncio.Task[None]) -> None:
        connecting = self._connect_tasks.get(task)
        if connecting is not None and not task.done():
            task.cancel()
            connecting.call.fail_call(EngineRefusedError("it has ended"), None)

    def _start_connecting(self, connecting: _Connecting, head: bytes, body: RequestBody) -> None:
        loop, call = asyncio.get_running_loop(), connecting.call
        if self._is_closed:
            loop.call_soon(call.fail_call, EngineRefusedError("the gateway is stopping"), None)
            return
        call.connect_task = task = loop.create_task(self._connect_and_send(call, connecting.origin, head, body))
        self._connect_tasks[task] = connecting
        task.add_done_callback(self._connect_tasks.pop)

    async def _connect_and_send(
        self, call: EngineCall, origin: Origin[EngineConnection], head: bytes, body: RequestBody
    ) -> None:
        try:
            limit_s = self._connect_timeout_s + (0 if origin.address.through is None else RELAY_HANDSHAKE_S)
            async with asyncio.timeout(limit_s):
                connection = await self._open_connection(origin)
        except (OSError, UnicodeError) as error:
            call.fail_call(self._explain_refusal(error), error)
        except Exception as fault:
            logger.exception("a connection to an engine could not be opened")
            call.fail_call(EngineRefusedError(), fault)
        else:
            call.connect_task = None
            if connection.is_lost:
                call.fail_call(EngineBrokenError(), None)
                return
            self._pool.add_connection(connection)
            connection.send_request(call, head, body)
            if call.is_paused:
                connection.pause()

    def _explain_refusal(self, error: OSError | UnicodeError) -> EngineRefusedError:
        if isinstance(error, TimeoutError):
            return EngineRefusedError(f"it accepted no connection within {self._connect_timeout_s:g} s")
        if isinstance(error, ssl.SSLError):
            return EngineRefusedError("its TLS certificate or handshake was not accepted")
        return EngineRefusedError()

    async def _open_connection(self, origin: Origin[EngineConnection]) -> EngineConnection:
        tls, host, port, through = origin.address
        if tls and through is None and self._ssl_context is None:
            self._ssl_context = ssl.create_default_context()
        context = self._ssl_context if through is None else self._host_contexts.find_context(through)
        connection = EngineConnection(origin, self._pool)
        try:
            loop = asyncio.get_running_loop()
            if through is None:
                await loop.create_connection(lambda: connection, host, port, ssl=context if tls else None)
            else:
                async with asyncio.timeout(self._connect_timeout_s):
                    reached = await reach_relay(host, port)
                name = through.server_name
                await loop.create_connection(lambda: connection, sock=reached, ssl=context, server_hostname=name)
                connection.watch_peer()
        except BaseException:
            connection.give_up()
            raise
        return connection

    def _add_route(self, endpoint: Endpoint) -> _EngineRoute:
        if len(self._routes) >= _MAX_ROUTES:
            # Each routing table has new endpoint objects. Those of old tables, with their tokens, must not pile up.
            self._routes.clear()
            self._pool.forget_unused(each.origin for each in self._connect_tasks.values())
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
