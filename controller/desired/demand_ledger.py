"""Which autoload models requests asked for, and which were evicted since."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, TypeVar

from controller.config.debounce import DebouncedState
from controller.desired.persistence import Change, StatePersistence
from controller.schema.override import Evicted, restate_override
from controller.schema.routing import GatewayReport, Stamp

T = TypeVar("T")

GATEWAYS_HEARD: Final = 64
"""Gateways whose demand is remembered. Each start of a gateway counts as another one."""


class DemandLedger:
    """Demand for autoload models and evictions, by model name. Demand is the Unix time of the last request that makes a
    model wanted; an eviction ends it, and the next request ends the eviction, so a model has at most one of them. Both
    are in the stored state. What the 64 gateways heard last reported before is not, and is forgotten with the
    controller. `clock` gives Unix time."""

    def __init__(self, persistence: StatePersistence, clock: Callable[[], float]) -> None:
        self._persistence = persistence
        self._clock = clock
        self._gateway_demand: dict[str, dict[str, float]] = {}
        """Gateway id to its last reported demand: model to the time of the last request, by the gateway's clock."""
        self._unload_revisions: dict[str, tuple[int, Stamp | None]] = {}
        """Unloaded models to the first revision that holds the unload, and to the first table that tells of it."""

    def take_demand(self, report: GatewayReport) -> bool:
        """Take a gateway's demand for autoload models, and record new requests as demand as of now, which ends the
        models' evictions.

        A model's request is new if it is another than the one in the same gateway's report before. Where that report
        did not have the model, or there was none, the request is new if the model has no demand yet and the request is
        later than its override and eviction. Requests that may be older than an unload are dropped (see
        `note_published`). Return whether any request was new. Blocks for a write to the state folder if so; a failed
        write raises nothing.
        """
        known_demand = self._gateway_demand.pop(report.gateway_id, {})
        self._gateway_demand[report.gateway_id] = dict(report.demand)
        for oldest_id in list(self._gateway_demand)[:-GATEWAYS_HEARD]:
            del self._gateway_demand[oldest_id]
        fresh_names = [
            name
            for name, demanded_at in report.demand.items()
            if not self._is_before_unload(name, report.stamp)
            and self._is_fresh(name, demanded_at, known_demand.get(name))
        ]
        if not fresh_names:
            return False
        for name in fresh_names:
            self._unload_revisions.pop(name, None)
        self.request_reload(fresh_names)
        return True

    def request_reload(self, models: Sequence[str]) -> None:
        """Record demand for each of these models as of now, and end their evictions. Names are not checked; an empty
        sequence does nothing. Blocks for a write to the state folder; a failed write raises nothing."""
        if models:
            state = self._persistence.state
            demand = state.demand | dict.fromkeys(models, self._clock())
            self._persistence.update_state({"rested": _without(state.rested, models), "demand": demand})

    def evict_models(self, models: Mapping[str, str]) -> None:
        """Record that these models were evicted now, and drop the demand for them until the next request for each.
        `models`: name to the reason, in words. An empty mapping does nothing. Blocks for a write to the state
        folder; a failed write raises nothing."""
        if models:
            state = self._persistence.state
            evictions = {name: Evicted(at=self._clock(), reason=reason) for name, reason in models.items()}
            change = {"rested": {**state.rested, **evictions}, "demand": _without(state.demand, models)}
            self._persistence.update_state(change)

    def end_for_override(self, model: str, unload_revision: int | None) -> Change:
        """Return the change of the stored state that a new override of the model makes: its eviction ends, and with an
        unload its demand too. The caller gives the change to `StatePersistence.update_state`.

        `unload_revision`: the revision of the desired state that holds the unload; None: the override is a load. Until
        `note_published` has that revision, gateways' demand for the unloaded model is dropped.
        """
        state = self._persistence.state
        change: dict[str, object] = {"rested": _without(state.rested, [model])}
        if unload_revision is not None:
            self._unload_revisions[model] = (unload_revision, None)
            change["demand"] = _without(state.demand, [model])
        return change

    def end_edited(self, before: DebouncedState | None, state: DebouncedState) -> Change:
        """Return the change of the stored state that drops the demand and evictions which an edit ended: those of
        models that are not `autoload` any more, are not declared, or whose `enabled` or `replicas` was edited. The
        caller gives the change to `StatePersistence.update_state`. `before`: what was in force; None: nothing. `state`:
        what is."""
        declared_before = before.declared_models if before is not None else {}
        stored = self._persistence.state
        return {
            field: {name: each for name, each in entries.items() if _outlives_edit(name, declared_before, state)}
            for field, entries in (("demand", stored.demand), ("rested", stored.rested))
        }

    def note_published(self, revision: int, stamp: Stamp) -> None:
        """Note that the routing table with that stamp was built from the desired state of that `revision`.

        Call it for each published table. A gateway's demand for an unloaded model counts again once the gateway has the
        first table noted here that holds the unload.
        """
        for name, (unloaded_at, first_stamp) in self._unload_revisions.items():
            if first_stamp is None and revision >= unloaded_at:
                self._unload_revisions[name] = (unloaded_at, stamp)

    def _is_before_unload(self, name: str, stamp: Stamp | None) -> bool:
        """Whether a gateway with the table of that stamp may report requests from before the model's unload."""
        if name not in self._unload_revisions:
            return False
        _, first_stamp = self._unload_revisions[name]
        return first_stamp is None or stamp is None or stamp < first_stamp

    def _is_fresh(self, name: str, demanded_at: float, known_at: float | None) -> bool:
        """Whether a reported request is new. `known_at`: the last one that the same gateway reported before.

        Gateways report their last request again and again, and an override or an eviction ends earlier ones. A
        gateway's clock is compared with ours only where the gateway has reported nothing before. Any other time is a
        new request, and an end in the future is none: the clock may have been set back since.
        """
        if known_at is not None:
            return demanded_at != known_at
        state, now = self._persistence.state, self._clock()
        end_times = [each.at for each in (state.overrides.get(name), state.rested.get(name)) if each is not None]
        return name not in state.demand and all(demanded_at > at for at in end_times if at <= now)


def _outlives_edit(name: str, declared_before: Mapping[str, Mapping[str, Any]], state: DebouncedState) -> bool:
    """Whether a model's demand or eviction still counts after an edit: it is `autoload`, and was not restated."""
    definition = state.definitions.get(name)
    if definition is None or not definition.autoload:
        return False
    return not restate_override(declared_before.get(name), state.declared_models[name])


def _without(entries: Mapping[str, T], names: Collection[str]) -> dict[str, T]:
    return {name: entry for name, entry in entries.items() if name not in names}
