"""Connections to engines that are kept open between requests."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, Generic, Protocol, TypeVar

from gateway.upstream.target import Address

KEEP_S = 60.0
"""A connection is closed after this long without a request; at the earliest after half of it."""
KEEP_PER_ORIGIN = 256


class Pooled(Protocol):
    """What the pool must know of a connection."""

    origin: Origin[Any]
    idle_round: int

    def abort(self) -> None:
        """Close it at once. `ConnectionPool.remove_connection` follows, in another turn of the loop."""

    def drop(self) -> None:
        """The same, and the request that it carries is cancelled."""


C = TypeVar("C", bound=Pooled)


class Origin(Generic[C]):
    """One address and the connections to it that wait for a request, the newest last."""

    __slots__ = ("address", "idle_connections")

    def __init__(self, address: Address) -> None:
        self.address = address
        self.idle_connections: list[C] = []


class ConnectionPool(Generic[C]):
    """The connections of all origins. One timer serves them all, and only while some are idle.

    How long a connection is idle is counted in rounds of that timer: no clock is read per request.
    """

    def __init__(self, keep_s: float = KEEP_S, keep_per_origin: int = KEEP_PER_ORIGIN) -> None:
        self._round_s = keep_s / 2
        self._keep_per_origin = keep_per_origin
        self._origins: dict[Address, Origin[C]] = {}
        self._open: set[C] = set()
        self._round = 0
        self._timer: asyncio.TimerHandle | None = None
        self._all_lost: asyncio.Future[None] | None = None

    @property
    def open_count(self) -> int:
        """Connections, idle or in use."""
        return len(self._open)

    @property
    def idle_count(self) -> int:
        """Connections that wait for a request."""
        return sum(len(origin.idle_connections) for origin in self._origins.values())

    def origin_of(self, address: Address) -> Origin[C]:
        """The origin at an address."""
        origin = self._origins.get(address)
        if origin is None:
            origin = self._origins[address] = Origin(address)
        return origin

    def forget_unused(self, awaited: Iterable[Origin[C]]) -> None:
        """Drop the origins that no connection leads to; `awaited` are those to which one is coming about."""
        used_addresses = {connection.origin.address for connection in self._open}
        used_addresses.update(origin.address for origin in awaited)
        self._origins = {address: origin for address, origin in self._origins.items() if address in used_addresses}

    def add_connection(self, connection: C) -> None:
        """Count a new connection, which is in use."""
        self._open.add(connection)

    def keep_idle(self, connection: C) -> None:
        """Offer a connection for the next request."""
        idle_connections = connection.origin.idle_connections
        if len(idle_connections) >= self._keep_per_origin:
            connection.abort()
            return
        connection.idle_round = self._round
        idle_connections.append(connection)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._round_s, self._sweep)

    def withdraw_idle(self, connection: C) -> None:
        """No longer offer a connection, because it is closing."""
        idle_connections = connection.origin.idle_connections
        if connection in idle_connections:
            idle_connections.remove(connection)

    def remove_connection(self, connection: C) -> None:
        """A connection is closed."""
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
