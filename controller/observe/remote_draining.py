"""Remotes that were routed to and are no longer: their requests finish, though there is no engine to look at.

Nothing is stopped at the end of such a drain, so that it ends nobody's request. It waits for the gateways that are
there; one that is lost is given as long as one that only lost its link takes to come back.
"""

from __future__ import annotations

from collections.abc import Iterable

from controller.planning.draining import ARRIVAL_S, DrainState, GatewayView, is_drained, present_gateways
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

    def forget_empty(self, gateways: Iterable[GatewayView], now: float) -> None:
        """Forget those that are empty by all gateways that are there, and that no lost one may still come back to."""
        views = present_gateways(gateways, now)
        loss_times = [view.lost_at for view in views if view.lost_at is not None]
        kept_drains = {}
        for name, drain in self._drains.items():
            is_empty = is_drained(name, drain, views, None, now=now, unsure=False)
            is_known_soon = is_empty is None and now < max([drain.since, *loss_times]) + ARRIVAL_S
            if is_empty is False or is_known_soon:
                kept_drains[name] = drain
        self._drains = kept_drains
