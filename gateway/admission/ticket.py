"""A request in admission: what it asks for and holds, and which replicas it has tried. With it, the replica whose
slots, KV cache tokens and places for sessions it holds, and its tenant's account with the model. Pure: `now` is
monotonic seconds.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, NamedTuple

from contract.errors import RoundhouseError
from contract.routing import Endpoint, ModelRoute
from gateway.admission.circuit_breaker import CircuitBreaker
from gateway.admission.engine_slots import EngineSlots
from gateway.admission.token_pool import TokenClaim, TokenPool
from gateway.sessions import ReplicaSessions, Session, SessionClaim

MAX_BREAKS: Final = 2
"""Broken connections after which a request is not retried: one that crashes engines must not crash all of them."""


@dataclass(frozen=True, slots=True)
class RetryState:
    """Names of the replicas at which one request has failed before its first byte. Immutable; `NO_RETRIES` is empty.

    Replicas that refused the connection are not tried again; those that broke it are, once no other replica is left.
    """

    refused_replicas: frozenset[str] = frozenset()
    """Replicas that refused the connection, so that the request never reached them. They are not tried again."""
    broken_replicas: frozenset[str] = frozenset()
    """Replicas that accepted the request and closed the connection without an answer: a stale connection, or an engine
    that died. They are tried once more when no other is left."""
    break_count: int = 0
    """Number of broken connections; more than `broken_replicas` has names if one replica broke several."""

    def after_refusal(self, replica: str) -> RetryState:
        """Return a new state to which `replica` is added as one that refused the connection."""
        return replace(self, refused_replicas=self.refused_replicas | {replica})

    def after_break(self, replica: str) -> RetryState:
        """Return a new state to which `replica` is added as one that closed the connection without an answer."""
        return replace(self, broken_replicas=self.broken_replicas | {replica}, break_count=self.break_count + 1)


NO_RETRIES: Final = RetryState()


class QueuePlace(NamedTuple):
    """Where a request stands in its model's queue: when it arrived (`Ticket.place`), or now (`Admission.list_places`).

    `position` counts from 1, and 1 means that the request entered a replica at once: the first waiting request has 2.
    `depth` is the number of waiting requests plus 1, this request included if it waits or was refused with
    `queue_full`. `wait_ms` is the estimated wait in milliseconds, 0 at position 1; None: unknown, because no request of
    the model has been answered yet or the model has no replica. `usual_wait_ms` is what such places waited recently, in
    milliseconds: the median and the 90th percentile; None: too few have waited.
    """

    position: int
    depth: int
    wait_ms: int | None
    usual_wait_ms: tuple[int, int] | None = None


AT_ONCE: Final = QueuePlace(1, 1, 0)


class Ticket:
    """One request's claim to slots of a replica. Created by the caller of `Admission`, and used for one request only.

    Its state goes from `new` to `waiting` or `inside`, possibly between these two several times, and ends as `gone`.
    The owner sets `is_refused` and `goes_on`; owner and admission add to `retries`. Other attributes that the
    constructor does not take are set by admission, which also sets `rank` to 0 when it queues the ticket again after an
    attempt.
    """

    __slots__ = (
        "account",
        "blocked_at",
        "claim",
        "engine_slot",
        "entered_at",
        "expected_s",
        "goes_on",
        "held_slots",
        "is_refused",
        "model",
        "owner",
        "place",
        "prefix",
        "queued_at",
        "rank",
        "replica",
        "retries",
        "session",
        "slots",
        "state",
        "tenant",
        "weight",
    )

    state: Literal["new", "waiting", "inside", "gone"]
    account: TenantAccount
    """The tenant's account with the model. Set when the ticket is queued or enters."""
    replica: ReplicaSlots
    """The replica that the ticket is inside, or was last. Set when it enters, as are the three below."""
    expected_s: float
    """Seconds that its tenant was charged in advance."""
    entered_at: float
    """Monotonic seconds when it entered."""
    held_slots: int
    """Slots that it holds."""

    def __init__(
        self,
        owner: Any,
        model: str,
        tenant: str,
        weight: float,
        rank: int,
        prefix: Sequence[int] = (),
        slots: int = 1,
        claim: TokenClaim | None = None,
        session: SessionClaim | None = None,
    ) -> None:
        """`owner`: any object of the caller, to find it again in a `Grant`. `model`: the model's own name, no alias.

        `weight`: the tenant's share, above 0. `rank`: 0 priority, 1 default, 2 flex. `prefix`: see
        `prefix_affinity.prefix_keys`. `slots`: slots to take of one replica; one that has fewer gives all of them.
        `claim`: KV cache tokens to take; None: the request's tokens are not counted.
        `session`: the request's turn in a session; None: it belongs to none.
        """
        self.owner = owner
        self.model = model
        self.tenant = tenant
        self.weight = weight
        self.rank = rank
        self.prefix = prefix
        self.slots = slots
        self.claim = claim
        self.session = session
        self.goes_on = False
        """The request is a part of one that was let in before, so the limit of the queue does not apply. Set by the
        owner."""
        self.engine_slot: int | None = None
        """Inside: the slot of the engine to name in the request; None: the engine chooses."""
        self.blocked_at: int | None = None
        """How many requests of the model had entered when this one first needed more of a replica than was free; None:
        that has not happened."""
        self.queued_at: float | None = None
        """Monotonic seconds when it began to wait for a slot; None: it did not, or it waits for a load, or again after
        an attempt."""
        self.state = "new"
        self.place: QueuePlace | None = None
        """Set on arrival and never changed. A ticket refused with `queue_full` has the place that it would have had.
        None: not arrived yet, or refused with `engine_unreachable`."""
        self.retries = NO_RETRIES
        self.is_refused = False
        """Whether the engine answered with an error. Set by the owner before `Admission.release_ticket`."""

    @property
    def was_preempted(self) -> bool:
        """Whether the ticket's KV cache tokens were taken back at least once, so that it was admitted again. False
        without a `claim`."""
        return self.claim is not None and self.claim.preemptions > 0

    def __repr__(self) -> str:
        return f"Ticket({self.tenant} {self.model}, {self.state})"


class SessionTerms(NamedTuple):
    """How many sessions each replica of a model keeps, and how requests name them; read from its `ModelRoute`.
    `capacity`: maximum number of sessions of one replica. `slot_count`: slots of the engine, if requests name their
    slot; None: they do not. `binds_sampling`: a turn with other sampling fields than the turn before is `rebuilt`."""

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


class ReplicaSlots:
    """One replica as admission sees it: the slots and KV cache tokens that are taken, and its circuit breaker.

    Lives from the first table that has the replica until it has left the table and no request is inside.
    """

    __slots__ = (
        "breaker",
        "endpoint",
        "inflight",
        "is_routed",
        "model",
        "placement",
        "slots_taken",
        "token_pool",
        "turn",
    )

    def __init__(self, endpoint: Endpoint, model: str) -> None:
        """`model`: whose replica it is."""
        self.model = model
        self.inflight = 0
        """Number of requests inside."""
        self.slots_taken = 0
        """Slots that the requests inside hold together; a request may hold several."""
        self.turn = 0
        """The model's turn number when a request last entered here. Lowest goes first among equally busy replicas."""
        self.breaker: CircuitBreaker | None = None
        """Failures since the replica last answered; None: there are none."""
        self.is_routed = True
        """Whether the replica is in the table in force."""
        self.token_pool: TokenPool[Ticket] | None = None
        """Tokens of the replica's KV cache; None: they are not counted; see `Endpoint.kv_cache_tokens`."""
        self.placement: SessionPlacement | None = None
        """The sessions that the replica keeps; None: no turn of a session has entered it."""
        self.apply_endpoint(endpoint)

    def apply_endpoint(self, endpoint: Endpoint) -> None:
        """Adopt the replica's entry of a new table, and resize the token pool to its `kv_cache_tokens`.

        If `kv_cache_tokens` is None, the pool is dropped. A new pool does not count the requests that are inside
        already.
        """
        self.endpoint = endpoint
        capacity = endpoint.kv_cache_tokens
        if capacity is None:
            self.token_pool = None
        elif self.token_pool is None:
            # The tokens of requests that are inside already are unknown.
            self.token_pool = TokenPool(capacity, makes_room=endpoint.preempts_when_full)
        elif self.token_pool.capacity != capacity:
            self.token_pool.resize(capacity)

    def admits_request(self, now: float) -> bool:
        """Return whether the circuit breaker lets a request enter now. Slots and tokens are not looked at.

        `now`: monotonic seconds.
        """
        return self.breaker is None or self.breaker.admits_request(now)

    def may_admit_soon(self, now: float) -> bool:
        """Return whether the circuit breaker lets a request enter now, or once a running trial succeeds.

        Slots and tokens are not looked at. `now`: monotonic seconds.
        """
        return self.breaker is None or self.breaker.may_admit_soon(now)

    def has_tokens(self, ticket: Ticket) -> bool:
        """Return whether the KV cache has room for the ticket's claim; True where tokens are not counted. Reserves
        nothing. Call `TokenClaim.estimate_tokens` of the claim before."""
        return self.token_pool is None or ticket.claim is None or self.token_pool.has_room(ticket.claim)

    def usage_share(self, target: int) -> float:
        """Return the share of the slots or of the tokens that is taken, whichever is greater.

        1 is full; more than 1 is possible after a table lowered the numbers. `target`: the replica's slots.
        """
        slots_share = self.slots_taken / max(1, target)
        pool = self.token_pool
        return slots_share if pool is None else max(slots_share, pool.reserved / pool.usable)

    def admit(self, ticket: Ticket, target: int) -> None:
        """Take slots and tokens for `ticket`, whether or not they are free. Call `release` once.

        `target`: the replica's slots, which bound the number that is taken. Sets `ticket.held_slots`.
        """
        self.inflight += 1
        ticket.held_slots = held_slots = min(ticket.slots, target)
        self.slots_taken += held_slots
        if self.token_pool is not None and ticket.claim is not None:
            self.token_pool.admit(ticket, ticket.claim)

    def release(self, ticket: Ticket) -> None:
        """Give back the slots and KV cache tokens of `ticket`. Call once for a ticket that is inside this replica."""
        self.inflight -= 1
        self.slots_taken -= ticket.held_slots
        if self.token_pool is not None:
            self.token_pool.release(ticket)


_RANKS: Final = 3


class TenantAccount:
    """One tenant's waiting tickets at one model, and its counter for fair queueing.

    `counter`: slot-seconds that the tenant received, divided by `weight`; the tenant with the lowest goes next.
    `inflight`: its tickets that are inside a replica. Made and changed by `FairQueue` only.
    """

    __slots__ = ("counter", "entry", "inflight", "name", "ranks", "turn", "waiting_count", "weight")

    def __init__(self, name: str) -> None:
        self.name = name
        self.weight = 1.0
        self.counter = 0.0
        self.turn = 0
        """Turn number of the tenant's last entry or start of waiting; the lowest goes first among equal counters."""
        self.inflight = 0
        self.waiting_count = 0
        self.ranks: tuple[OrderedDict[Ticket, None], ...] = tuple(OrderedDict() for _ in range(_RANKS))
        """The waiting tickets by rank, next to enter first."""
        self.entry: HeapEntry | None = None
        """The account's valid entry in the heap; its other entries are outdated. None: it has no waiting ticket."""


HeapEntry = tuple[float, int, TenantAccount]
"""Counter, turn, account. Turns are unique, so that accounts are never compared."""


Grant = tuple[Ticket, Endpoint | RoundhouseError]
"""The outcome for a ticket that waited: the endpoint whose slot it now holds, or the error for which it was removed."""
