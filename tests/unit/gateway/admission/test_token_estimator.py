"""What a request is expected to take, by its body and by what engines counted before."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.admission.token_demand import TokenDemand, read_demand
from gateway.admission.token_estimator import LEAST_ANSWER, MARGIN, TEMPLATE_TOKENS, TokenEstimator
from gateway.admission.token_pool import TokenClaim

CONTEXT, SHARE = 4096, 1000


def demand(text_bytes: int = 1000, max_tokens: int | None = None, sequences: int = 1) -> TokenDemand:
    return TokenDemand(text_bytes, False, max_tokens, sequences)


@pytest.mark.parametrize(
    ("fields", "max_tokens"),
    [
        ({}, None),
        ({"max_tokens": 7}, 7),
        ({"max_completion_tokens": 7}, 7),
        ({"max_output_tokens": 7}, 7),
        ({"n_predict": 7}, 7),
        ({"n_predict": -1}, None),
        ({"max_tokens": 0}, None),
        ({"max_tokens": True}, None),
        ({"max_tokens": "7"}, None),
        ({"max_tokens": 10**9}, None),
        ({"max_tokens": 5, "max_completion_tokens": 9}, 9),
    ],
)
def test_the_greatest_limit_of_an_answer_counts(fields: dict[str, Any], max_tokens: int | None) -> None:
    assert read_demand(100, 100, fields, 2) == TokenDemand(100, False, max_tokens, 2)


def test_media_are_no_text() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 20_000}}
    fields = {"messages": [{"role": "user", "content": [image]}]}
    assert read_demand(20_100, 20_100, fields, 1) == TokenDemand(20_100 - 20_022, True, None, 1)
    assert read_demand(1_000_000, 2_000, {}, 1) == TokenDemand(2_000, True, None, 1), "a large body's are left out"


def test_of_an_unknown_model_a_byte_is_a_token() -> None:
    assert TokenEstimator().estimate_prompt(demand(1000)) == 1000 + TEMPLATE_TOKENS


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


def test_what_an_engine_does_not_count_teaches_nothing() -> None:
    estimator = TokenEstimator()
    estimator.record_usage(demand(1000), 0, 0)
    assert estimator.estimate_prompt(demand(1000)) == 1000 + TEMPLATE_TOKENS
    assert estimator.answer_tokens is None


def test_media_are_learned_apart() -> None:
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


def claim_of(estimator: TokenEstimator, demand: TokenDemand) -> TokenClaim:
    claim = TokenClaim(demand)
    claim.estimate_tokens(estimator, CONTEXT, SHARE)
    return claim


def test_a_limit_is_reserved_where_it_is_one() -> None:
    estimator = TokenEstimator()
    estimator.record_usage(demand(1000), 250, 100)
    prompt = estimator.estimate_prompt(demand(1000))
    bounded = claim_of(estimator, demand(max_tokens=1500))
    assert (bounded.is_bounded, bounded.needed) == (True, prompt + 1500)
    two = claim_of(estimator, demand(max_tokens=1500, sequences=2))
    assert (two.is_bounded, two.needed) == (True, prompt + 3000), "both have the same prompt"
    for limit in (None, CONTEXT, CONTEXT // 2 + 1):
        claim = claim_of(estimator, demand(max_tokens=limit))
        assert (claim.is_bounded, claim.needed) == (False, prompt + 100), "what the model's answers take"


def test_without_an_answer_to_learn_from_a_slots_share_is_reserved() -> None:
    estimator = TokenEstimator()
    assert claim_of(estimator, demand(500)).needed == SHARE
    assert claim_of(estimator, demand(5000)).needed == 5000 + TEMPLATE_TOKENS + LEAST_ANSWER
