"""The routing table in force, and the wish to be told of the next one."""

from __future__ import annotations

import asyncio

from controller.schema.errors import RoundhouseError
from controller.schema.routing import RoutingTable
from gateway.routing import Routes


class LiveRoutes:
    """Holds the current `Routes`. One event loop, so a read and what is decided on it happen without a gap
    as long as nothing is awaited in between."""

    def __init__(self) -> None:
        self._current: Routes | None = None
        self._next = asyncio.Event()

    @property
    def current_or_none(self) -> Routes | None:
        """The table in force; None before the first."""
        return self._current

    @property
    def current(self) -> Routes:
        """The table in force.

        Raises:
            RoundhouseError: `controller_unavailable`, while there has been no table.
        """
        if self._current is None:
            raise RoundhouseError(
                "controller_unavailable", "The gateway has not had a routing table from a controller yet."
            )
        return self._current

    def apply(self, table: RoutingTable) -> None:
        """Put `table` in force and wake all who wait for one."""
        self._current = Routes.of(table)
        self._next.set()
        self._next = asyncio.Event()

    async def changed(self) -> None:
        """Return once another table than the one now in force has come."""
        await self._next.wait()
