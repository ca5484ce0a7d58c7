"""Connections kept: which are closed when, and that one on its way out is offered to nobody."""

from __future__ import annotations

from gateway.upstream.pool import Origin, Pool
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
    pool: Pool[FakeConnection] = Pool()
    origin = pool.origin(Address(tls=False, host="h", port=1))
    old, young = FakeConnection(origin), FakeConnection(origin)
    for connection in (old, young):
        pool.opened(connection)
    pool.keep(old)
    pool._sweep()
    pool.keep(young)
    pool._sweep()
    assert (old.closed, young.closed, origin.idle) == (True, False, [young])
    pool.lost(old)
    assert (pool.open, pool.idle) == (1, 1)
    pool._sweep()
    pool.lost(young)
    assert (young.closed, pool.open, pool.idle) == (True, 0, 0)
    assert pool._timer is None, "no timer while nothing is idle"
    await pool.close()


async def test_an_origin_is_forgotten_once_no_connection_leads_to_it() -> None:
    pool: Pool[FakeConnection] = Pool()
    used, unused = (pool.origin(Address(tls=False, host="h", port=port)) for port in (1, 2))
    pool.opened(FakeConnection(used))
    pool.forget_unused()
    assert pool.origin(used.address) is used
    assert pool.origin(unused.address) is not unused
