"""Tokens of a KV cache that requests share: how many each takes, estimated, and how many are left. Pure."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Mapping
from math import ceil
from typing import Any, Final, Generic, NamedTuple, TypeVar

from gateway.tenancy.rate_limits import LARGE_BODY_BYTES, answer_limit, count_media_bytes

Holder = TypeVar("Holder")
"""Whatever the caller knows a request by; it must be hashable."""


class TokenDemand(NamedTuple):
    """What a request's body says about the tokens that it will take. `text_bytes`: bytes of the body without images and
    sound. `has_media`: whether it holds any. `max_tokens`: limit of each of the `sequences` answers; None: the request
    sets none that is valid."""

    text_bytes: int
    """Bytes of the body without images and sound."""
    has_media: bool
    """Whether the body holds images or sound. Media in a body of at most `LARGE_BODY_BYTES` count as text."""
    max_tokens: int | None
    """Limit of one answer in tokens, above 0; None: the request sets none that is valid."""
    sequences: int
    """Answers that the engine generates in parallel (`n`); they share the prompt."""


def read_demand(body_bytes: int, text_bytes: int, fields: Mapping[str, Any], sequences: int) -> TokenDemand:
    """Return the `TokenDemand` of a decoded body.

    `text_bytes`: bytes of the body's text, less than `body_bytes` if media were cut out of the body already. `fields`:
    the body's fields, of which the limit of the answer and media that are still there are read. `sequences`: answers to
    generate in parallel.
    """
    media_bytes = count_media_bytes(fields) if text_bytes > LARGE_BODY_BYTES else 0
    has_media = media_bytes > 0 or body_bytes > text_bytes
    return TokenDemand(max(0, text_bytes - media_bytes), has_media, answer_limit(fields), sequences)


LEAST_ANSWER: Final = 64
"""Tokens that an answer without a limit is expected to take at least."""
TEMPLATE_TOKENS: Final = 32
"""Tokens added to each prompt for its chat template, which the size of a body does not show."""
MARGIN: Final = 1.1
"""Factor by which estimates exceed the densest recent prompt."""
OVERRUN_FACTOR: Final = 1.5
"""Factor by which estimates grow with each overrun: an engine that reports a full KV cache."""
MOST_OVERRUN_FACTOR: Final = 8.0
"""Bound of the product of these factors."""
OVERRUN_PAUSE_S: Final = 1.0
"""Overruns within this time count as one: a full engine fails all its requests at once."""
_RECOVERY: Final = 0.98
"""Factor by which the overrun factor falls with each request that an engine counted."""
_MEMORY: Final = 32
"""Number of requests in which a remembered maximum falls most of the way to the current values."""
_ANSWERS_KEPT: Final = 64
_ANSWER_QUANTILE: Final = 0.9
_FIRST_MEDIA_TOKENS: Final = 1024.0
"""Tokens assumed for a request's images and sound until an engine has counted some."""
_SIZE_CLASSES: Final = 24
"""Prompts are grouped by powers of 4 of their bytes."""


class TokenEstimator:
    """Estimates the tokens of one model's requests.

    A prompt is estimated by its bytes times the highest recent number of tokens per byte among prompts of similar size;
    small prompts have more tokens per byte, because of the template. Before any count, a byte is one token, the most
    that a tokenizer with byte fallback makes of it.
    """

    __slots__ = ("_answers", "_media_tokens", "_overrun_at", "_overrun_factor", "_rates", "answer_tokens")

    def __init__(self) -> None:
        self._rates = [0.0] * _SIZE_CLASSES
        """Highest recent tokens per byte of each size class; 0: no request of that class was counted."""
        self._media_tokens = _FIRST_MEDIA_TOKENS
        self._answers: deque[int] = deque(maxlen=_ANSWERS_KEPT)
        self._overrun_factor = 1.0
        self._overrun_at: float | None = None
        self.answer_tokens: int | None = None
        """Tokens that about 9 of 10 recent answers stayed within, of those that no limit cut; None: none was
        counted."""

    def estimate_prompt(self, demand: TokenDemand) -> int:
        """Return the estimated tokens of the prompt, chat template and media included.

        The estimate is meant as an upper bound, but a prompt may exceed it.
        """
        tokens = self._estimate_text(demand)
        if demand.has_media:
            tokens += ceil(self._media_tokens * MARGIN * self._overrun_factor)
        return tokens

    def record_usage(self, demand: TokenDemand, prompt_tokens: int, answer_tokens: int) -> None:
        """Learn from an engine's counts of one request, and lower, a little, the factor that `record_overrun` raised.

        `answer_tokens`: of all its answers together. Counts of 0 teach nothing about tokens, and neither does the
        length of an answer that its limit cut.
        """
        self._overrun_factor = max(1.0, self._overrun_factor * _RECOVERY)
        if prompt_tokens > 0 and demand.has_media:
            self._media_tokens = _follow(self._media_tokens, max(0, prompt_tokens - self._estimate_text(demand)))
        elif prompt_tokens > 0 and demand.text_bytes > 0:
            size_class = _size_class(demand.text_bytes)
            self._rates[size_class] = _follow(self._rates[size_class], prompt_tokens / demand.text_bytes)
        tokens = ceil(answer_tokens / demand.sequences)
        if tokens > 0 and (demand.max_tokens is None or tokens < demand.max_tokens):
            self._answers.append(tokens)
            self.answer_tokens = sorted(self._answers)[int(_ANSWER_QUANTILE * (len(self._answers) - 1))]

    def record_overrun(self, now: float) -> None:
        """Raise estimates by half, because an engine reported a full KV cache. `now`: monotonic seconds.

        Calls within `OVERRUN_PAUSE_S` (1 s) after one that counted do nothing. All raises together make at most a
        factor of `MOST_OVERRUN_FACTOR` (8). Texts count a token per byte, unraised, until an engine has counted a
        prompt.
        """
        if self._overrun_at is None or now - self._overrun_at >= OVERRUN_PAUSE_S:
            self._overrun_at = now
            self._overrun_factor = min(self._overrun_factor * OVERRUN_FACTOR, MOST_OVERRUN_FACTOR)

    def _estimate_text(self, demand: TokenDemand) -> int:
        rate = self._rate_of(_size_class(demand.text_bytes))
        if not rate:
            return demand.text_bytes + TEMPLATE_TOKENS
        return ceil(demand.text_bytes * rate * MARGIN * self._overrun_factor) + TEMPLATE_TOKENS

    def _rate_of(self, size_class: int) -> float:
        """Return the tokens per byte of a size class; if unknown, of the nearest smaller class, else the next larger.

        Smaller prompts have no fewer tokens per byte, so theirs is the safer guess.
        """
        rates = self._rates
        return (
            rates[size_class]
            or next((rate for rate in rates[size_class::-1] if rate), 0.0)
            or next((rate for rate in rates[size_class:] if rate), 0.0)
        )


def _size_class(text_bytes: int) -> int:
    return min(text_bytes.bit_length() // 2, _SIZE_CLASSES - 1)


def _follow(greatest: float, value: float) -> float:
    """Return the remembered maximum after a new value: it rises at once and falls slowly."""
    return value if value > greatest else greatest + (value - greatest) / _MEMORY


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
        """Tokens to reserve: prompt and all answers. May exceed the cache: `TokenPool.admit` then reserves all of
        it."""
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


class TokenPool(Generic[Holder]):
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
        self.tickets: dict[Holder, TokenClaim] = {}
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

    def admit(self, ticket: Holder, claim: TokenClaim) -> None:
        """Reserve the claim's tokens for a ticket that enters, and grant the first of them.

        At most `usable` tokens are reserved. Whether they are free is not checked: see `has_room`. Call `release` once.
        """
        claim.reserved = reserved = min(claim.needed, self.usable)
        first_grant = claim.prompt_tokens + self._step * claim.demand.sequences
        claim.granted = reserved if claim.is_bounded else min(reserved, first_grant)
        self.reserved += reserved
        self.granted += claim.granted
        self.tickets[ticket] = claim

    def release(self, ticket: Holder) -> None:
        """Give back a ticket's tokens. Does nothing for a ticket that holds none here, as after an earlier call."""
        claim = self.tickets.pop(ticket, None)
        if claim is not None:
            self.reserved -= claim.reserved
            self.granted -= claim.granted

    def begin_answer(self, ticket: Holder, *, is_counted: bool) -> int:
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

    def extend(self, ticket: Holder, answered: int, can_resend: Callable[[Holder], bool]) -> tuple[int, list[Holder]]:
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

    def _choose_victims(self, ticket: Holder, can_resend: Callable[[Holder], bool]) -> list[Holder]:
        excess = self.granted - self.usable
        victims: list[Holder] = []
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
