"""One replica: its slots, its tokens, and what is held against it. Pure."""

from __future__ import annotations

from controller.schema.routing import Endpoint
from gateway.admission.circuit_breaker import CircuitBreaker
from gateway.admission.ticket import Queue, Ticket
from gateway.admission.token_pool import TokenPool


class ReplicaSlots:
    """One replica: who is inside, and what is held against it."""

    __slots__ = ("breaker", "endpoint", "inflight", "is_routed", "queue", "slots_taken", "token_pool", "turn")

    def __init__(self, endpoint: Endpoint, queue: Queue) -> None:
        self.queue = queue
        self.inflight = 0
        """Requests inside."""
        self.slots_taken = 0
        """By them."""
        self.turn = 0
        """Of its model: when something last went in."""
        self.breaker: CircuitBreaker | None = None
        """None: its last connection was well."""
        self.is_routed = True
        """It is in the table in force."""
        self.token_pool: TokenPool | None = None
        """None: how many tokens are inside need not be looked at."""
        self.apply_endpoint(endpoint)

    def apply_endpoint(self, endpoint: Endpoint) -> None:
        """The table in force has this to say."""
        self.endpoint = endpoint
        capacity = endpoint.kv_cache_tokens
        if capacity is None:
            self.token_pool = None
        elif self.token_pool is None:
            # Of those that are inside already, nothing is known.
            self.token_pool = TokenPool(capacity, makes_room=endpoint.preempts_when_full)
        elif self.token_pool.capacity != capacity:
            self.token_pool.resize(capacity)

    def admits_request(self, now: float) -> bool:
        """Whether it is not left out."""
        return self.breaker is None or self.breaker.admits_request(now)

    def may_admit_soon(self, now: float) -> bool:
        """Whether it is worth waiting for."""
        return self.breaker is None or self.breaker.may_admit_soon(now)

    def has_tokens(self, ticket: Ticket) -> bool:
        """Whether its cache has room for a request, as far as that is looked at."""
        return self.token_pool is None or ticket.claim is None or self.token_pool.has_room(ticket.claim)

    def usage_share(self, target: int) -> float:
        """How full it is, of what it has least of: 1 is full. `target`: its slots."""
        slots_share = self.slots_taken / max(1, target)
        pool = self.token_pool
        return slots_share if pool is None else max(slots_share, pool.reserved / pool.usable)

    def admit(self, ticket: Ticket, target: int) -> None:
        """`ticket` goes in."""
        self.inflight += 1
        ticket.held_slots = held_slots = min(ticket.slots, target)
        self.slots_taken += held_slots
        if self.token_pool is not None and ticket.claim is not None:
            self.token_pool.admit(ticket, ticket.claim)

    def release(self, ticket: Ticket) -> None:
        """`ticket`, which is inside, is out."""
        self.inflight -= 1
        self.slots_taken -= ticket.held_slots
        if self.token_pool is not None:
            self.token_pool.release(ticket)
