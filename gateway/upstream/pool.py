"""Pool of connections to engines that are kept open between requests."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, Generic, Protocol, TypeVar

from gateway.upstream.target import Address

KEEP_S = 60.0
"""Seconds without a request after which a connection is closed, at the latest; at the earliest after half of them."""
KEEP_PER_ORIGIN = 256
"""Idle connections that are kept per origin."""


class Pooled(Protocol):
    """A connection as the pool uses it: `connection.EngineConnection`, or a fake in tests."""

    origin: Origin[Any]
    idle_round: int
    """The pool's round in which the connection became idle. Set by the pool."""

    def abort(self) -> None:
        """Close the connection at once, without waiting for the peer; unsent bytes are lost.

        The connection calls `ConnectionPool.remove_connection` in a later turn of the event loop. A request that the
        connection carries fails then, and its listener is told.
        """

    def drop(self) -> None:
        """Close the connection like `abort`, and forget the request that it carries without calling its listener."""


C = TypeVar("C", bound=Pooled)


class Origin(Generic[C]):
    """An address of engines, and the idle connections to it, latest used last.

    Whoever sends a request on an idle connection takes it out of the list first, from its end.
    """

    __slots__ = ("address", "idle_connections")

    def __init__(self, address: Address) -> None:
        self.address = address
        self.idle_connections: list[C] = []


class ConnectionPool(Generic[C]):
    """Counts the connections to all origins, keeps idle ones for later requests, and closes those idle for too long.

    It opens none. Idle time is counted in rounds of one timer, which runs only while some are idle. Belongs to one
    event loop.
    """

    def __init__(self, keep_s: float = KEEP_S, keep_per_origin: int = KEEP_PER_ORIGIN) -> None:
        """`keep_s`: seconds after which an idle connection is closed at the latest; at the earliest after half of
        them. `keep_per_origin`: maximum number of idle connections to one address; there is no maximum of busy ones."""
        self._round_s = keep_s / 2
        self._keep_per_origin = keep_per_origin
        self._origins: dict[Address, Origin[C]] = {}
        self._open: set[C] = set()
        self._round = 0
        self._timer: asyncio.TimerHandle | None = None
        self._all_lost: asyncio.Future[None] | None = None

    @property
    def open_count(self) -> int:
        """Number of open connections, idle or in use; one counts until its transport has reported the close."""
        return len(self._open)

    @property
    def idle_count(self) -> int:
        """Number of open connections that carry no request and are kept for a later one, over all origins."""
        return sum(len(origin.idle_connections) for origin in self._origins.values())

    def origin_of(self, address: Address) -> Origin[C]:
        """Return the origin with an address; a new one, without connections, on first use or after `forget_unused`."""
        origin = self._origins.get(address)
        if origin is None:
            origin = self._origins[address] = Origin(address)
        return origin

    def forget_unused(self, awaited: Iterable[Origin[C]]) -> None:
        """Forget origins without open connections. `awaited`: origins to keep, because one is being opened to them."""
        used_addresses = {connection.origin.address for connection in self._open}
        used_addresses.update(origin.address for origin in awaited)
        self._origins = {address: origin for address, origin in self._origins.items() if address in used_addresses}

    def add_connection(self, connection: C) -> None:
        """Count a new open connection. It is not idle: the caller sends a request on it."""
        self._open.add(connection)

    def keep_idle(self, connection: C) -> None:
        """Keep a connection whose request has ended for the next request to its origin. It is closed if it stays idle
        for `keep_s`.

        Close it instead if `keep_per_origin` connections are idle there already.
        """
        idle_connections = connection.origin.idle_connections
        if len(idle_connections) >= self._keep_per_origin:
            connection.abort()
            return
        connection.idle_round = self._round
        idle_connections.append(connection)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._round_s, self._sweep)

    def withdraw_idle(self, connection: C) -> None:
        """Remove a connection that is closing from its origin's idle ones; do nothing if it is not among them."""
        idle_connections = connection.origin.idle_connections
        if connection in idle_connections:
            idle_connections.remove(connection)

    def remove_connection(self, connection: C) -> None:
        """Stop counting a connection whose transport is closed, and no longer keep it idle.

        Do nothing if the connection was never added.
        """
        self.withdraw_idle(connection)
        self._open.discard(connection)
        if self._all_lost is not None and not self._open and not self._all_lost.done():
            self._all_lost.set_result(None)

    async def close(self) -> None:
        """Close every connection, also those that carry requests, and wait until all transports are closed.

        No listener is called. Use no connection afterwards; calls must not overlap.
        """
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for origin in self._origins.values():
            origin.idle_connections.clear()
        for connection in self._open:
            connection.drop()
        if self._open:
            self._all_lost = asyncio.get_running_loop().create_future()
            await self._all_lost

    def _sweep(self) -> None:
        self._round += 1
        has_idle = False
        for origin in self._origins.values():
            idle_connections = origin.idle_connections
            old_count = 0
            while old_count < len(idle_connections) and idle_connections[old_count].idle_round <= self._round - 2:
                idle_connections[old_count].abort()
                old_count += 1
            del idle_connections[:old_count]
            has_idle = has_idle or bool(idle_connections)
        self._timer = asyncio.get_running_loop().call_later(self._round_s, self._sweep) if has_idle else None
