"""Drains of remote models: their requests finish after routing to them has ended. There is no engine to observe.

The end of such a drain stops nothing, so it cannot cut off a request. The drain waits for the reports of connected
gateways, and for a lost gateway only as long as a gateway that merely lost its link takes to come back (`ARRIVAL_S`).
"""

from __future__ import annotations

from collections.abc import Iterable

from controller.planning.draining import ARRIVAL_S, DrainState, GatewayView, is_drained, present_gateways
from controller.schema.routing import Stamp
from controller.state import DesiredState


class RemoteDraining:
    """The drains of remote models that are under way. Each round of the reconciler calls `forget_empty`, then
    `follow_desired` and, once its table is published, `note_published`. The drains are not stored: a restart of the
    controller forgets them, which is harmless because nothing is stopped at their end."""

    def __init__(self) -> None:
        self._drains: dict[str, DrainState] = {}

    @property
    def models(self) -> frozenset[str]:
        """Names of the draining remote models, which may still have requests running."""
        return frozenset(self._drains)

    def follow_desired(self, previous_desired: DesiredState | None, desired: DesiredState, now: float) -> None:
        """Begin the drain of each remote model that has become unwanted, and end that of each that is wanted again or
        no longer declared. `now` is Unix time.

        `previous_desired` is the last round's desired state; None in the first round, which begins no drain.
        """
        previous_models = previous_desired.models if previous_desired is not None else {}
        for name, model in desired.models.items():
            previous_model = previous_models.get(name)
            if model.replicas or model.runs:
                self._drains.pop(name, None)
            elif previous_model is not None and previous_model.replicas and not previous_model.runs:
                self._drains.setdefault(name, DrainState(now))
        self._drains = {name: drain for name, drain in self._drains.items() if name in desired.models}

    def note_published(self, stamp: Stamp) -> None:
        """Note, for drains that have none yet, the stamp of the published table, from which on gateways send draining
        models no new requests. Until then, no drain ends as empty."""
        self._drains = {
            name: DrainState(drain.since, drain.unrouted_stamp or stamp) for name, drain in self._drains.items()
        }

    def forget_empty(self, gateways: Iterable[GatewayView], now: float) -> None:
        """End the drains of models without running requests. `now` is Unix time.

        Every connected gateway must report none. A lost one is waited for until 5 s (`ARRIVAL_S`) after its loss; where
        there is no gateway, the drain lasts 5 s.
        """
        views = present_gateways(gateways, now)
        loss_times = [view.lost_at for view in views if view.lost_at is not None]
        kept_drains = {}
        for name, drain in self._drains.items():
            is_empty = is_drained(name, drain, views, None, now=now, unsure=False)
            is_known_soon = is_empty is None and now < max([drain.since, *loss_times]) + ARRIVAL_S
            if is_empty is False or is_known_soon:
                kept_drains[name] = drain
        self._drains = kept_drains
