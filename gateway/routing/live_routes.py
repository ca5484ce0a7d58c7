"""Holder of the routing table in force."""

from __future__ import annotations

from collections.abc import Callable

from controller.schema.errors import RoundhouseError
from controller.schema.routing import RoutingTable
from gateway.routing.table import Routes


class LiveRoutes:
    """Holds the `Routes` in force.

    Everything runs in one event loop, so a table stays in force between a read and a decision unless an `await` lies
    between them.
    """

    def __init__(self) -> None:
        self._current: Routes | None = None
        self.on_table: Callable[[Routes], None] = lambda _: None
        """Called after a new table has come into force."""

    @property
    def current_or_none(self) -> Routes | None:
        """The table in force; None before the first table."""
        return self._current

    @property
    def current(self) -> Routes:
        """The table in force.

        Raises:
            RoundhouseError: `controller_unavailable` before the first table.
        """
        if self._current is None:
            raise RoundhouseError(
                "controller_unavailable", "The gateway has not had a routing table from a controller yet."
            )
        return self._current

    def apply_table(self, table: RoutingTable) -> None:
        """Index `table` and put it in force."""
        self._current = routes = Routes.of(table)
        self.on_table(routes)
