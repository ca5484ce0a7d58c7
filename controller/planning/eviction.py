"""Which models of those that requests load stay loaded, and which make room or rest. Pure.

A model can be let go if a request would load it again (`autoload`), nobody said by hand that it is to be loaded, and it
is not pinned. It is let go when it is not used for its `idle_ttl_s`, or when somebody else wants its room:

- one that is used by nobody now goes at once, the one first whose idle time is greatest against what a reload costs;
- one that is in use gets no new requests once somebody has waited for `swap_wait_s`, and is stopped when it is empty;
- none goes before it has been loaded for `min_residency_s`;
- none goes for a model whose start is not known to be possible, or that would not fit even then.

Requests for one model thus gather while another is in its place, and are served together.

Invariants, held by tests/properties/controller/planning/test_eviction.py: what is pinned, busy (and nobody starves) or
young is never let go; nothing is let go unless all that wants its room then fits; every wanted model that has no room
says why.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from controller.planning.eviction_candidates import UNUSED, Resident, alive_of, may_go, resident_of
from controller.planning.placement import Ledger, NoRoom, place
from controller.planning.replica_changes import coming_of, leaving_of, missing_of
from controller.state import (
    DesiredModel,
    DesiredState,
    ObservedState,
    ReplicaKey,
    Statement,
)

FRESH_DEMAND_S: Final = 5.0
"""A request that asked for a model counts as waiting for so long, until the gateway's count of them comes."""


CHECKED_ANEW_S: Final = 10.0
"""How long a check may take that has become due."""
_SEATED: Final = (0, 0.0, "")


@dataclass(frozen=True, slots=True)
class Residency:
    """What is wanted once it is decided who has to go."""

    desired: DesiredState
    resting: Mapping[str, str] = field(default_factory=dict)
    """Models that nothing but demand will load again, to the reason why they go."""
    waits: Mapping[str, str] = field(default_factory=dict)
    """Models that wait for the room that others will leave, to that in words."""
    woken: tuple[str, ...] = ()
    """Models that rested, and are wanted again."""
    places: Mapping[str, tuple[int, float, str]] = field(default_factory=dict)
    """Of those that have none."""
    wakes: tuple[float, ...] = ()

    def line(self, model: DesiredModel | None) -> tuple[int, float, str]:
        """A model's place in the line for room, the least first."""
        return self.places.get(model.name, _SEATED) if model is not None else _SEATED


def settle(desired: DesiredState, observed: ObservedState, ledger: Ledger, now: float) -> Residency:
    """Decide. `ledger` has the claims of all that is not seen gone; it is not changed."""
    desired_on_demand = _woken(desired, observed)
    reload_names = tuple(name for name, model in desired_on_demand.models.items() if model is not desired.models[name])
    alive_by_model = alive_of(observed)
    candidates = {
        name: candidate
        for name, model in desired_on_demand.models.items()
        if (candidate := resident_of(model, alive_by_model.get(name, ()), observed, now)) is not None
    }
    missing_indices = missing_of(desired_on_demand, observed)
    if not missing_indices and not candidates:
        return Residency(desired_on_demand, woken=reload_names)
    leaving_engines = leaving_of(desired_on_demand, observed, now)
    allocator = _Seats(
        desired_on_demand,
        observed,
        now,
        candidates,
        missing_indices,
        given=ledger,
        free=ledger.without(()),
        ledger=ledger.without_replicas(leaving_engines, observed),
        leaving=sorted({each.id.model for each in leaving_engines}),
        coming=coming_of(desired_on_demand, observed, candidates),
    )
    unplaced_models = sorted((desired_on_demand.models[name] for name in missing_indices), key=allocator.line)
    for model in unplaced_models:
        allocator.seat(model)
    allocator.rest_unused()
    models = dict(desired_on_demand.models)
    for name, (since, reason) in allocator.resting.items():
        models[name] = replace(
            models[name],
            replicas=0,
            demand_replicas=models[name].replicas,
            statement=Statement("autoload", since, f"{reason}; the next request loads it"),
            drain_ends=False,
        )
    return Residency(
        replace(desired_on_demand, models=models),
        {name: reason for name, (_, reason) in allocator.resting.items()},
        allocator.waits,
        reload_names,
        {model.name: allocator.line(model) for model in unplaced_models},
        tuple(allocator.wakes),
    )


def _woken(desired: DesiredState, observed: ObservedState) -> DesiredState:
    """What requests wait for is wanted again, though it was let go."""
    models = dict(desired.models)
    for name, model in desired.models.items():
        traffic = observed.uses.get(name, UNUSED)
        if model.demand_replicas and model.autoload and traffic.waiting:
            since = observed.at if traffic.waits_since is None else traffic.waits_since
            statement = Statement("autoload", since, "autoload: requests wait for it")
            models[name] = replace(model, replicas=model.demand_replicas, demand_replicas=0, statement=statement)
    return replace(desired, models=models)


@dataclass(slots=True)
class _Seats:
    """Who gets which room, in the order of the line."""

    desired: DesiredState
    observed: ObservedState
    now: float
    residents: dict[str, Resident]
    missing: Mapping[str, tuple[int, ...]]
    given: Ledger
    """What is claimed now."""
    free: Ledger
    """What is claimed until those that leave are seen gone, and by those that got their room before."""
    ledger: Ledger
    """The same as if they were gone."""
    leaving: list[str]
    """Models of which something leaves."""
    coming: dict[str, list[Mapping[str, int]]]
    """See `coming_of`; and those that have a seat."""
    kept: dict[str, str] = field(default_factory=dict)
    """Residents whose room one that starves will have, to that one."""
    resting: dict[str, tuple[float, str]] = field(default_factory=dict)
    waits: dict[str, str] = field(default_factory=dict)
    seated: set[str] = field(default_factory=set)
    wakes: list[float] = field(default_factory=list)

    def line(self, model: DesiredModel) -> tuple[int, float, str]:
        """What the files or an operator want comes first, then whose requests have waited longest."""
        if model.statement.kind != "autoload":
            return 0, model.statement.since, model.name
        traffic = self.observed.uses.get(model.name, UNUSED)
        return 1 if self._is_awaited(model) else 2, traffic.waits_since or model.statement.since, model.name

    def seat(self, model: DesiredModel) -> None:
        """Room for a model's missing replicas, of what is free or will be."""
        if self._cannot_start(model):
            return
        self._seek(model)
        has_no_room = model.name not in self.waits and model.name not in self.resting and model.name not in self.seated
        if has_no_room and not isinstance(self._place(model, self.given), NoRoom):
            self.waits[model.name] = f"waits for room: {_listed(sorted(self.seated))} comes first"

    def _seek(self, model: DesiredModel) -> None:
        placement = self._place(model, self.ledger)
        if not isinstance(placement, NoRoom):
            self._take(model, placement)
            placement_now = self._place(model, self.free)
            if not isinstance(placement_now, NoRoom):
                for claims in placement_now:
                    self.free.add(claims, model=model.name)
            elif not placement_now.waiting:
                self.waits[model.name] = f"waits until {_listed(self.leaving)} left"
        elif placement.waiting:
            return
        elif model.statement.kind == "autoload" and not self._is_awaited(model):
            self.resting[model.name] = (model.statement.since, "no request waits for it any more")
        else:
            self._make_room(model)

    def rest_unused(self) -> None:
        """Let go what has not been used for its `idle_ttl_s`."""
        for candidate in self.residents.values():
            ttl_s = self.desired.models[candidate.name].idle_ttl_s
            if ttl_s is None or candidate.busy or candidate.name in self.resting:
                continue
            due_at = max(candidate.idle_since + ttl_s, candidate.stays_until)
            if self.now >= due_at:
                self.resting[candidate.name] = (due_at, f"not used for {ttl_s:g} s")
            else:
                self.wakes.append(due_at)

    def _is_awaited(self, model: DesiredModel) -> bool:
        waiting_count = self.observed.uses.get(model.name, UNUSED).waiting
        # Unknown is not none.
        return waiting_count != 0 or 0 <= self.now - model.statement.since < FRESH_DEMAND_S

    def _cannot_start(self, model: DesiredModel) -> bool:
        keys = (ReplicaKey(model.name, index, model.spec_hash) for index in self.missing[model.name])
        failures = map(self.observed.failures.get, keys)
        return any(failure is not None and failure.waits(self.now) for failure in failures)

    def _take(self, model: DesiredModel, claims_list: Iterable[Mapping[str, int]]) -> None:
        self.seated.add(model.name)
        for claims in claims_list:
            self.ledger.add(claims, model=model.name)
            if may_go(model):
                self.coming.setdefault(model.name, []).append(claims)

    def _place(self, model: DesiredModel, ledger: Ledger) -> list[Mapping[str, int]] | NoRoom:
        """What all missing replicas of the model would take."""
        scratch, claims_list = ledger.without(()), []
        for _ in self.missing[model.name]:
            placement = place(model, self.observed, scratch)
            if isinstance(placement, NoRoom):
                return placement
            scratch.add(placement.claims, model=model.name)
            claims_list.append(placement.claims)
        return claims_list

    def _make_room(self, model: DesiredModel) -> None:
        excluded_names = self.resting.keys() | self.kept.keys() | {model.name}
        unordered = [each for name, each in self.residents.items() if name not in excluded_names]
        candidates = sorted(unordered, key=lambda each: each.order(self.now))
        if self._go(model, candidates) is None:
            self._await_loads(model, candidates)
            return
        traffic = self.observed.uses.get(model.name, UNUSED)
        since = traffic.waits_since or model.statement.since
        starves_at = since + self.desired.swap_wait_s
        is_starving = self.now >= starves_at
        evictable_now = [
            each
            for each in candidates
            if self.now >= each.stays_until and (not each.busy or (is_starving and each.is_known))
        ]
        victims = self._go(model, evictable_now)
        if victims is None:
            self._wait(model, candidates, starves_at)
            if is_starving:
                self._keep(model, self._go(model, candidates) or ())
        elif not self._is_checked(model, victims):
            self.waits[model.name] = "waits for room, once it is known that it can be started"
        else:
            for each in victims:
                self.resting[each.name] = (since, f"makes room for {model.name}")
            self.waits[model.name] = f"waits until {_names(victims)} left"
            self._keep(model, victims)

    def _is_checked(self, model: DesiredModel, victims: Iterable[Resident]) -> bool:
        """Whether a start is known to be possible. While somebody leaves for it, the last check holds until the
        next."""
        preflight = self.observed.preflights.get((model.name, model.spec_hash))
        if preflight is None or not preflight.ok:
            return False
        lenient_now = self.now - CHECKED_ANEW_S if any(each.leaves for each in victims) else self.now
        return any(preflight.is_fresh(at, self.desired.preflight_recheck_s) for at in (self.now, lenient_now))

    def _keep(self, model: DesiredModel, victims: Iterable[Resident]) -> None:
        """What goes, or will, still takes its room: to others it is that of the one that it goes for."""
        self.kept.update({each.name: model.name for each in victims})
        self.ledger = self._without(victims)
        placement = self._place(model, self.ledger)
        self._take(model, () if isinstance(placement, NoRoom) else placement)

    def _await_loads(self, model: DesiredModel, candidates: Iterable[Resident]) -> None:
        """It waits for what is being loaded now, if that can make room later; if not, the plan says what is missing."""
        claims = (claims for each in self.coming.values() for claims in each)
        if not isinstance(self._place(model, self._without(candidates).without(claims)), NoRoom):
            self.waits[model.name] = f"waits for room: {_listed(sorted(self.coming))} is loaded first"
        elif self.kept:
            self.waits[model.name] = f"waits for room: {_listed(sorted(set(self.kept.values())))} comes first"

    def _wait(self, model: DesiredModel, candidates: Sequence[Resident], starves_at: float) -> None:
        blockers = self._go(model, candidates) or ()
        busy_candidates = [each for each in blockers if each.busy]
        reason = "in use" if busy_candidates else "loaded only just now"
        self.waits[model.name] = f"waits for room: {_names(blockers)} {'are' if len(blockers) > 1 else 'is'} {reason}"
        self.wakes += [each.stays_until for each in candidates if each.stays_until > self.now]
        if busy_candidates and starves_at > self.now:
            self.wakes.append(starves_at)

    def _go(self, model: DesiredModel, candidates: Sequence[Resident]) -> Collection[Resident] | None:
        """The first of these whose going makes room, and none that need not go; None: all of them do not."""
        for count in range(1, len(candidates) + 1):
            victims = list(candidates[:count])
            if isinstance(self._place(model, self._without(victims)), NoRoom):
                continue
            for each in reversed(candidates[: count - 1]):
                fewer_victims = [other for other in victims if other is not each]
                if not isinstance(self._place(model, self._without(fewer_victims)), NoRoom):
                    victims = fewer_victims
            return victims
        return None

    def _without(self, victims: Iterable[Resident]) -> Ledger:
        return self.ledger.without_replicas([replica for each in victims for replica in each.replicas], self.observed)


def _names(candidates: Iterable[Resident]) -> str:
    return _listed(sorted(each.name for each in candidates))


def _listed(names: Sequence[str]) -> str:
    return " and ".join(names) or "others"
