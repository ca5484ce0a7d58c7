"""The tokens of one replica's KV cache, which the requests inside share (ADR 18). Pure."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from gateway.admission.token_demand import TokenDemand
from gateway.admission.token_estimator import LEAST_ANSWER, TokenEstimator

if TYPE_CHECKING:
    from gateway.admission.ticket import Ticket

NEVER: Final = sys.maxsize
"""A number of events that no answer reaches."""
MOST_PREEMPTIONS: Final = 3
"""Preemptions after which a request gets a replica for itself."""
_HEADROOM: Final = 32
"""1/32 of the cache, and at least 32 tokens, are left free, because an engine stops a cancelled request late."""
_LEAST_STEP: Final = 64
"""An answer without a limit is granted 1/`_STEPS` of the cache at a time, and at least this many tokens."""
_STEPS: Final = 64


class TokenClaim:
    """The tokens that one request claims of a replica's KV cache. Created with the request's ticket. All counts are 0
    until `estimate_tokens`, which must be called before the ticket enters a replica."""

    __slots__ = (
        "demand",
        "granted",
        "is_bounded",
        "least_tokens",
        "needed",
        "preemptions",
        "prompt_tokens",
        "reserved",
    )

    def __init__(self, demand: TokenDemand) -> None:
        self.demand = demand
        self.prompt_tokens = 0
        """Estimated tokens of the prompt. `estimate_tokens` sets this, `is_bounded` and `needed`."""
        self.is_bounded = False
        """Whether the reservation is final: the answer cannot exceed it, or its length cannot be observed."""
        self.needed = 0
        """Tokens to reserve: prompt and all answers. May exceed the cache: `TokenPool.admit` then reserves all of it.
        """
        self.least_tokens = 0
        """Lower bound of `needed`; set when the request was preempted because it had too few."""
        self.preemptions = 0
        """How often the request's tokens were taken back and the request was sent again."""
        self.reserved = 0
        """While inside: tokens that no other request is admitted for."""
        self.granted = 0
        """While inside: tokens that the request may have used by now; grows with an answer that has no limit."""

    def estimate_tokens(self, estimator: TokenEstimator, context_length: int, share: int) -> None:
        """Set `prompt_tokens`, `is_bounded` and `needed`, the tokens of the prompt and of all answers.

        `context_length`: tokens that one request may take. `share`: tokens of the cache per slot. A limit of the answer
        (`max_tokens`) is reserved if it is at most half of `context_length`; a greater one says little, and would turn
        several slots into one. Otherwise the answer is expected to be as long as the model's recent answers, and before
        any, to fill `share`: at least `LEAST_ANSWER` (64) tokens, and at most the limit. `needed` is never below
        `least_tokens`.
        """
        demand = self.demand
        self.prompt_tokens = prompt_tokens = estimator.estimate_prompt(demand)
        limit = demand.max_tokens
        self.is_bounded = is_bounded = limit is not None and 2 * limit <= context_length
        if is_bounded and limit is not None:
            answer_tokens = limit
        else:
            expected = estimator.answer_tokens
            answer_tokens = max(LEAST_ANSWER, share - prompt_tokens if expected is None else expected)
            if limit is not None:
                answer_tokens = min(answer_tokens, limit)
        self.needed = max(self.least_tokens, prompt_tokens + answer_tokens * demand.sequences)

    def raise_claim(self) -> None:
        """Count a preemption of the request, and double the tokens that it claims; from the third preemption on, claim
        a whole replica.

        Sets `preemptions` and `least_tokens`; `needed` follows at the next `estimate_tokens`.
        """
        self.preemptions += 1
        most = max(self.reserved, self.granted)
        self.least_tokens = NEVER if self.preemptions >= MOST_PREEMPTIONS else 2 * most


class TokenPool:
    """The KV cache tokens of one replica, and the claims of the requests inside. Belongs to its `ReplicaSlots`.

    Reserved tokens decide who may enter; granted tokens are what answers may have used. Invariant, once the tickets
    that `extend` named have left, unless the engine makes room by itself: `granted` is at most `usable`, except for a
    request that is alone inside, whose length the engine limits.
    """

    __slots__ = ("_makes_room", "_step", "capacity", "granted", "reserved", "tickets", "usable")

    def __init__(self, capacity: int, *, makes_room: bool = False) -> None:
        """`capacity`: tokens of the cache. `makes_room`: a full engine preempts by itself (vLLM), so no request that is
        inside has to leave."""
        self._makes_room = makes_room
        self.tickets: dict[Ticket, TokenClaim] = {}
        """Claims of the tickets inside, latest entry last; tickets without a claim are absent."""
        self.reserved = 0
        """Sum of `TokenClaim.reserved` of the tickets inside; above `usable` where answers outgrew their claims."""
        self.granted = 0
        """Sum of `TokenClaim.granted` of the tickets inside."""
        self.resize(capacity)

    def resize(self, capacity: int) -> None:
        """Set the number of tokens that the cache holds to `capacity`, and set `usable`, the number that requests may
        reserve.

        `usable` is `capacity` less 1/32 of it, or less 32 tokens where that is more, but at least 1. Claims of requests
        inside are not changed, so they may exceed `usable` afterwards.
        """
        self.capacity = capacity
        self.usable = max(1, capacity - max(_HEADROOM, capacity // _HEADROOM))
        self._step = max(_LEAST_STEP, capacity // _STEPS)

    def has_room(self, claim: TokenClaim) -> bool:
        """Return whether `claim.needed` tokens are free now. Reserves nothing.

        A claim larger than the cache fits only into an empty one. Call `TokenClaim.estimate_tokens` before.
        """
        return self.reserved + min(claim.needed, self.usable) <= self.usable

    def is_whole(self, claim: TokenClaim) -> bool:
        """Return whether the request that holds `claim` has reserved all `usable` tokens of the cache."""
        return claim.reserved >= self.usable

    def admit(self, ticket: Ticket, claim: TokenClaim) -> None:
        """Reserve the claim's tokens for a ticket that enters, and grant the first of them.

        At most `usable` tokens are reserved. Whether they are free is not checked: see `has_room`. Call `release` once.
        """
        claim.reserved = reserved = min(claim.needed, self.usable)
        first_grant = claim.prompt_tokens + self._step * claim.demand.sequences
        claim.granted = reserved if claim.is_bounded else min(reserved, first_grant)
        self.reserved += reserved
        self.granted += claim.granted
        self.tickets[ticket] = claim

    def release(self, ticket: Ticket) -> None:
        """Give back a ticket's tokens. Does nothing for a ticket that holds none here, as after an earlier call."""
        claim = self.tickets.pop(ticket, None)
        if claim is not None:
            self.reserved -= claim.reserved
            self.granted -= claim.granted

    def begin_answer(self, ticket: Ticket, *, is_counted: bool) -> int:
        """Return after how many events of the answer, from its start, to call `extend`: at least 1, or `NEVER`.

        `NEVER`: the reservation is final, or the ticket holds no tokens here. `is_counted`: the caller counts the
        answer's events (about one per token); False: all reserved tokens are granted at once and are final, so `NEVER`
        is returned.
        """
        claim = self.tickets.get(ticket)
        if claim is None or claim.is_bounded:
            return NEVER
        if not is_counted:
            self.granted += claim.reserved - claim.granted
            claim.granted = claim.reserved
            claim.is_bounded = True
            return NEVER
        return max(1, claim.granted - claim.prompt_tokens)

    def extend(self, ticket: Ticket, answered: int, can_resend: Callable[[Ticket], bool]) -> tuple[int, list[Ticket]]:
        """Grant more tokens to an answer without a limit that has `answered` events, about one per token, and goes on.

        The tokens are granted even if the cache is full. Returns after how many events of the answer, from its start,
        to call again (`NEVER` if the ticket holds no tokens here), and the tickets that must leave because the cache is
        full, possibly `ticket` itself: first the latest to enter that were preempted less than `MOST_PREEMPTIONS` (3)
        times and for which `can_resend` returns True (no client would notice that the request is sent again), then the
        latest to enter whose answers have no limit. The caller must remove them. One ticket always stays, and none must
        leave where the engine makes room by itself.
        """
        claim = self.tickets.get(ticket)
        if claim is None:
            return NEVER, []
        mark = answered + self._step
        growth = claim.prompt_tokens + mark - claim.granted
        if growth > 0:
            claim.granted += growth
            self.granted += growth
        if claim.granted > claim.reserved:
            self.reserved += claim.granted - claim.reserved
            claim.reserved = claim.granted
        return mark, [] if self._makes_room else self._choose_victims(ticket, can_resend)

    def _choose_victims(self, ticket: Ticket, can_resend: Callable[[Ticket], bool]) -> list[Ticket]:
        excess = self.granted - self.usable
        victims: list[Ticket] = []
        staying = list(self.tickets.items())
        while excess > 0 and len(staying) > 1:
            place = next(
                (
                    number
                    for number in reversed(range(len(staying)))
                    if staying[number][1].preemptions < MOST_PREEMPTIONS and can_resend(staying[number][0])
                ),
                None,
            )
            if place is None:
                place = next(number for number in reversed(range(len(staying))) if not staying[number][1].is_bounded)
            victim, claim = staying.pop(place)
            victims.append(victim)
            excess -= claim.granted
            if victim is ticket:
                break
        return victims

    def __repr__(self) -> str:
        return f"{self.granted} of {self.reserved}/{self.usable} tokens"
