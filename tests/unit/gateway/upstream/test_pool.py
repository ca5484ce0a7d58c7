"""Connections kept: which are closed when, and that one on its way out is offered to nobody."""

from __future__ import annotations

from gateway.upstream.pool import ConnectionPool, Origin
from gateway.upstream.target import Address


class FakeConnection:
    """Notes that it was closed; the pool is told later, as with a real one."""

    def __init__(self, origin: Origin[FakeConnection]) -> None:
        self.origin = origin
        self.idle_round = 0
        self.closed = False

    def abort(self) -> None:
        """Close it."""
        self.closed = True

    def drop(self) -> None:
        """Close it."""
        self.closed = True


async def test_what_is_idle_for_two_rounds_is_closed_and_withdrawn_at_once() -> None:
    pool: ConnectionPool[FakeConnection] = ConnectionPool()
    origin = pool.origin_of(Address(tls=False, host="h", port=1))
    old, young = FakeConnection(origin), FakeConnection(origin)
    for connection in (old, young):
        pool.add_connection(connection)
    pool.keep_idle(old)
    pool._sweep()
    pool.keep_idle(young)
    pool._sweep()
    assert (old.closed, young.closed, origin.idle_connections) == (True, False, [young])
    pool.remove_connection(old)
    assert (pool.open_count, pool.idle_count) == (1, 1)
    pool._sweep()
    pool.remove_connection(young)
    assert (young.closed, pool.open_count, pool.idle_count) == (True, 0, 0)
    assert pool._timer is None, "no timer while nothing is idle"
    await pool.close()


async def test_an_origin_is_forgotten_once_no_connection_leads_to_it() -> None:
    pool: ConnectionPool[FakeConnection] = ConnectionPool()
    used, awaited, unused = (pool.origin_of(Address(tls=False, host="h", port=port)) for port in (1, 2, 3))
    pool.add_connection(FakeConnection(used))
    pool.forget_unused([awaited])
    assert pool.origin_of(used.address) is used
    assert pool.origin_of(awaited.address) is awaited
    assert pool.origin_of(unused.address) is not unused
