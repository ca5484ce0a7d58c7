"""The tokens of one replica's KV cache, which the requests inside share. Pure."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from gateway.admission.token_demand import TokenDemand
from gateway.admission.token_estimator import LEAST_ANSWER, TokenEstimator

if TYPE_CHECKING:
    from gateway.admission.ticket import Ticket

NEVER: Final = sys.maxsize
"""A number of events that no answer has."""
MOST_PREEMPTIONS: Final = 3
"""After them a request gets a replica for itself."""
_HEADROOM: Final = 32
"""This part of a cache is left free: an engine notices late that it shall stop."""
_LEAST_STEP: Final = 64
_STEPS: Final = 64


class TokenClaim:
    """What one request claims of a replica's tokens. Belongs to its ticket."""

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
        """Estimated; this, `is_bounded` and `needed` by `estimate_tokens`."""
        self.is_bounded = False
        """Its answer does not pass what is reserved for it, or nobody could see that it does."""
        self.needed = 0
        """What it is expected to take."""
        self.least_tokens = 0
        """What it is given at least: it was preempted with less."""
        self.preemptions = 0
        """How often it gave its tokens back and was sent again."""
        self.reserved = 0
        """Inside: what no other request may be admitted for."""
        self.granted = 0
        """Inside: what it may have used by now. Less than `reserved` while an answer without a limit is short."""

    def estimate_tokens(self, estimator: TokenEstimator, context_length: int, share: int) -> None:
        """Estimate what it will take.

        An answer's limit counts where it is at most half of what a request may have at all: a greater one says little,
        and would turn several slots into one. Without one, an answer is expected to take what the model's answers do;
        while none was seen, what is left of `share`, the tokens of the cache for each slot.
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
        """It was preempted: next time it is given twice as much, and in the end all that a replica has."""
        self.preemptions += 1
        most = max(self.reserved, self.granted)
        self.least_tokens = NEVER if self.preemptions >= MOST_PREEMPTIONS else 2 * most


class TokenPool:
    """The tokens of one replica.

    Invariant, but for an engine that makes room by itself: what is granted is at most `usable`, unless one request is
    alone inside; then the engine's own limit of a request's context holds.
    """

    __slots__ = ("_makes_room", "_step", "capacity", "granted", "reserved", "tickets", "usable")

    def __init__(self, capacity: int, *, makes_room: bool = False) -> None:
        """`makes_room`: the engine does that by itself, so that nobody must leave who is inside."""
        self._makes_room = makes_room
        self.tickets: dict[Ticket, TokenClaim] = {}
        """Those inside that have a claim, the youngest last."""
        self.reserved = 0
        self.granted = 0
        self.resize(capacity)

    def resize(self, capacity: int) -> None:
        """The cache holds so many tokens."""
        self.capacity = capacity
        self.usable = max(1, capacity - max(_HEADROOM, capacity // _HEADROOM))
        self._step = max(_LEAST_STEP, capacity // _STEPS)

    def has_room(self, claim: TokenClaim) -> bool:
        """Whether a request may go in. One that claims more than there is goes in alone."""
        return self.reserved + min(claim.needed, self.usable) <= self.usable

    def is_whole(self, claim: TokenClaim) -> bool:
        """Whether a request inside has all tokens for itself."""
        return claim.reserved >= self.usable

    def admit(self, ticket: Ticket, claim: TokenClaim) -> None:
        """The request goes in."""
        claim.reserved = reserved = min(claim.needed, self.usable)
        first_grant = claim.prompt_tokens + self._step * claim.demand.sequences
        claim.granted = reserved if claim.is_bounded else min(reserved, first_grant)
        self.reserved += reserved
        self.granted += claim.granted
        self.tickets[ticket] = claim

    def release(self, ticket: Ticket) -> None:
        """The request is out. Harmless for one that is not inside."""
        claim = self.tickets.pop(ticket, None)
        if claim is not None:
            self.reserved -= claim.reserved
            self.granted -= claim.granted

    def begin_answer(self, ticket: Ticket, *, is_counted: bool) -> int:
        """After how many events of its answer `extend` must be called. `is_counted`: its events can be counted; else
        it is granted all that is reserved for it."""
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
        """The answer of `ticket`, whose length has no limit, has so many events, about one for each token, and goes on.

        Returns after how many events to call again, and who must leave for that, perhaps `ticket` itself: the youngest
        that can be sent again without its client noticing, as long as one can, then the youngest whose answer has no
        limit.
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
