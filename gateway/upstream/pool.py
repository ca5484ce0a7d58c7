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
        """Close the connection at once. It calls `ConnectionPool.remove_connection` in a later turn of the loop."""

    def drop(self) -> None:
        """Close the connection at once, and cancel the request that it carries."""


C = TypeVar("C", bound=Pooled)


class Origin(Generic[C]):
    """An address of engines, and the idle connections to it, latest used last."""

    __slots__ = ("address", "idle_connections")

    def __init__(self, address: Address) -> None:
        self.address = address
        self.idle_connections: list[C] = []


class ConnectionPool(Generic[C]):
    """The connections to all origins. One timer closes idle ones; it runs only while some are idle.

    Idle time is counted in rounds of that timer, so no clock is read per request.
    """

    def __init__(self, keep_s: float = KEEP_S, keep_per_origin: int = KEEP_PER_ORIGIN) -> None:
        """`keep_s`, `keep_per_origin`: see `KEEP_S` and `KEEP_PER_ORIGIN`."""
        self._round_s = keep_s / 2
        self._keep_per_origin = keep_per_origin
        self._origins: dict[Address, Origin[C]] = {}
        self._open: set[C] = set()
        self._round = 0
        self._timer: asyncio.TimerHandle | None = None
        self._all_lost: asyncio.Future[None] | None = None

    @property
    def open_count(self) -> int:
        """Number of open connections, idle or in use."""
        return len(self._open)

    @property
    def idle_count(self) -> int:
        """Number of open connections that wait for a request."""
        return sum(len(origin.idle_connections) for origin in self._origins.values())

    def origin_of(self, address: Address) -> Origin[C]:
        """Return the origin with an address; a new one on first use."""
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
        """Count a new connection, which is about to carry a request."""
        self._open.add(connection)

    def keep_idle(self, connection: C) -> None:
        """Keep a connection for the next request to its origin, or close it if enough are idle."""
        idle_connections = connection.origin.idle_connections
        if len(idle_connections) >= self._keep_per_origin:
            connection.abort()
            return
        connection.idle_round = self._round
        idle_connections.append(connection)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._round_s, self._sweep)

    def withdraw_idle(self, connection: C) -> None:
        """Take a connection that is closing off the idle ones, if it is among them."""
        idle_connections = connection.origin.idle_connections
        if connection in idle_connections:
            idle_connections.remove(connection)

    def remove_connection(self, connection: C) -> None:
        """Stop counting a connection, which is closed."""
        self.withdraw_idle(connection)
        self._open.discard(connection)
        if self._all_lost is not None and not self._open and not self._all_lost.done():
            self._all_lost.set_result(None)

    async def close(self) -> None:
        """Close every connection and wait until they are closed."""
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
