"""Evicting models that requests loaded, when they are unused or another model needs their room. Pure.

A model may be evicted if a request would load it again (`autoload`), no operator loaded it, and it is not pinned. It is
evicted when it was not used for its `idle_ttl_s`, or when another model needs its room:

- among idle models, the one with the highest ratio of idle seconds to reload seconds is evicted first, at once;
- a busy model gets no new requests once another model has waited for `swap_wait_s`, and is stopped when it is empty;
- no model is evicted before it has been loaded for `min_residency_s`;
- no model is evicted for another whose start is not known to be possible, or that would not fit even then;
- an evicted replica that can sleep does so where what it then holds has room beside all that is wanted, else it is
  stopped. Of those that sleep, the ones that sleep longest are stopped once their memory is needed.

While one model holds the room, requests for another gather, and are then served together.

Invariants, held by tests/properties/controller/planning/test_eviction.py: no pinned or young model is evicted, and no
busy one unless another starves; no model is evicted unless the model that needs its room then fits; every wanted model
without room says why.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from controller.planning.actions import WAITING_FOR_ROOM
from controller.planning.eviction_candidates import (
    UNUSED,
    EvictionCandidate,
    alive_replicas,
    candidate_of,
    is_evictable,
    pending_models,
)
from controller.planning.hosts import find_file_sources
from controller.planning.placement import (
    ClaimLedger,
    NoRoom,
    Placement,
    StartHistory,
    explain_leaving,
    find_backoff,
    find_shortage,
    place_replica,
    place_sleeper,
)
from controller.planning.replica_changes import coming_replicas, leaving_replicas, missing_replicas
from controller.state import (
    DesiredModel,
    DesiredState,
    ObservedReplica,
    ObservedState,
    OpKind,
    Phase,
    PreflightKey,
    ReplicaKey,
    Sleep,
    Statement,
)

FRESH_DEMAND_S: Final = 5.0
"""Seconds for which a reported request counts as waiting, until the gateway's count of waiting requests comes."""
CHECKED_ANEW_S: Final = 10.0
"""Seconds that a preflight may be overdue while a model leaves for the one that was checked."""
_NOT_RELEASED: Final = f"{WAITING_FOR_ROOM}: memory of an engine that has ended is not free yet"
_SEATED: Final = (0, 0.0, "")


@dataclass(frozen=True, slots=True)
class EvictionDecision:
    """The result of `decide_evictions`: the desired state after the evictions, which models are evicted, which are
    wanted again, which wait for room, and when to decide again. Keys of mappings are model names. Nothing is carried
    out by it."""

    desired: DesiredState
    """The given desired state with this decision applied: models in `evicted` have 0 replicas, and models in
    `reload_requested` the number that they had before their eviction. The plan must be made for this state."""
    evicted: Mapping[str, str] = field(default_factory=dict)
    """Models to evict, to the reason. Only a request loads them again. A model is in each decision until the given
    desired state itself has it evicted."""
    wait_reasons: Mapping[str, str] = field(default_factory=dict)
    """Models that wait for room that others will leave, to the reason in words."""
    reload_requested: tuple[str, ...] = ()
    """Evicted models that are wanted again, because requests wait for them."""
    queue_places: Mapping[str, tuple[int, float, str]] = field(default_factory=dict)
    """Sort keys of the models that lack a replica; see `RoomAllocator.order_queue`."""
    wake_times: tuple[float, ...] = ()
    """Unix times at which the decision may change by time alone."""
    sleeping: frozenset[str] = frozenset()
    """Names of the replicas that sleep on, and of those that leave by eviction and go to sleep once they are empty."""
    waking: frozenset[str] = frozenset()
    """Names of the sleeping replicas that got room to be woken."""
    checked_hosts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Models that wait for a check of their start before others are evicted for them, to the names of the hosts."""

    def queue_place(self, model: DesiredModel | None) -> tuple[int, float, str]:
        """Return the sort key of a model in the queue for room; the least gets room first. None (a model that is not
        declared) and models that are not in the queue come before all others."""
        return self.queue_places.get(model.name, _SEATED) if model is not None else _SEATED


def decide_evictions(
    desired: DesiredState, observed: ObservedState, ledger: ClaimLedger, now: float
) -> EvictionDecision:
    """Decide which models to evict, which models evicted earlier are wanted again, and which models wait for room.

    Returns the desired state with these decisions applied (an evicted model has 0 replicas there), and for each evicted
    or waiting model the reason in words. Nothing is carried out, and no argument is changed. `ledger`: the claims of
    all replicas that are not seen gone (`ClaimLedger.of`). `now`: Unix time in seconds.
    """
    desired_on_demand = _request_reloads(desired, observed)
    reload_names = tuple(name for name, model in desired_on_demand.models.items() if model is not desired.models[name])
    alive_by_model, pending_names = alive_replicas(observed), pending_models(observed)
    evictable = [
        candidate
        for name, model in desired_on_demand.models.items()
        if (candidate := candidate_of(model, alive_by_model.get(name, ()), observed, now, pending_names)) is not None
    ]
    candidates = {each.name: each for each in sorted(evictable, key=lambda each: each.eviction_order(now))}
    missing_indices = missing_replicas(desired_on_demand, observed)
    sleepable = [each for each in observed.replicas if each.sleep is not None and each.phase is Phase.RUNNING]
    if not missing_indices and not candidates and not sleepable:
        return EvictionDecision(desired_on_demand, reload_requested=reload_names)
    leaving = leaving_replicas(desired_on_demand, observed)
    prompt = [each for each, since in leaving if now - since < desired.swap_wait_s]
    slow = [each for each, since in leaving if now - since >= desired.swap_wait_s]
    allocator = RoomAllocator(
        desired_on_demand,
        observed,
        now,
        candidates,
        missing_indices,
        current_ledger=ledger,
        free_ledger=ledger.copy_without(()),
        future_ledger=ledger.copy_as_promised([*prompt, *ledger.sleepers.values()], observed),
        leaving=prompt,
        slowly_leaving=slow,
        coming_claims=coming_replicas(desired_on_demand, observed, candidates),
    )
    unplaced_models = sorted((desired_on_demand.models[name] for name in missing_indices), key=allocator.order_queue)
    for model in unplaced_models:
        allocator.allocate_room(model)
    allocator.evict_unused()
    models = dict(desired_on_demand.models)
    for name, (since, reason) in allocator.evicted.items():
        models[name] = replace(
            models[name],
            replicas=0,
            demand_replicas=models[name].replicas,
            statement=Statement("autoload", since, f"{reason}; the next request loads it"),
            drain_ends=False,
        )
    waking = frozenset(allocator.woken)
    return EvictionDecision(
        replace(desired_on_demand, models=models),
        {name: reason for name, (_, reason) in allocator.evicted.items()},
        allocator.wait_reasons,
        reload_names,
        {model.name: allocator.order_queue(model) for model in unplaced_models},
        tuple(allocator.wake_times),
        allocator.settle_sleepers(models, [each for each in sleepable if each.name not in waking]),
        waking,
        allocator.checked_hosts,
    )


def _request_reloads(desired: DesiredState, observed: ObservedState) -> DesiredState:
    """Return the desired state in which evicted models are wanted again that requests wait for."""
    models = dict(desired.models)
    for name, model in desired.models.items():
        traffic = observed.traffic.get(name, UNUSED)
        if model.demand_replicas and model.autoload and traffic.waiting:
            since = observed.at if traffic.waits_since is None else traffic.waits_since
            statement = Statement("autoload", since, "autoload: requests wait for it")
            models[name] = replace(model, replicas=model.demand_replicas, demand_replicas=0, statement=statement)
    return replace(desired, models=models)


@dataclass(slots=True)
class RoomAllocator:
    """The working state of one call of `decide_evictions`: it gives room to models that lack replicas, and chooses the
    models to evict for them. `decide_evictions` calls `allocate_room` for each model of `missing_indices` in the order
    of `order_queue`, then `evict_unused`, then reads `evicted`, `wait_reasons` and `wake_times`. `now`: Unix time in
    seconds."""

    desired: DesiredState
    observed: ObservedState
    now: float
    candidates: dict[str, EvictionCandidate]
    """By model name, in the order of `eviction_order`: the first is evicted first."""
    missing_indices: Mapping[str, tuple[int, ...]]
    current_ledger: ClaimLedger
    """Claims of what runs or starts now."""
    free_ledger: ClaimLedger
    """`current_ledger`, and the claims of models that got free room before in this decision."""
    future_ledger: ClaimLedger
    """Claims as they will be: without leaving and evicted replicas, with those of all models that got room."""
    leaving: list[ObservedReplica]
    """Replicas that leave, whose room is waited for before a model is evicted."""
    slowly_leaving: list[ObservedReplica]
    """Replicas that began to leave `swap_wait_s` ago or earlier, whose room is waited for only if no eviction helps."""
    coming_claims: dict[str, list[Mapping[str, int]]]
    """Result of `coming_replicas`, and the claims of models that got room before in this decision."""
    room_holders: dict[str, str] = field(default_factory=dict)
    """Candidates to the model that gets their room."""
    evicted: dict[str, tuple[float, str]] = field(default_factory=dict)
    """Result: evicted models to the Unix time since which the reason for it holds, and the reason."""
    wait_reasons: dict[str, str] = field(default_factory=dict)
    """Result: models that wait for room, to what they wait for, in words."""
    allocated_models: set[str] = field(default_factory=set)
    """Models that got free, leaving or promised room in this decision."""
    woken: dict[str, ObservedReplica] = field(default_factory=dict)
    """Result: sleeping replicas that got room to be woken, by name."""
    wake_times: list[float] = field(default_factory=list)
    checked_hosts: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Result: see `EvictionDecision.checked_hosts`."""

    def order_queue(self, model: DesiredModel) -> tuple[int, float, str]:
        """Return the sort key of a model in the queue for room; the least gets room first.

        First come models that files or operators want, the longest wanted one first. Then come autoload models for
        which requests wait or may wait (their number is unknown, or the demand is less than 5 s old), the one whose
        requests have waited longest first. Autoload models without waiting requests come last.
        """
        if model.statement.kind != "autoload":
            return 0, model.statement.since, model.name
        traffic = self.observed.traffic.get(model.name, UNUSED)
        return 1 if self._has_waiting_requests(model) else 2, traffic.waits_since or model.statement.since, model.name

    def allocate_room(self, model: DesiredModel) -> None:
        """Book room for all of a model's missing replicas: free room, room of leaving replicas, or room of models to
        evict, which are then noted in `evicted`.

        The model must be in `missing_indices`. If it must wait, the reason is noted in `wait_reasons`; a model that
        would not fit even then gets neither room nor reason. An autoload model without room and without waiting
        requests is itself noted in `evicted`. Do nothing while a missing replica's backoff runs, or while the model's
        files are not here.
        """
        if self._cannot_start(model):
            return
        self._seek_room(model)
        has_no_room = (
            model.name not in self.wait_reasons
            and model.name not in self.evicted
            and model.name not in self.allocated_models
        )
        if has_no_room and not isinstance(self._place_missing(model, self.current_ledger), NoRoom):
            self.wait_reasons[model.name] = (
                f"{WAITING_FOR_ROOM}: {_join_names(sorted(self.allocated_models))} comes first"
            )

    def _seek_room(self, model: DesiredModel) -> None:
        placement = self._place_missing(model, self.future_ledger)
        if self._makes_room_to_wake(model, placement):
            return
        if not isinstance(placement, NoRoom):
            self._claim_room(model, placement)
            placement_now = self._place_missing(model, self.free_ledger)
            if isinstance(placement_now, NoRoom) and placement_now.is_releasing:
                self.wait_reasons[model.name] = _NOT_RELEASED
            elif not isinstance(placement_now, NoRoom) and _count_wakes(placement_now) == _count_wakes(placement):
                for each in placement_now:
                    _book_placement(self.free_ledger, each, model)
            elif not isinstance(placement_now, NoRoom) or not placement_now.waiting:
                # Also one that is to wake where others leave and could be started elsewhere at once.
                self.wait_reasons[model.name] = explain_leaving(self.leaving or self.free_ledger.sleepers.values())
        elif placement.waiting:
            return
        elif model.statement.kind == "autoload" and not self._has_waiting_requests(model):
            self.evicted[model.name] = (model.statement.since, "no request waits for it any more")
        else:
            self._make_room(model)

    def evict_unused(self) -> None:
        """Note in `evicted` the candidates that are not busy, were not used for their `idle_ttl_s` seconds, and have
        been loaded for their `min_residency_s`. For the other idle candidates with an `idle_ttl_s`, note in
        `wake_times` when both times are over. Candidates without an `idle_ttl_s` stay."""
        for candidate in self.candidates.values():
            ttl_s = self.desired.models[candidate.name].idle_ttl_s
            if ttl_s is None or candidate.is_busy or candidate.name in self.evicted:
                continue
            due_at = max(candidate.idle_since + ttl_s, candidate.stays_until)
            if self.now >= due_at:
                self.evicted[candidate.name] = (due_at, f"not used for {ttl_s:g} s")
                # What they claim asleep needs no room beside what they claim now.
                leaving = (*self.leaving, *self.slowly_leaving)
                staying = [each for each in candidate.replicas if each not in leaving]
                self.future_ledger = self._ledger_without_replicas(staying)
            else:
                self.wake_times.append(due_at)

    def _makes_room_to_wake(self, model: DesiredModel, placement: list[Placement] | NoRoom) -> bool:
        """Where a replica of the model sleeps and cannot be woken beside others, evict idle models for it that can
        sleep themselves: that takes less time than a start on other GPUs. Return whether that was done."""
        sleeping_count = sum(self._find_sleeper(model, index) is not None for index in self.missing_indices[model.name])
        if not sleeping_count or _count_wakes(placement) == sleeping_count:
            return False
        if model.statement.kind == "autoload" and not self._has_waiting_requests(model):
            return False
        idle_sleepers = (
            each
            for each in self._candidates_for(model)
            if not each.is_busy
            and self.now >= each.stays_until
            and all(replica.sleep is not None for replica in each.replicas)
        )
        victims = self._choose_victims(model, idle_sleepers, least_wakes=sleeping_count)
        if victims is not None:
            self._evict_for(model, victims)
        return victims is not None

    def settle_sleepers(
        self, models: Mapping[str, DesiredModel], sleepable: Iterable[ObservedReplica]
    ) -> frozenset[str]:
        """Return the names of the replicas that sleep on, and of those that leave by eviction and shall go to sleep:
        the ones whose claims asleep have room beside everything that is wanted. Those that sleep or leave since last
        come first. `models`: as decided. `sleepable`: running replicas that sleep or can, without those that are
        woken."""
        resting = [each for each in sleepable if self._may_rest(models.get(each.id.model), each)]
        sleeping = set()
        for replica in sorted(resting, key=lambda each: (-_asleep_since(each, self.now), each.name)):
            assert replica.sleep is not None, "only those that can sleep are given"
            claims, is_slow = self._readable_claims(replica.sleep), replica in self.slowly_leaving
            beside = self._ledger_without_replicas([replica]) if is_slow else self.future_ledger
            host = self.observed.find_host(replica.host)
            is_unknown = host is None or host.gpus is None
            if is_unknown or find_shortage(claims, self.observed, beside) is None:
                sleeping.add(replica.name)
                if not is_slow:  # whose claims are still in the ledger
                    self.future_ledger.add_claims(claims, model=replica.id.model, host=replica.host)
        return frozenset(sleeping)

    def _readable_claims(self, sleep: Sleep) -> Mapping[str, int]:
        """Return what a sleeper claims at rest, without GPUs that cannot be read now: nothing is placed on these."""
        claims = sleep.asleep_claims if sleep.rest_claims is None else sleep.rest_claims
        unread = {gpu.uuid for gpu in self.observed.unread_gpus}
        return {key: mib for key, mib in claims.items() if key not in unread}

    def _may_rest(self, model: DesiredModel | None, replica: ObservedReplica) -> bool:
        operation = self.observed.pending.get(replica.name)
        is_called_off = operation is not None and operation.kind is not OpKind.SLEEP
        if replica.silent is not None:
            return False
        if model is None or is_called_off or replica.id.spec_hash != model.spec_hash or replica.fault is not None:
            return False
        if model.replicas:  # it is wanted, and waits for room
            return replica.is_asleep and model.name not in self.allocated_models
        return replica.id.index < model.demand_replicas

    def _has_waiting_requests(self, model: DesiredModel) -> bool:
        waiting_count = self.observed.traffic.get(model.name, UNUSED).waiting
        # Unknown is not none.
        return waiting_count != 0 or 0 <= self.now - model.statement.since < FRESH_DEMAND_S

    def _cannot_start(self, model: DesiredModel) -> bool:
        if model.missing_source is not None:
            return True
        indices = self.missing_indices[model.name]
        return any(find_backoff(model, index, self.observed, self.now) is not None for index in indices)

    def _claim_room(self, model: DesiredModel, placements: Iterable[Placement]) -> None:
        self.allocated_models.add(model.name)
        for placement in placements:
            self.future_ledger.add_claims(placement.claims, model=model.name, host=placement.host)
            if placement.sleeper is not None:
                self.woken[placement.sleeper.name] = placement.sleeper
            if is_evictable(model):
                self.coming_claims.setdefault(model.name, []).append(placement.claims)

    def _place_missing(self, model: DesiredModel, ledger: ClaimLedger) -> list[Placement] | NoRoom:
        """Return the places of all missing replicas of the model on `ledger`, which is not changed. Where one sleeps
        and can be woken, that is its place."""
        scratch, placements = ledger.copy_without(()), []
        for index in self.missing_indices[model.name]:
            placement = self._place_index(model, index, scratch)
            if isinstance(placement, NoRoom):
                return placement
            _book_placement(scratch, placement, model)
            placements.append(placement)
        return placements

    def _place_index(self, model: DesiredModel, index: int, ledger: ClaimLedger) -> Placement | NoRoom:
        sleeper = self._find_sleeper(model, index)
        placement = None if sleeper is None else place_sleeper(sleeper, self.observed, ledger)
        if placement is None or (isinstance(placement, NoRoom) and not placement.waiting):
            history = StartHistory(model, index, self.observed, self.now, self.desired.preflight_recheck_s)
            return place_replica(model, self.observed, ledger, history)
        return placement

    def _find_sleeper(self, model: DesiredModel, index: int) -> ObservedReplica | None:
        key = ReplicaKey(model.name, index, model.spec_hash)
        sleepers = (each for each in self.current_ledger.sleepers.values() if each.fault is None)
        return next((each for each in sleepers if each.id.key == key), None)

    def _make_room(self, model: DesiredModel) -> None:
        if self._choose_victims(model, self._candidates_for(model)) is None:
            self._wait_for_others(model)
            return
        traffic = self.observed.traffic.get(model.name, UNUSED)
        since = traffic.waits_since or model.statement.since
        starves_at = since + self.desired.swap_wait_s
        is_starving = self.now >= starves_at
        evictable_now = (
            each
            for each in self._candidates_for(model)
            if self.now >= each.stays_until and (not each.is_busy or (is_starving and each.has_known_traffic))
        )
        victims = self._choose_victims(model, evictable_now)
        if victims is None:
            self._wait_for_candidates(model, starves_at)
            if is_starving:
                self._hold_room(model, self._choose_victims(model, self._candidates_for(model)) or ())
        elif not self._is_start_checked(model, victims):
            self.wait_reasons[model.name] = f"{WAITING_FOR_ROOM}: whether it can be started is being checked"
        else:
            self._evict_for(model, victims)

    def _evict_for(self, model: DesiredModel, victims: Collection[EvictionCandidate]) -> None:
        since = self.observed.traffic.get(model.name, UNUSED).waits_since or model.statement.since
        for each in victims:
            self.evicted[each.name] = (since, f"makes room for {model.name}")
        self.wait_reasons[model.name] = explain_leaving(replica for each in victims for replica in each.replicas)
        self._hold_room(model, victims)

    def _candidates_for(self, model: DesiredModel) -> Iterator[EvictionCandidate]:
        """Yield the candidates that may go for the model, whose room nobody has got yet, in the order of eviction."""
        for name, each in self.candidates.items():
            if name not in self.evicted and name not in self.room_holders and name != model.name:
                yield each

    def _is_start_checked(self, model: DesiredModel, victims: Iterable[EvictionCandidate]) -> bool:
        """Whether preflights say that the model can be started where its victims leave; the hosts are noted in
        `checked_hosts`. While a victim is already leaving, an overdue preflight counts for `CHECKED_ANEW_S`."""
        victims = list(victims)
        hosts: tuple[str, ...] = (self.observed.hosts[0].name,)
        if len(self.observed.hosts) > 1:
            placements = self._place_missing(model, self._ledger_without(victims))
            assert not isinstance(placements, NoRoom), "these victims make room"
            hosts = tuple(sorted({each.host for each in placements}))
        self.checked_hosts[model.name] = hosts
        lenient_now = self.now - CHECKED_ANEW_S if any(each.is_leaving for each in victims) else self.now
        return all(self._is_checked_on(model, host, lenient_now) for host in hosts)

    def _is_checked_on(self, model: DesiredModel, host: str, lenient_now: float) -> bool:
        preflight = self.observed.preflights.get(PreflightKey(model.name, model.spec_hash, host))
        if preflight is None or not preflight.ok:
            return False
        found = self.observed.find_host(host) if host else None
        if found is not None and find_file_sources(model.name, found, self.observed):
            return False
        return any(preflight.is_fresh(at, self.desired.preflight_recheck_s) for at in (self.now, lenient_now))

    def _hold_room(self, model: DesiredModel, victims: Iterable[EvictionCandidate]) -> None:
        """Book the room of the victims for the model, so that no other model takes it."""
        self.room_holders.update({each.name: model.name for each in victims})
        self.future_ledger = self._ledger_without(victims)
        placement = self._place_missing(model, self.future_ledger)
        self._claim_room(model, () if isinstance(placement, NoRoom) else placement)

    def _wait_for_others(self, model: DesiredModel) -> None:
        """Let the model wait for replicas that leave slowly, if they make room, or else for models that are being
        loaded, if their eviction can make room later. Otherwise no wait is noted, and the plan says what is missing."""
        later_ledger = self.future_ledger.copy_without_replicas(self.slowly_leaving, self.observed)
        placement = self._place_missing(model, later_ledger)
        if not isinstance(placement, NoRoom):
            # Booked beside the claims of those that leave, so that nobody takes what is free of it meanwhile.
            self._claim_room(model, placement)
            self.wait_reasons[model.name] = explain_leaving(self.slowly_leaving)
            return
        claims = (claims for each in self.coming_claims.values() for claims in each)
        last_ledger = self._ledger_without(self._candidates_for(model), later_ledger)
        if not isinstance(self._place_missing(model, last_ledger), NoRoom):
            self.wait_reasons[model.name] = explain_leaving(self.slowly_leaving)
        elif not isinstance(self._place_missing(model, last_ledger.copy_without(claims)), NoRoom):
            names = _join_names(sorted(self.coming_claims))
            self.wait_reasons[model.name] = f"{WAITING_FOR_ROOM}: {names} is loaded first"
        elif self.room_holders:
            names = _join_names(sorted(set(self.room_holders.values())))
            self.wait_reasons[model.name] = f"{WAITING_FOR_ROOM}: {names} comes first"

    def _wait_for_candidates(self, model: DesiredModel, starves_at: float) -> None:
        candidates = list(self._candidates_for(model))
        blockers = self._choose_victims(model, candidates) or ()
        busy_candidates = [each for each in blockers if each.is_busy]
        reason = "in use" if busy_candidates else "loaded only just now"
        self.wait_reasons[model.name] = (
            f"{WAITING_FOR_ROOM}: {_candidate_names(blockers)} {'are' if len(blockers) > 1 else 'is'} {reason}"
        )
        self.wake_times += [each.stays_until for each in candidates if each.stays_until > self.now]
        if busy_candidates and starves_at > self.now:
            self.wake_times.append(starves_at)

    def _choose_victims(
        self, model: DesiredModel, candidates: Iterable[EvictionCandidate], *, least_wakes: int = 0
    ) -> Collection[EvictionCandidate] | None:
        """Return the first candidates whose eviction makes room, without those that need not go. None: evicting all of
        them does not make room. `least_wakes`: how many of the model's replicas must be woken there, not started."""

        def is_enough(victims: list[EvictionCandidate]) -> bool:
            placement = self._place_missing(model, self._ledger_without(victims))
            return not isinstance(placement, NoRoom) and _count_wakes(placement) >= least_wakes

        victims: list[EvictionCandidate] = []
        for last in candidates:
            victims.append(last)
            if not is_enough(victims):
                continue
            for each in victims[-2::-1]:
                fewer_victims = [other for other in victims if other is not each]
                if is_enough(fewer_victims):
                    victims = fewer_victims
            return victims
        return None

    def _ledger_without(self, victims: Iterable[EvictionCandidate], ledger: ClaimLedger | None = None) -> ClaimLedger:
        return self._ledger_without_replicas([replica for each in victims for replica in each.replicas], ledger)

    def _ledger_without_replicas(
        self, replicas: Collection[ObservedReplica], ledger: ClaimLedger | None = None
    ) -> ClaimLedger:
        return (ledger or self.future_ledger).copy_without_replicas(replicas, self.observed)


def _count_wakes(placement: list[Placement] | NoRoom) -> int:
    return 0 if isinstance(placement, NoRoom) else sum(each.sleeper is not None for each in placement)


def _book_placement(ledger: ClaimLedger, placement: Placement, model: DesiredModel) -> None:
    """Book a place, without keeping its GPUs busy: whoever comes next may be placed beside it."""
    busy_replicas = dict(ledger.busy_replicas)
    if placement.sleeper is not None:
        ledger.book_wake(placement.sleeper, placement.claims)
    else:
        ledger.add_claims(placement.claims, model=model.name, host=placement.host)
    ledger.busy_replicas = busy_replicas


def _asleep_since(replica: ObservedReplica, now: float) -> float:
    return now if replica.sleep is None or replica.sleep.since is None else replica.sleep.since


def _candidate_names(candidates: Iterable[EvictionCandidate]) -> str:
    return _join_names(sorted(each.name for each in candidates))


def _join_names(names: Sequence[str]) -> str:
    return " and ".join(names) or "others"
