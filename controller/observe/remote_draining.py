"""Remotes that were routed to and are no longer: their requests finish, though there is no engine to look at."""

from __future__ import annotations

from collections.abc import Iterable

from controller.planning.draining import Drain, GatewayView, drained
from controller.schema.routing import Stamp
from controller.state import DesiredState


class RemoteDrains:
    """The drains under way, by model. A controller that restarts forgets them; nothing is ended by them."""

    def __init__(self) -> None:
        self._drains: dict[str, Drain] = {}

    @property
    def models(self) -> frozenset[str]:
        """Those that may still hold requests."""
        return frozenset(self._drains)

    def follow(self, before: DesiredState | None, desired: DesiredState, now: float) -> None:
        """Begin where a remote is wanted no longer; forget where it is wanted again."""
        known = before.models if before is not None else {}
        for name, want in desired.models.items():
            was = known.get(name)
            if want.replicas or want.runs:
                self._drains.pop(name, None)
            elif was is not None and was.replicas and not was.runs:
                self._drains.setdefault(name, Drain(now))
        self._drains = {name: drain for name, drain in self._drains.items() if name in desired.models}

    def published(self, stamp: Stamp) -> None:
        """From this table on nothing new is sent to them."""
        self._drains = {name: Drain(drain.since, drain.unrouted or stamp) for name, drain in self._drains.items()}

    def forget_empty(self, gateways: Iterable[GatewayView], desired: DesiredState, now: float) -> None:
        """Forget those that are empty, and those of which nobody can tell for longer than a drain takes."""
        views = tuple(gateways)
        kept = {}
        for name, drain in self._drains.items():
            empty = drained(name, drain, views, None, now=now, unsure=False)
            want = desired.models.get(name)
            late = empty is None and want is not None and now >= drain.since + want.drain_timeout_s
            if not empty and not late:
                kept[name] = drain
        self._drains = kept
