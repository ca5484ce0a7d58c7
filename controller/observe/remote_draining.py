"""Remotes that were routed to and are no longer: their requests finish, though there is no engine to look at."""

from __future__ import annotations

from collections.abc import Iterable

from controller.planning.draining import DrainState, GatewayView, is_drained
from controller.schema.routing import Stamp
from controller.state import DesiredState


class RemoteDraining:
    """The drains under way, by model. A controller that restarts forgets them; nothing is ended by them."""

    def __init__(self) -> None:
        self._drains: dict[str, DrainState] = {}

    @property
    def models(self) -> frozenset[str]:
        """Those that may still hold requests."""
        return frozenset(self._drains)

    def follow_desired(self, previous_desired: DesiredState | None, desired: DesiredState, now: float) -> None:
        """Begin where a remote is wanted no longer; forget where it is wanted again."""
        previous_models = previous_desired.models if previous_desired is not None else {}
        for name, model in desired.models.items():
            previous_model = previous_models.get(name)
            if model.replicas or model.runs:
                self._drains.pop(name, None)
            elif previous_model is not None and previous_model.replicas and not previous_model.runs:
                self._drains.setdefault(name, DrainState(now))
        self._drains = {name: drain for name, drain in self._drains.items() if name in desired.models}

    def note_published(self, stamp: Stamp) -> None:
        """From this table on nothing new is sent to them."""
        self._drains = {
            name: DrainState(drain.since, drain.unrouted_stamp or stamp) for name, drain in self._drains.items()
        }

    def forget_empty(self, gateways: Iterable[GatewayView], desired: DesiredState, now: float) -> None:
        """Forget those that are empty, and those of which nobody can tell for longer than a drain takes."""
        views = tuple(gateways)
        kept_drains = {}
        for name, drain in self._drains.items():
            is_empty = is_drained(name, drain, views, None, now=now, unsure=False)
            model = desired.models.get(name)
            is_overdue = is_empty is None and model is not None and now >= drain.since + model.drain_timeout_s
            if not is_empty and not is_overdue:
                kept_drains[name] = drain
        self._drains = kept_drains
