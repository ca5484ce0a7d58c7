"""Who is let in by tokens, and who leaves when answers are longer than expected."""

from __future__ import annotations

from collections.abc import Collection

from gateway.admission.ticket import Ticket
from gateway.admission.token_demand import TokenDemand
from gateway.admission.token_estimator import TokenEstimator
from gateway.admission.token_pool import MOST_PREEMPTIONS, NEVER, TokenClaim, TokenPool
from tests.support.admission import AdmissionHarness, route_of, where

CAPACITY = 4096
USABLE = 4096 - 128
STEP = 64


def ticket_of(prompt: int, *, answer: int | None = None, expected: int = 300, preemptions: int = 0) -> Ticket:
    """A request with a prompt of so many tokens. `answer` is the limit of its answer, where it has one."""
    claim = TokenClaim(TokenDemand(4 * prompt, False, answer, 1))
    claim.prompt_tokens, claim.is_bounded = prompt, answer is not None
    claim.needed = prompt + (expected if answer is None else answer)
    claim.preemptions = preemptions
    return Ticket(None, "m", "a", 1.0, 1, (), 1, claim)


def claim_of(ticket: Ticket) -> TokenClaim:
    assert ticket.claim is not None
    return ticket.claim


def enter(pool: TokenPool, *tickets: Ticket) -> None:
    for ticket in tickets:
        pool.admit(ticket, claim_of(ticket))
        pool.begin_answer(ticket, is_counted=True)


def extend(pool: TokenPool, ticket: Ticket, answered: int, gathered: Collection[Ticket] = ()) -> list[Ticket]:
    return pool.extend(ticket, answered, lambda each: each in gathered)[1]


def test_what_fits_goes_in_and_what_is_too_large_goes_in_alone() -> None:
    pool = TokenPool(CAPACITY)
    small, large, huge = ticket_of(100, answer=400), ticket_of(100, answer=3800), ticket_of(9000, answer=100)
    assert all(pool.has_room(claim_of(each)) for each in (small, large, huge))
    enter(pool, small)
    assert [pool.has_room(claim_of(each)) for each in (small, large, huge)] == [True, False, False]
    pool.release(small)
    enter(pool, huge)
    assert pool.is_whole(claim_of(huge))
    assert not pool.has_room(claim_of(small))
    pool.release(huge)
    pool.release(huge)
    assert repr(pool) == f"0 of 0/{USABLE} tokens"


def test_an_answer_with_a_limit_is_never_asked_about() -> None:
    pool = TokenPool(CAPACITY)
    bounded, unbounded, unseen = ticket_of(100, answer=400), ticket_of(100), ticket_of(100)
    for ticket in (bounded, unbounded, unseen):
        pool.admit(ticket, claim_of(ticket))
    assert pool.begin_answer(bounded, is_counted=True) == NEVER
    assert pool.begin_answer(unbounded, is_counted=True) == STEP
    assert pool.begin_answer(unseen, is_counted=False) == NEVER
    assert pool.granted == 500 + 164 + 400
    assert pool.reserved == 500 + 400 + 400


def test_an_answer_that_is_longer_than_expected_gets_more_while_there_is_room() -> None:
    pool = TokenPool(CAPACITY)
    ticket, other = ticket_of(100), ticket_of(100)
    enter(pool, ticket, other)
    for answered in range(STEP, 3000, STEP):
        assert pool.extend(ticket, answered, lambda _: False) == (answered + STEP, [])
    assert claim_of(ticket).granted == claim_of(ticket).reserved == 100 + 2944 + STEP
    assert pool.reserved == 100 + 2944 + STEP + 400


def test_the_youngest_that_can_be_sent_again_leaves_first_then_the_youngest_stream() -> None:
    pool = TokenPool(CAPACITY)
    streams = [ticket_of(900), ticket_of(900)]
    gathered = [ticket_of(900, answer=100), ticket_of(600)]
    enter(pool, streams[0], gathered[0], streams[1], gathered[1])
    assert extend(pool, streams[0], 800, gathered) == [gathered[1]]
    pool.release(gathered[1])
    assert extend(pool, streams[0], 1300, gathered) == [gathered[0]]
    pool.release(gathered[0])
    assert extend(pool, streams[0], 2000) == []
    assert extend(pool, streams[0], 2900) == [streams[1]]
    pool.release(streams[1])
    assert extend(pool, streams[0], 6000) == [], "alone: the engine's own limit holds"


def test_it_may_be_the_one_that_asks() -> None:
    pool = TokenPool(CAPACITY)
    old, young = ticket_of(100), ticket_of(100)
    enter(pool, old, young)
    assert extend(pool, young, 3700) == [young]
    bounded = TokenPool(CAPACITY)
    limited, endless = ticket_of(100, answer=2000), ticket_of(100)
    enter(bounded, endless, limited)
    assert extend(bounded, endless, 1800) == [endless], "one within its limit does not end for another"


def test_as_many_leave_as_it_takes() -> None:
    pool = TokenPool(CAPACITY)
    first, *others = [ticket_of(900) for _ in range(4)]
    enter(pool, first, *others)
    assert extend(pool, first, 1700, others) == [others[2], others[1]]


def test_who_was_preempted_often_is_not_chosen_again() -> None:
    pool = TokenPool(CAPACITY)
    stream, patient = ticket_of(100), ticket_of(900, preemptions=MOST_PREEMPTIONS)
    enter(pool, patient, stream)
    assert extend(pool, stream, 2900, [patient]) == [stream]


def test_nobody_leaves_an_engine_that_makes_room_by_itself() -> None:
    pool = TokenPool(CAPACITY, makes_room=True)
    one, other = ticket_of(900), ticket_of(900)
    enter(pool, one, other)
    assert extend(pool, one, 5000, [other]) == []
    assert not pool.has_room(claim_of(one))


def test_a_preempted_request_claims_twice_as_much_and_then_everything() -> None:
    claim = claim_of(ticket_of(100))
    claim.reserved, claim.granted = 400, 700
    claim.raise_claim()
    assert claim.least_tokens == 1400
    claim.estimate_tokens(TokenEstimator(), CAPACITY, 1000)
    assert claim.needed == 1400
    for _ in range(MOST_PREEMPTIONS - 1):
        claim.raise_claim()
    assert claim.least_tokens == NEVER


def test_a_table_says_how_many_tokens_a_replica_has() -> None:
    harness = AdmissionHarness()
    route = route_of("m", ["a"], target=4)

    def with_tokens(tokens: int | None) -> None:
        endpoint = route.endpoints[0].model_copy(update={"kv_cache_tokens": tokens})
        harness.table(route.model_copy(update={"endpoints": (endpoint,)}))

    def come() -> Ticket:
        claim = TokenClaim(TokenDemand(400, False, 1500, 1))
        return harness.come(claim=claim)

    with_tokens(CAPACITY)
    first, second, third = come(), come(), come()
    assert [each.state for each in (first, second, third)] == ["inside", "inside", "waiting"]
    assert f"a 2/4 (3864 of 3864/{USABLE} tokens), waiting alice 1" in repr(harness.admission)
    with_tokens(8192)
    assert where(third) == "a"
    with_tokens(None)
    assert [come().state for _ in range(2)] == ["inside", "waiting"], "as many as slots"
    harness.leave(first)
    with_tokens(CAPACITY)
    assert "a 4/4 (0 of 0/" in repr(harness.admission), "of those that are inside already nothing is known"
    for ticket in (second, third):
        harness.leave(ticket)
