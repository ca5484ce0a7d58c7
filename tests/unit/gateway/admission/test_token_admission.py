"""What a request is expected to take, by its body and by what engines counted before."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest

from gateway.admission.ticket import Ticket
from gateway.admission.token_pool import (
    LEAST_ANSWER,
    MARGIN,
    MOST_PREEMPTIONS,
    NEVER,
    TEMPLATE_TOKENS,
    TokenClaim,
    TokenDemand,
    TokenEstimator,
    TokenPool,
    read_demand,
)
from tests.support.admission import AdmissionHarness, route_of, where
from tests.support.outcomes import present

CONTEXT, SHARE = 4096, 1000


def demand(text_bytes: int = 1000, max_tokens: int | None = None, sequences: int = 1) -> TokenDemand:
    return TokenDemand(text_bytes, False, max_tokens, sequences)


@pytest.mark.parametrize(
    ("fields", "max_tokens"),
    [
        *(({}, None), ({"max_tokens": 7}, 7), ({"max_completion_tokens": 7}, 7), ({"max_output_tokens": 7}, 7)),
        *(({"n_predict": 7}, 7), ({"n_predict": -1}, None), ({"max_tokens": 0}, None)),
        *(({"max_tokens": True}, None), ({"max_tokens": "7"}, None), ({"max_tokens": 10**9}, None)),
        ({"max_tokens": 5, "max_completion_tokens": 9}, 9),
    ],
)
def test_the_greatest_limit_of_an_answer_counts(fields: dict[str, Any], max_tokens: int | None) -> None:
    assert read_demand(100, 100, fields, 2) == TokenDemand(100, False, max_tokens, 2)


def test_media_are_no_text_and_learned_apart() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 20_000}}
    fields = {"messages": [{"role": "user", "content": [image]}]}
    assert read_demand(20_100, 20_100, fields, 1) == TokenDemand(20_100 - 20_022, True, None, 1)
    assert read_demand(1_000_000, 2_000, {}, 1) == TokenDemand(2_000, True, None, 1), "a large body's are left out"
    estimator = TokenEstimator()
    with_media = TokenDemand(1000, True, None, 1)
    estimator.record_usage(demand(1000), 250, 10)
    text = estimator.estimate_prompt(demand(1000))
    before = estimator.estimate_prompt(with_media)
    assert before > text + 1024
    for _ in range(200):
        estimator.record_usage(with_media, text + 300, 10)
    assert estimator.estimate_prompt(with_media) == pytest.approx(text + 300 * MARGIN, rel=0.02)
    assert estimator.estimate_prompt(demand(1000)) == text


def test_of_an_unknown_model_a_byte_is_a_token() -> None:
    estimator = TokenEstimator()
    assert estimator.estimate_prompt(demand(1000)) == 1000 + TEMPLATE_TOKENS
    estimator.record_usage(demand(1000), 0, 0)  # what an engine does not count teaches nothing
    assert (estimator.estimate_prompt(demand(1000)), estimator.answer_tokens) == (1000 + TEMPLATE_TOKENS, None)


def test_then_the_densest_prompt_of_about_that_size_counts_with_a_margin() -> None:
    estimator = TokenEstimator()
    estimator.record_usage(demand(1000), 250, 10)
    estimator.record_usage(demand(1000), 200, 10)
    expected = 1000 * 0.25 * MARGIN + TEMPLATE_TOKENS
    assert estimator.estimate_prompt(demand(1000)) == pytest.approx(expected, rel=0.01)
    assert estimator.estimate_prompt(demand(60_000)) == pytest.approx(60 * (expected - 32) + 32, rel=0.01)
    estimator.record_usage(demand(60_000), 12_000, 10)
    assert estimator.estimate_prompt(demand(60_000)) == pytest.approx(12_000 * MARGIN + 32, rel=0.01)
    for _ in range(200):
        estimator.record_usage(demand(1000), 100, 10)
    assert estimator.estimate_prompt(demand(1000)) == pytest.approx(100 * MARGIN + TEMPLATE_TOKENS, rel=0.05)


def test_an_overrun_raises_estimates_once_and_what_goes_well_lowers_them() -> None:
    estimator = TokenEstimator()
    estimator.record_usage(demand(1000), 250, 10)
    before = estimator.estimate_prompt(demand(1000))
    for _ in range(4):
        estimator.record_overrun(10.0)  # an engine that is full fails all its requests
    raised = estimator.estimate_prompt(demand(1000))
    assert raised - TEMPLATE_TOKENS == pytest.approx(1.5 * (before - TEMPLATE_TOKENS), rel=0.01)
    estimator.record_overrun(20.0)
    assert estimator.estimate_prompt(demand(1000)) > raised
    for _ in range(100):
        estimator.record_usage(demand(1000), 250, 10)
    assert estimator.estimate_prompt(demand(1000)) == before


def test_nine_of_ten_answers_that_ended_by_themselves_took_no_more() -> None:
    estimator = TokenEstimator()
    for tokens in range(1, 101):
        estimator.record_usage(demand(max_tokens=1000), 100, tokens)
    assert estimator.answer_tokens in range(90, 97), "of the last 64"
    estimator.record_usage(demand(max_tokens=5000), 100, 5000)
    assert estimator.answer_tokens in range(90, 97), "one that was cut says nothing of how long they are"
    estimator.record_usage(demand(sequences=2), 100, 100)
    assert estimator.answer_tokens in range(90, 97)


def estimate_claim(estimator: TokenEstimator, demand: TokenDemand) -> TokenClaim:
    claim = TokenClaim(demand)
    claim.estimate_tokens(estimator, CONTEXT, SHARE)
    return claim


def test_a_limit_is_reserved_where_it_is_one() -> None:
    estimator = TokenEstimator()
    assert estimate_claim(estimator, demand(500)).needed == SHARE, "nothing to learn from: a slot's share"
    assert estimate_claim(estimator, demand(5000)).needed == 5000 + TEMPLATE_TOKENS + LEAST_ANSWER
    estimator.record_usage(demand(1000), 250, 100)
    prompt = estimator.estimate_prompt(demand(1000))
    bounded = estimate_claim(estimator, demand(max_tokens=1500))
    assert (bounded.is_bounded, bounded.needed) == (True, prompt + 1500)
    two = estimate_claim(estimator, demand(max_tokens=1500, sequences=2))
    assert (two.is_bounded, two.needed) == (True, prompt + 3000), "both have the same prompt"
    for limit in (None, CONTEXT, CONTEXT // 2 + 1):
        claim = estimate_claim(estimator, demand(max_tokens=limit))
        assert (claim.is_bounded, claim.needed) == (False, prompt + 100), "what the model's answers take"


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
    return present(ticket.claim)


def enter(pool: TokenPool[Ticket], *tickets: Ticket) -> None:
    for ticket in tickets:
        pool.admit(ticket, claim_of(ticket))
        pool.begin_answer(ticket, is_counted=True)


def extend(pool: TokenPool[Ticket], ticket: Ticket, answered: int, gathered: Collection[Ticket] = ()) -> list[Ticket]:
    return pool.extend(ticket, answered, lambda each: each in gathered)[1]


def test_what_fits_goes_in_and_what_is_too_large_goes_in_alone() -> None:
    pool: TokenPool[Ticket] = TokenPool(CAPACITY)
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
    pool: TokenPool[Ticket] = TokenPool(CAPACITY)
    bounded, unbounded, unseen = ticket_of(100, answer=400), ticket_of(100), ticket_of(100)
    for ticket in (bounded, unbounded, unseen):
        pool.admit(ticket, claim_of(ticket))
    assert pool.begin_answer(bounded, is_counted=True) == NEVER
    assert pool.begin_answer(unbounded, is_counted=True) == STEP
    assert pool.begin_answer(unseen, is_counted=False) == NEVER
    assert pool.granted == 500 + 164 + 400
    assert pool.reserved == 500 + 400 + 400


def test_an_answer_that_is_longer_than_expected_gets_more_while_there_is_room() -> None:
    pool: TokenPool[Ticket] = TokenPool(CAPACITY)
    ticket, other = ticket_of(100), ticket_of(100)
    enter(pool, ticket, other)
    for answered in range(STEP, 3000, STEP):
        assert pool.extend(ticket, answered, lambda _: False) == (answered + STEP, [])
    assert claim_of(ticket).granted == claim_of(ticket).reserved == 100 + 2944 + STEP
    assert pool.reserved == 100 + 2944 + STEP + 400


def test_the_youngest_that_can_be_sent_again_leaves_first_then_the_youngest_stream() -> None:
    pool: TokenPool[Ticket] = TokenPool(CAPACITY)
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


def test_who_asks_for_more_may_be_the_one_that_leaves() -> None:
    pool: TokenPool[Ticket] = TokenPool(CAPACITY)
    old, young = ticket_of(100), ticket_of(100)
    enter(pool, old, young)
    assert extend(pool, young, 3700) == [young]
    bounded: TokenPool[Ticket] = TokenPool(CAPACITY)
    limited, endless = ticket_of(100, answer=2000), ticket_of(100)
    enter(bounded, endless, limited)
    assert extend(bounded, endless, 1800) == [endless], "one within its limit does not end for another"


def test_who_was_preempted_often_is_not_chosen_again() -> None:
    often: TokenPool[Ticket] = TokenPool(CAPACITY)
    stream, patient = ticket_of(100), ticket_of(900, preemptions=MOST_PREEMPTIONS)
    enter(often, patient, stream)
    assert extend(often, stream, 2900, [patient]) == [stream]


def test_as_many_leave_as_it_takes() -> None:
    pool: TokenPool[Ticket] = TokenPool(CAPACITY)
    first, *others = [ticket_of(900) for _ in range(4)]
    enter(pool, first, *others)
    assert extend(pool, first, 1700, others) == [others[2], others[1]]


def test_nobody_leaves_an_engine_that_makes_room_by_itself() -> None:
    pool: TokenPool[Ticket] = TokenPool(CAPACITY, makes_room=True)
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
