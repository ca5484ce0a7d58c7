"""Properties of sessions in admission: whatever comes, goes and fails in whatever order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from contract.errors import RoundhouseError
from contract.routing import Endpoint, ModelRoute
from contract.status import ModelState
from gateway.admission.admission import Admission
from gateway.admission.fair_queue import MOST_OVERTAKEN
from gateway.admission.ticket import NO_RETRIES, Grant, SessionPlacement, Ticket
from gateway.sessions import Sampling, SessionClaim, Transcript
from tests.support.admission import route_of, routes_of, where
from tests.support.campaign import campaign_count
from tests.support.outcomes import present

CAPACITY = 3

tables = st.builds(
    lambda replicas, target, binding, state: route_of(
        "m",
        sorted(f"m{number}" for number in replicas) if state is ModelState.LOADED else (),
        target=target,
        queue_limit=20,
        state=state,
        session_cache=CAPACITY,
        session_binding=binding,
    ),
    st.sets(st.integers(0, 2), min_size=1),
    st.integers(1, 3),
    st.sampled_from(("slot", "slot", "slot", "name", "conversation", None)),
    st.sampled_from((ModelState.LOADED,) * 4 + (ModelState.LOADING, ModelState.UNLOADED)),
)
claims = st.none() | st.builds(
    lambda name, length, temperature: SessionClaim(
        name.encode() * 16, Transcript([f"{name}{number}" for number in range(length)]), Sampling(temperature)
    ),
    st.sampled_from("abcde"),
    st.integers(1, 4),
    st.sampled_from((None, None, None, 1.0)),
)


class SessionMachine(RuleBasedStateMachine):
    """Keeps its own account of whose cache each slot of an engine has, and compares."""

    def __init__(self) -> None:
        super().__init__()
        self.admission = Admission(20)
        self.now = 1000.0
        self.route: ModelRoute
        self.inside: list[Ticket] = []
        self.waiting: list[Ticket] = []
        self.contents: dict[tuple[str, int], bytes | None] = {}
        """Replica and slot to the session that it last computed; None: a request without one."""

    @initialize(route=tables)
    def first_table(self, route: ModelRoute) -> None:
        self.table(route)

    @rule(route=tables)
    def table(self, route: ModelRoute) -> None:
        self.route = route
        self._take(self.admission.apply_table(routes_of(route), self.now))

    @rule(claim=claims, slots=st.sampled_from((1, 1, 1, 1, 2)), prefix=st.sampled_from(([], [1], [2, 1])))
    def arrive(self, claim: SessionClaim | None, slots: int, prefix: list[int]) -> None:
        ticket = Ticket(None, "m", "t", 1.0, 1, prefix, slots, None, claim)
        try:
            endpoint = self.admission.admit_ticket(ticket, self.now)
        except RoundhouseError:
            return
        if endpoint is None:
            self.waiting.append(ticket)
        else:
            self._entered(ticket)

    @precondition(lambda self: self.inside)
    @rule(data=st.data(), tokens=st.sampled_from((None, 0, 100, 5_000)))
    def leave(self, data: st.DataObject, tokens: int | None) -> None:
        ticket = data.draw(st.sampled_from(self.inside), "who")
        if ticket.session is not None:
            ticket.session.held_tokens = tokens
        self._leave(ticket)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        self._leave(data.draw(st.sampled_from(self.waiting), "who"))

    @precondition(lambda self: self.inside)
    @rule(data=st.data(), refused=st.booleans())
    def fail_before_the_first_byte(self, data: st.DataObject, refused: bool) -> None:
        ticket = data.draw(st.sampled_from(self.inside), "who")
        self._take(self.admission.record_failure(where(ticket), self.now))
        try:
            endpoint, grants = self.admission.retry_ticket(ticket, self.now, is_refused=refused)
        except RoundhouseError:
            self._leave(ticket)
            return
        self.inside.remove(ticket)
        if endpoint is None:
            self.waiting.append(ticket)
        else:
            self._entered(ticket)
        self._take(grants)

    @precondition(lambda self: self.inside)
    @rule(data=st.data(), seconds=st.sampled_from((0.1, 1.0, 20.0)))
    def answer(self, data: st.DataObject, seconds: float) -> None:
        ticket = data.draw(st.sampled_from(self.inside), "who")
        self.admission.record_prompt(ticket, 1_000, seconds)
        self._take(self.admission.record_answer(where(ticket), self.now))

    @rule(seconds=st.sampled_from((0.25, 2.0, 1_000.0)))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self._take(self.admission.admit_trials(self.now))

    @invariant()
    def a_slot_serves_one_request(self) -> None:
        taken = Counter((where(each), each.engine_slot) for each in self.inside if each.engine_slot is not None)
        assert set(taken.values()) <= {1}, taken

    @invariant()
    def sessions_and_slots_agree(self) -> None:
        for name, placement in self._placements().items():
            inside = [each for each in self.inside if where(each) == name]
            assert len(placement.sessions) <= max(CAPACITY, len(inside))
            if placement.slots is None:
                assert all(each.engine_slot is None for each in inside)
                continue
            placed = placement._slots_by_ticket
            assert placement.slots.unplaced_count == sum(each not in placed for each in inside)
            assert all(each.engine_slot == slot for each, slot in placed.items())
            held = {}
            for key in placement.sessions:
                session = present(placement.sessions.find_session(key))
                if session.slot is not None:
                    held[session.slot] = key
            assert {slot: key for slot, key in enumerate(placement.slots._holders) if key is not None} == held

    @invariant()
    def who_waits_while_a_replica_has_room_waits_for_a_full_home_or_behind_a_large_request(self) -> None:
        for ticket in self.waiting:
            if ticket.session is None or ticket.session.waits_since is None or ticket.slots > 1:
                continue
            assert ticket.session.waits_since <= self.now
        queue = self.admission._queues["m"]
        well = [
            replica
            for replica in queue.replicas
            if replica.slots_taken < self.route.target_inflight and replica.breaker is None
        ]
        strangers = [
            each for each in self.waiting if each.session is None and each.slots == 1 and each.retries is NO_RETRIES
        ]
        patience = max(MOST_OVERTAKEN, 2 * self.route.target_inflight)
        is_one_kept = any(
            each.blocked_at is not None and queue._entered_count - each.blocked_at >= patience for each in self.waiting
        )
        assert not strangers or len(well) <= is_one_kept, "a stranger waits for no home, and for no large request"

    def _placements(self) -> dict[str, SessionPlacement]:
        replicas = self.admission._replicas.values()
        return {each.endpoint.replica: each.placement for each in replicas if each.placement is not None}

    def _entered(self, ticket: Ticket) -> None:
        self.inside.append(ticket)
        replica, slot, claim = where(ticket), ticket.engine_slot, ticket.session
        if claim is not None:
            assert claim.decision in ("new", "reused", "rebuilt")
        if slot is None:
            # The engine may put it anywhere that is idle.
            busy = {each.engine_slot for each in self.inside if where(each) == replica}
            for place in [place for place in self.contents if place[0] == replica and place[1] not in busy]:
                del self.contents[place]
            return
        before = self.contents.get((replica, slot))
        is_known = (replica, slot) in self.contents
        if claim is not None and claim.decision == "reused" and is_known:
            assert before == claim.key, "another's cache"
        self.contents[replica, slot] = None if claim is None else claim.key

    def _leave(self, ticket: Ticket) -> None:
        (self.inside if ticket in self.inside else self.waiting).remove(ticket)
        self._take(self.admission.release_ticket(ticket, self.now))

    def _take(self, grants: Sequence[Grant]) -> None:
        for ticket, outcome in grants:
            self.waiting.remove(ticket)
            if isinstance(outcome, Endpoint):
                self._entered(ticket)

    def teardown(self) -> None:
        while everybody := [*self.waiting, *self.inside]:
            self._leave(everybody[len(everybody) // 2])
        for placement in self._placements().values():
            assert placement.slots is None or placement.slots.unplaced_count == 0
            assert len(placement.sessions) <= CAPACITY
        self.admission.apply_table(routes_of(), self.now)
        assert not self.admission._replicas


TestSessions = SessionMachine.TestCase
TestSessions.settings = settings(max_examples=campaign_count(25, 800), stateful_step_count=60)
