"""Slots, KV cache tokens and circuit breaker of one replica. Pure."""

from __future__ import annotations

from controller.schema.routing import Endpoint
from gateway.admission.circuit_breaker import CircuitBreaker
from gateway.admission.session_placement import SessionPlacement
from gateway.admission.ticket import Queue, Ticket
from gateway.admission.token_pool import TokenPool


class ReplicaSlots:
    """One replica as admission sees it: the slots and KV cache tokens that are taken, and its circuit breaker.

    Lives from the first table that has the replica until it has left the table and no request is inside.
    """

    __slots__ = (
        "breaker",
        "endpoint",
        "inflight",
        "is_routed",
        "placement",
        "queue",
        "slots_taken",
        "token_pool",
        "turn",
    )

    def __init__(self, endpoint: Endpoint, queue: Queue) -> None:
        self.queue = queue
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
        self.token_pool: TokenPool | None = None
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
        nothing.

        Call `TokenClaim.estimate_tokens` of the claim before.
        """
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
