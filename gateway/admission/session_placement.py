"""Places requests in one replica, whose sessions and slots it keeps in step. Pure: `now` is monotonic seconds."""

from __future__ import annotations

from typing import NamedTuple

from controller.schema.routing import ModelRoute
from gateway.admission.engine_slots import EngineSlots
from gateway.admission.ticket import Ticket
from gateway.sessions.replica_sessions import ReplicaSessions, Session, SessionClaim


class SessionTerms(NamedTuple):
    """How many sessions each replica of a model keeps, and how requests name them; read from its `ModelRoute`.
    `slot_count`: slots of the engine; None: requests do not name their slot."""

    capacity: int
    """Maximum number of sessions that a replica keeps."""
    slot_count: int | None
    """Number of slots of the engine, if requests name their slot; None: they do not."""
    binds_sampling: bool
    """Whether a turn with other sampling fields than the turn before finds no cache and is `rebuilt`."""

    @classmethod
    def of(cls, route: ModelRoute) -> SessionTerms | None:
        """Return the terms of sessions for the model of `route`; None: its replicas keep no sessions."""
        if not route.session_cache:
            return None
        slot_count = route.target_inflight if route.session_binding == "slot" else None
        capacity = route.session_cache if slot_count is None else min(route.session_cache, slot_count)
        return cls(capacity, slot_count, binds_sampling=route.session_binding == "conversation")


class SessionPlacement:
    """Which sessions one replica keeps, and which engine slot each request inside it has.

    Made when the first turn of a session enters the replica; from then on it counts every request that enters.
    """

    __slots__ = ("_slots_by_ticket", "sessions", "slots")

    def __init__(self, terms: SessionTerms, inside_count: int) -> None:
        """`inside_count`: requests that are inside the replica already, in slots that are not known."""
        self.sessions = ReplicaSessions(terms.capacity, binds_sampling=terms.binds_sampling)
        self.slots = None if terms.slot_count is None else EngineSlots(terms.slot_count, inside_count)
        """None: requests name no slot of this engine."""
        self._slots_by_ticket: dict[Ticket, int] = {}

    def admit(self, ticket: Ticket, now: float, *, is_known_elsewhere: bool) -> None:
        """Place a request that enters the replica. Call `release` once when the request is out.

        Sets `ticket.engine_slot` (None: the engine chooses), and for a turn of a session its claim's `decision` and
        `cached_tokens`. May drop other sessions: those beyond the capacity, and one whose slot is taken. `now`:
        monotonic seconds. `is_known_elsewhere`: another replica keeps the session, or a replica that is gone kept it,
        so that the turn is no `new` one.
        """
        claim = ticket.session
        if claim is None:
            self._place_stranger(ticket, now)
            return
        claim.decision = self.sessions.decide(claim, is_known_elsewhere=is_known_elsewhere)
        session = self.sessions.begin_turn(claim, now)
        while (dropped := self.sessions.drop_oldest()) is not None:
            self._give_up_slot(dropped)
        self._place_turn(ticket, claim, session, now)
        claim.cached_tokens = session.tokens if claim.decision == "reused" else 0

    def release(self, ticket: Ticket, now: float) -> None:
        """Free the slot of a request that is out of the replica, and end its turn. Call once for each `admit`.

        If the turn was answered, set its claim's `held_tokens` before. A session of which no turn was ever answered is
        dropped. `now`: monotonic seconds.
        """
        if self.slots is not None:
            slot = self._slots_by_ticket.pop(ticket, None)
            if slot is None:
                self.slots.unplaced_count -= 1
            else:
                self.slots.release(slot, now)
        ticket.engine_slot = None
        if ticket.session is not None:
            dropped = self.sessions.end_turn(ticket.session, now)
            if dropped is not None:
                self._give_up_slot(dropped)

    def abandon(self) -> None:
        """Set `engine_slot` of the tickets inside to None, because the replica leaves the table or its slots change.

        Only `sessions` may be used afterwards: do not call `release` for the tickets that were inside.
        """
        for ticket in self._slots_by_ticket:
            ticket.engine_slot = None
        self._slots_by_ticket.clear()

    def _place_stranger(self, ticket: Ticket, now: float) -> None:
        if self.slots is None:
            return
        placement = self.slots.place_stranger(ticket.prefix, now) if ticket.slots == 1 else None
        if placement is None:
            self.slots.unplaced_count += 1
            return
        ticket.engine_slot = self._slots_by_ticket[ticket] = placement.slot
        if placement.evicted_session is not None:
            self.sessions.drop_session(placement.evicted_session)

    def _place_turn(self, ticket: Ticket, claim: SessionClaim, session: Session, now: float) -> None:
        if self.slots is None:
            return
        placement = self.slots.place_session(claim.key, session.slot, now) if ticket.slots == 1 else None
        if placement is None:
            # The engine chooses the slot, as a rule the one whose cache is most like the prompt.
            self.slots.unplaced_count += 1
            return
        ticket.engine_slot = self._slots_by_ticket[ticket] = placement.slot
        if placement.slot == session.slot:
            return
        self._give_up_slot(session)
        session.slot = placement.slot
        if claim.decision == "reused":
            claim.decision = "rebuilt"
        if placement.evicted_session is not None:
            self.sessions.drop_session(placement.evicted_session)

    def _give_up_slot(self, session: Session) -> None:
        if self.slots is not None and session.slot is not None:
            self.slots.give_up(session.slot)
