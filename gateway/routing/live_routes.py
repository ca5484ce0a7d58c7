"""Holder of the routing table in force."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from controller.schema.errors import RoundhouseError
from controller.schema.routing import ModelRoute, RoutingTable
from gateway.routing.table import Routes


class LiveRoutes:
    """Holds the `Routes` in force: those of the latest routing table that the controller link accepted.

    One per gateway, used from one event loop only. So a table stays in force between a read and a decision unless an
    `await` lies between them. The table stays in force while the controller is away.
    """

    def __init__(self) -> None:
        self._current: Routes | None = None
        self._refusal: str | None = None
        self.on_table: Callable[[Routes], None] = lambda _: None
        """Called within `apply_table`, after the new table has come into force."""
        self.on_models: Callable[[Mapping[str, ModelRoute]], None] = lambda _: None
        """Called with the models by name, after `on_table`."""
        self.on_tools: Callable[[Routes], None] = lambda _: None
        """Called with the table whose tools are offered from now on, after `on_models`."""

    @property
    def current_or_none(self) -> Routes | None:
        """The table in force; None before the first table, and while the controller refuses this gateway."""
        return self._current

    @property
    def current(self) -> Routes:
        """The table in force.

        Raises:
            RoundhouseError: `controller_unavailable` before the first table, and while the controller refuses this
                gateway.
        """
        if self._current is None:
            message = self._refusal or "The gateway has not had a routing table from a controller yet."
            raise RoundhouseError("controller_unavailable", message)
        return self._current

    def check_table(self) -> None:
        """Raise RoundhouseError `controller_unavailable` where there is no table in force; else do nothing."""
        _ = self.current

    def drop_table(self, reason: str) -> None:
        """Let no table be in force, because the controller refuses this gateway: by an old one it would spoil what the
        gateway does that is taken. New requests fail with `reason`, a public text, until `apply_table`; running ones
        that need no table go on. No callback is called."""
        self._current, self._refusal = None, reason

    def apply_table(self, table: RoutingTable) -> None:
        """Put `table` in force, then call `on_table`, `on_models` and `on_tools`.

        What a callback raises is raised: the table is in force then, and the later callbacks are not called. Neither
        the stamp nor the instance of `table` is compared with the former table's: the caller has decided that it is to
        be applied (`control.link.judge_table`).
        """
        self._current = routes = Routes.of(table, self._current)
        self.on_table(routes)
        self.on_models(routes.models)
        self.on_tools(routes)
