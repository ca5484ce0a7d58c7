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

    def line(self, want: DesiredModel | None) -> tuple[int, float, str]:
        """A model's place in the line for room, the least first."""
        return self.places.get(want.name, _SEATED) if want is not None else _SEATED


def settle(desired: DesiredState, observed: ObservedState, ledger: Ledger, now: float) -> Residency:
    """Decide. `ledger` has the claims of all that is not seen gone; it is not changed."""
    woken = _woken(desired, observed)
    names = tuple(name for name, want in woken.models.items() if want is not desired.models[name])
    alive = alive_of(observed)
    residents = {
        name: resident
        for name, want in woken.models.items()
        if (resident := resident_of(want, alive.get(name, ()), observed, now)) is not None
    }
    missing = missing_of(woken, observed)
    if not missing and not residents:
        return Residency(woken, woken=names)
    leaving = leaving_of(woken, observed, now)
    seats = _Seats(
        woken,
        observed,
        now,
        residents,
        missing,
        given=ledger,
        free=ledger.without(()),
        ledger=ledger.without_replicas(leaving, observed),
        leaving=sorted({each.id.model for each in leaving}),
        coming=coming_of(woken, observed, residents),
    )
    homeless = sorted((woken.models[name] for name in missing), key=seats.line)
    for want in homeless:
        seats.seat(want)
    seats.rest_unused()
    models = dict(woken.models)
    for name, (since, reason) in seats.resting.items():
        models[name] = replace(
            models[name],
            replicas=0,
            demand_replicas=models[name].replicas,
            statement=Statement("autoload", since, f"{reason}; the next request loads it"),
            drain_ends=False,
        )
    return Residency(
        replace(woken, models=models),
        {name: reason for name, (_, reason) in seats.resting.items()},
        seats.waits,
        names,
        {want.name: seats.line(want) for want in homeless},
        tuple(seats.wakes),
    )


def _woken(desired: DesiredState, observed: ObservedState) -> DesiredState:
    """What requests wait for is wanted again, though it was let go."""
    models = dict(desired.models)
    for name, want in desired.models.items():
        use = observed.uses.get(name, UNUSED)
        if want.demand_replicas and want.autoload and use.waiting:
            since = observed.at if use.waits_since is None else use.waits_since
            statement = Statement("autoload", since, "autoload: requests wait for it")
            models[name] = replace(want, replicas=want.demand_replicas, demand_replicas=0, statement=statement)
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

    def line(self, want: DesiredModel) -> tuple[int, float, str]:
        """What the files or an operator want comes first, then whose requests have waited longest."""
        if want.statement.kind != "autoload":
            return 0, want.statement.since, want.name
        use = self.observed.uses.get(want.name, UNUSED)
        return 1 if self._is_awaited(want) else 2, use.waits_since or want.statement.since, want.name

    def seat(self, want: DesiredModel) -> None:
        """Room for a model's missing replicas, of what is free or will be."""
        if self._cannot_start(want):
            return
        self._seek(want)
        seatless = want.name not in self.waits and want.name not in self.resting and want.name not in self.seated
        if seatless and not isinstance(self._place(want, self.given), NoRoom):
            self.waits[want.name] = f"waits for room: {_listed(sorted(self.seated))} comes first"

    def _seek(self, want: DesiredModel) -> None:
        taken = self._place(want, self.ledger)
        if not isinstance(taken, NoRoom):
            self._take(want, taken)
            at_once = self._place(want, self.free)
            if not isinstance(at_once, NoRoom):
                for claims in at_once:
                    self.free.add(claims, model=want.name)
            elif not at_once.waiting:
                self.waits[want.name] = f"waits until {_listed(self.leaving)} left"
        elif taken.waiting:
            return
        elif want.statement.kind == "autoload" and not self._is_awaited(want):
            self.resting[want.name] = (want.statement.since, "no request waits for it any more")
        else:
            self._make_room(want)

    def rest_unused(self) -> None:
        """Let go what has not been used for its `idle_ttl_s`."""
        for resident in self.residents.values():
            ttl = self.desired.models[resident.name].idle_ttl_s
            if ttl is None or resident.busy or resident.name in self.resting:
                continue
            due = max(resident.idle_since + ttl, resident.stays_until)
            if self.now >= due:
                self.resting[resident.name] = (due, f"not used for {ttl:g} s")
            else:
                self.wakes.append(due)

    def _is_awaited(self, want: DesiredModel) -> bool:
        waiting = self.observed.uses.get(want.name, UNUSED).waiting
        # Unknown is not none.
        return waiting != 0 or 0 <= self.now - want.statement.since < FRESH_DEMAND_S

    def _cannot_start(self, want: DesiredModel) -> bool:
        keys = (ReplicaKey(want.name, index, want.spec_hash) for index in self.missing[want.name])
        failures = map(self.observed.failures.get, keys)
        return any(failure is not None and failure.waits(self.now) for failure in failures)

    def _take(self, want: DesiredModel, taken: Iterable[Mapping[str, int]]) -> None:
        self.seated.add(want.name)
        for claims in taken:
            self.ledger.add(claims, model=want.name)
            if may_go(want):
                self.coming.setdefault(want.name, []).append(claims)

    def _place(self, want: DesiredModel, ledger: Ledger) -> list[Mapping[str, int]] | NoRoom:
        """What all missing replicas of the model would take."""
        scratch, taken = ledger.without(()), []
        for _ in self.missing[want.name]:
            placed = place(want, self.observed, scratch)
            if isinstance(placed, NoRoom):
                return placed
            scratch.add(placed.claims, model=want.name)
            taken.append(placed.claims)
        return taken

    def _make_room(self, want: DesiredModel) -> None:
        taken = self.resting.keys() | self.kept.keys() | {want.name}
        others = [each for name, each in self.residents.items() if name not in taken]
        ordered = sorted(others, key=lambda each: each.order(self.now))
        if self._go(want, ordered) is None:
            self._await_loads(want, ordered)
            return
        use = self.observed.uses.get(want.name, UNUSED)
        since = use.waits_since or want.statement.since
        starves_at = since + self.desired.swap_wait_s
        starving = self.now >= starves_at
        free = [
            each for each in ordered if self.now >= each.stays_until and (not each.busy or (starving and each.is_known))
        ]
        going = self._go(want, free)
        if going is None:
            self._wait(want, ordered, starves_at)
            if starving:
                self._keep(want, self._go(want, ordered) or ())
        elif not self._is_checked(want, going):
            self.waits[want.name] = "waits for room, once it is known that it can be started"
        else:
            for each in going:
                self.resting[each.name] = (since, f"makes room for {want.name}")
            self.waits[want.name] = f"waits until {_names(going)} left"
            self._keep(want, going)

    def _is_checked(self, want: DesiredModel, going: Iterable[Resident]) -> bool:
        """Whether a start is known to be possible. While somebody leaves for it, the last check holds until the
        next."""
        checked = self.observed.preflights.get((want.name, want.spec_hash))
        if checked is None or not checked.ok:
            return False
        later = self.now - CHECKED_ANEW_S if any(each.leaves for each in going) else self.now
        return any(checked.is_fresh(at, self.desired.preflight_recheck_s) for at in (self.now, later))

    def _keep(self, want: DesiredModel, going: Iterable[Resident]) -> None:
        """What goes, or will, still takes its room: to others it is that of the one that it goes for."""
        self.kept.update({each.name: want.name for each in going})
        self.ledger = self._without(going)
        seated = self._place(want, self.ledger)
        self._take(want, () if isinstance(seated, NoRoom) else seated)

    def _await_loads(self, want: DesiredModel, ordered: Iterable[Resident]) -> None:
        """It waits for what is being loaded now, if that can make room later; if not, the plan says what is missing."""
        claims = (claims for each in self.coming.values() for claims in each)
        if not isinstance(self._place(want, self._without(ordered).without(claims)), NoRoom):
            self.waits[want.name] = f"waits for room: {_listed(sorted(self.coming))} is loaded first"
        elif self.kept:
            self.waits[want.name] = f"waits for room: {_listed(sorted(set(self.kept.values())))} comes first"

    def _wait(self, want: DesiredModel, ordered: Sequence[Resident], starves_at: float) -> None:
        blockers = self._go(want, ordered) or ()
        busy = [each for each in blockers if each.busy]
        why = "in use" if busy else "loaded only just now"
        self.waits[want.name] = f"waits for room: {_names(blockers)} {'are' if len(blockers) > 1 else 'is'} {why}"
        self.wakes += [each.stays_until for each in ordered if each.stays_until > self.now]
        if busy and starves_at > self.now:
            self.wakes.append(starves_at)

    def _go(self, want: DesiredModel, ordered: Sequence[Resident]) -> Collection[Resident] | None:
        """The first of these whose going makes room, and none that need not go; None: all of them do not."""
        for count in range(1, len(ordered) + 1):
            going = list(ordered[:count])
            if isinstance(self._place(want, self._without(going)), NoRoom):
                continue
            for each in reversed(ordered[: count - 1]):
                fewer = [other for other in going if other is not each]
                if not isinstance(self._place(want, self._without(fewer)), NoRoom):
                    going = fewer
            return going
        return None

    def _without(self, going: Iterable[Resident]) -> Ledger:
        return self.ledger.without_replicas([replica for each in going for replica in each.replicas], self.observed)


def _names(residents: Iterable[Resident]) -> str:
    return _listed(sorted(each.name for each in residents))


def _listed(names: Sequence[str]) -> str:
    return " and ".join(names) or "others"
