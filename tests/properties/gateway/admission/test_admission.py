"""Properties of admission: whatever happens in whatever order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from contract.errors import RoundhouseError
from contract.routing import Endpoint, ModelRoute
from contract.status import ModelState
from gateway.admission.admission import Admission
from gateway.admission.circuit_breaker import FAILURES
from gateway.admission.fair_queue import MOST_OVERTAKEN
from gateway.admission.ticket import MAX_BREAKS, Grant, Ticket
from tests.support.admission import route_of, routes_of, where
from tests.support.campaign import campaign_count

MODELS: Final = ("m", "n")
QUEUE_LIMIT: Final = 3

tables = st.fixed_dictionaries(
    {},
    optional={
        name: st.builds(
            lambda name, replicas, target, limit, *, loaded: route_of(
                name,
                sorted(f"{name}{number}" for number in replicas) if loaded else (),
                target=target,
                queue_limit=limit,
                state=ModelState.LOADED if loaded else ModelState.LOADING,
            ),
            st.just(name),
            st.sets(st.integers(0, 3)),
            st.integers(1, 3),
            st.none() | st.integers(0, 6),
            loaded=st.sampled_from((True, True, True, False)),
        )
        for name in MODELS
    },
)


class AdmissionMachine(RuleBasedStateMachine):
    """Keeps its own account of everything, by other means, and compares."""

    def __init__(self) -> None:
        super().__init__()
        self.admission = Admission(QUEUE_LIMIT)
        self.now = 1000.0
        self.models: dict[str, ModelRoute] = {}
        self.inside: list[Ticket] = []
        self.waiting: list[Ticket] = []
        self.gone: list[Ticket] = []
        self.failures: Counter[str] = Counter()
        self.met: dict[Ticket, list[tuple[str, bool]]] = {}
        self.before: Counter[str] = Counter()
        self.overtaken: Counter[Ticket] = Counter()

    @initialize(models=tables)
    def first_table(self, models: dict[str, ModelRoute]) -> None:
        self.table(models)

    @rule(models=tables)
    def table(self, models: dict[str, ModelRoute]) -> None:
        self.models = models
        routed = {each.replica for route in models.values() for each in route.endpoints}
        self.failures = Counter(
            {name: count for name, count in self.failures.items() if name in routed or name in self._inside()}
        )
        self._take(self.admission.apply_table(routes_of(*models.values()), self.now))

    @precondition(lambda self: self.models)
    @rule(
        data=st.data(),
        tenant=st.sampled_from("abc"),
        weight=st.sampled_from((1.0, 3.0)),
        rank=st.integers(0, 2),
        prefix=st.sampled_from(([], [1], [2, 1], [3, 2, 1])),
        slots=st.sampled_from((1, 1, 1, 2, 3)),
    )
    def arrive(self, data: st.DataObject, tenant: str, weight: float, rank: int, prefix: list[int], slots: int) -> None:
        route = self.models[data.draw(st.sampled_from(sorted(self.models)))]
        ticket = Ticket(None, route.name, tenant, weight, rank, prefix, slots)
        self.met[ticket] = []
        waiting = self.admission.waiting_tickets(route.name)
        may_wait = (QUEUE_LIMIT if route.queue_limit is None else route.queue_limit) * max(1, len(route.endpoints))
        try:
            endpoint = self.admission.admit_ticket(ticket, self.now)
        except RoundhouseError as error:
            assert ticket.state == "new"
            if error.entry.code == "queue_full":
                assert len(waiting) >= may_wait
                assert ticket.place is not None
                assert ticket.place[:2] == (2 + len(waiting), 2 + len(waiting))
            else:
                _is_unreachable(error)
                assert route.state is ModelState.LOADED
                assert all(self.failures[each.replica] >= FAILURES for each in route.endpoints)
            return
        assert ticket.place is not None
        if endpoint is not None:
            assert ticket.place[:3] == (1, 1 + len(waiting), 0)
            assert all(self.met[each] or each.slots > slots for each in waiting), "one that fits was passed"
            self.inside.append(ticket)
            self._went(ticket, endpoint)
        else:
            assert len(waiting) < may_wait
            assert ticket.place.position == 2 + self.admission.waiting_tickets(route.name).index(ticket)
            assert ticket.place.depth == 2 + len(waiting)
            self.waiting.append(ticket)

    @precondition(lambda self: self.inside or self.waiting or self.gone)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        ticket = data.draw(st.sampled_from([*self.inside, *self.waiting, *self.gone[-2:]]), "who")
        self._leave(ticket)

    def _leave(self, ticket: Ticket) -> None:
        for group in (self.inside, self.waiting):
            if ticket in group:
                group.remove(ticket)
                self.gone.append(ticket)
        self._take(self.admission.release_ticket(ticket, self.now))

    @precondition(lambda self: self.inside)
    @rule(data=st.data(), refused=st.booleans())
    def fail_before_the_first_byte(self, data: st.DataObject, refused: bool) -> None:
        ticket = data.draw(st.sampled_from(self.inside), "who")
        replica = where(ticket)
        self._failed(replica)
        self.met[ticket].append((replica, refused))
        try:
            endpoint, grants = self.admission.retry_ticket(ticket, self.now, is_refused=refused)
        except RoundhouseError as error:
            _is_unreachable(error)
            assert where(ticket) == replica
            self._leave(ticket)
            return
        broken = [name for name, was_refused in self.met[ticket] if not was_refused]
        assert len(broken) < MAX_BREAKS
        assert ticket.retries.break_count == len(broken)
        if endpoint is not None:
            self._went(ticket, endpoint)
        else:
            self.inside.remove(ticket)
            self.waiting.append(ticket)
        self._take(grants)

    @precondition(lambda self: self.inside)
    @rule(data=st.data())
    def die_in_the_answer(self, data: st.DataObject) -> None:
        ticket = data.draw(st.sampled_from(self.inside), "who")
        self._failed(where(ticket))
        self._leave(ticket)

    @precondition(lambda self: self.inside)
    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        replica = where(data.draw(st.sampled_from(self.inside), "who"))
        self.failures.pop(replica, None)
        self._take(self.admission.record_answer(replica, self.now))

    @rule(seconds=st.sampled_from((0.25, 1.0, 60.0)))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self._take(self.admission.admit_trials(self.now))

    @precondition(lambda self: any(route.endpoints for route in self.models.values()))
    @rule(data=st.data())
    def choose(self, data: st.DataObject) -> None:
        route = self.models[data.draw(st.sampled_from(sorted(self.models)))]
        taken = dict(self.admission.slots_in_use)
        try:
            assert self.admission.choose_replica(route, self.now) in route.endpoints
        except RoundhouseError:
            assert all(self.failures[each.replica] >= FAILURES for each in route.endpoints)
        assert self.admission.slots_in_use == taken

    @invariant()
    def counts_are_the_tickets(self) -> None:
        assert all(ticket.state == "inside" for ticket in self.inside)
        assert all(ticket.state == "waiting" for ticket in self.waiting)
        assert all(ticket.state == "gone" for ticket in self.gone)
        assert self.admission.slots_in_use == self._inside()
        assert self.admission.slots_in_use_by_model == Counter(ticket.model for ticket in self.inside)
        assert self.admission.depths == Counter(ticket.model for ticket in self.waiting)
        for model in MODELS:
            order = self.admission.waiting_tickets(model)
            assert Counter(order) == Counter(each for each in self.waiting if each.model == model)
            for tenant in "abc":
                # Those that failed somewhere are in front, however they came there; the rest go by rank.
                ranks = [each.rank for each in order if each.tenant == tenant and not self.met[each]]
                assert ranks == sorted(ranks)

    @invariant()
    def no_replica_has_more_than_its_target(self) -> None:
        targets = {each.replica: route.target_inflight for route in self.models.values() for each in route.endpoints}
        taken = self._slots_taken()
        for replica, count in taken.items():
            # A table may have lowered the target, or taken the replica away: then nobody else went in.
            assert count <= max(targets.get(replica, 0), self.before[replica]), replica
        self.before = taken

    @invariant()
    def nobody_waits_who_could_go_in(self) -> None:
        taken = self._slots_taken()
        for ticket in self.waiting:
            route = self.models.get(ticket.model)
            for replica in self._candidates(ticket) if route else ():
                assert route is not None
                slots = min(ticket.slots, route.target_inflight)
                is_kept = any(self._is_overtaken(each) for each in self.waiting if each is not ticket)
                assert taken[replica] + slots > route.target_inflight or is_kept, (ticket, replica)

    @invariant()
    def nobody_waits_without_hope(self) -> None:
        for ticket in self.waiting:
            route = self.models.get(ticket.model)
            if route is not None and route.state is ModelState.LOADED:
                refused = {name for name, was_refused in self.met[ticket] if was_refused}
                assert any(each.replica not in refused for each in route.endpoints)

    def teardown(self) -> None:
        while everybody := [*self.waiting, *self.inside]:
            self._leave(everybody[len(everybody) // 2])
        assert (self.admission.slots_in_use, self.admission.slots_in_use_by_model, self.admission.depths) == (
            {},
            {},
            {},
        )
        self.admission.apply_table(routes_of(), self.now)
        assert repr(self.admission) == "Admission()"
        assert not self.admission._replicas

    def _inside(self) -> Counter[str]:
        return Counter(where(ticket) for ticket in self.inside)

    def _slots_taken(self) -> Counter[str]:
        taken: Counter[str] = Counter()
        for ticket in self.inside:
            taken[where(ticket)] += ticket.held_slots
        return taken

    def _is_overtaken(self, ticket: Ticket) -> bool:
        """Whether a replica may be kept for it."""
        return ticket.slots > 1 and self.overtaken[ticket] >= MOST_OVERTAKEN

    def _candidates(self, ticket: Ticket) -> Sequence[str]:
        """Replicas that are surely well and that it may go to."""
        refused = {name for name, was_refused in self.met[ticket] if was_refused}
        met = {name for name, _ in self.met[ticket]}
        names = [each.replica for each in self.models[ticket.model].endpoints if each.replica not in refused]
        untouched = [name for name in names if name not in met]
        return [name for name in untouched or names if self.failures[name] < FAILURES]

    def _failed(self, replica: str) -> None:
        self.failures[replica] += 1
        self._take(self.admission.record_failure(replica, self.now))

    def _went(self, ticket: Ticket, endpoint: Endpoint) -> None:
        for other in self.waiting:
            self.overtaken[other] += other.model == ticket.model and other.blocked_at is not None
        assert where(ticket) == endpoint.replica
        assert endpoint in self.models[ticket.model].endpoints
        assert (endpoint.replica, True) not in self.met[ticket]
        if (endpoint.replica, False) in self.met[ticket]:
            met = {name for name, _ in self.met[ticket]}
            routed = {each.replica for each in self.models[ticket.model].endpoints}
            assert all(self.failures[name] >= FAILURES for name in routed - met), "one that is well was left"

    def _take(self, grants: Sequence[Grant]) -> None:
        for ticket, outcome in grants:
            self.waiting.remove(ticket)
            if isinstance(outcome, Endpoint):
                self.inside.append(ticket)
                self._went(ticket, outcome)
            else:
                _is_unreachable(outcome)
                self.gone.append(ticket)


def _is_unreachable(error: RoundhouseError) -> None:
    assert error.entry.code == "engine_unreachable"


TestAdmission = AdmissionMachine.TestCase
TestAdmission.settings = settings(max_examples=campaign_count(25, 1_500), stateful_step_count=60)
