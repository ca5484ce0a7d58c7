"""Properties of a key's limits, over any order of requests, answers, edits and pauses."""

from __future__ import annotations

from itertools import combinations_with_replacement

from hypothesis import given, settings
from hypothesis import strategies as st

from contract.errors import RoundhouseError
from contract.keys import Key
from gateway.tenancy.api_keys import KeyRing
from gateway.tenancy.rate_limits import RateLimitEntry, RateLimits
from tests.support.campaign import campaign_count

amounts = st.integers(0, 40)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("enter"), amounts),
        st.tuples(st.just("leave"), st.integers(0, 9)),
        st.tuples(st.just("pause"), st.integers(0, 20_000)),
    ),
    max_size=60,
)
capacities = st.integers(1, 40)


def ring(requests: int | None, tokens: int | None, concurrency: int | None) -> KeyRing:
    limits = {"requests_per_minute": requests, "tokens_per_minute": tokens, "concurrency": concurrency}
    return KeyRing.of((Key(name="k", tenant="t", sha256="0" * 64, **limits),))


def refused_by(limits: RateLimits, keys: KeyRing, amount: int, now: float) -> RoundhouseError | RateLimitEntry:
    try:
        return limits.admit_request(keys.by_name["k"], amount, now)
    except RoundhouseError as error:
        return error


def within(events: list[tuple[float, float]], capacity: int) -> bool:
    """Whether in every window no more was used than the bucket held and what came in meanwhile."""
    times = sorted({at for at, _ in events})
    return all(
        sum(amount for at, amount in events if start <= at <= end) <= capacity + (end - start) * capacity / 60 + 1e-3
        for start, end in combinations_with_replacement(times, 2)
    )


@settings(max_examples=campaign_count(50, 2_500))
@given(capacities, capacities, steps)
def test_never_more_than_the_limit_in_any_window(per_minute: int, tokens: int, script: list[tuple[str, int]]) -> None:
    limits, keys, now = RateLimits(), ring(per_minute, tokens, None), 0.0
    requests_used: list[tuple[float, float]] = []
    tokens_used: list[tuple[float, float]] = []
    inside: list[tuple[RateLimitEntry, int]] = []
    for what, number in script:
        if what == "pause":
            now += number / 1000
        elif what == "enter":
            amount = min(number, tokens)
            entry = refused_by(limits, keys, amount, now)
            if isinstance(entry, RateLimitEntry):
                inside.append((entry, amount))
                requests_used.append((now, 1))
                tokens_used.append((now, amount))
        elif inside:
            entry, amount = inside.pop(number % len(inside))
            used = amount * number // 9
            entry.release_request(now, used)
            tokens_used.append((now, used - amount))
    assert within(requests_used, per_minute)
    assert within(tokens_used, tokens)


@settings(max_examples=campaign_count(50, 2_500))
@given(capacities, st.integers(1, 4), steps)
def test_what_runs_is_counted_and_ends_at_zero(tokens: int, concurrency: int, script: list[tuple[str, int]]) -> None:
    limits, keys, now = RateLimits(), ring(None, tokens, concurrency), 0.0
    inside: list[RateLimitEntry] = []
    for what, number in script:
        if what == "pause":
            now += number / 1000
        elif what == "enter":
            entry = refused_by(limits, keys, number, now)
            if isinstance(entry, RateLimitEntry):
                inside.append(entry)
        elif inside:
            entry = inside.pop(number % len(inside))
            entry.release_request(now, number * 10)
            entry.release_request(now, number)
        assert limits.count_inflight("k") == len(inside) <= concurrency
    for entry in inside:
        entry.release_request(now, None)
    assert limits.count_inflight("k") == 0
    limits.follow_keys(KeyRing.of(()), now)
    assert not limits._states


@settings(max_examples=campaign_count(50, 2_500))
@given(capacities, capacities, steps, st.lists(st.tuples(capacities, capacities), max_size=5))
def test_headers_are_within_bounds_and_every_refusal_ends_when_it_says(
    per_minute: int, tokens: int, script: list[tuple[str, int]], edits: list[tuple[int, int]]
) -> None:
    limits, keys, now = RateLimits(), ring(per_minute, tokens, None), 0.0
    inside: list[RateLimitEntry] = []
    for turn, (what, number) in enumerate(script):
        if what == "pause":
            now += number / 1000
        elif what == "enter":
            entry = refused_by(limits, keys, number, now)
            if isinstance(entry, RoundhouseError):
                assert entry.retry_after_s is not None
                now += entry.retry_after_s
                entry = limits.admit_request(keys.by_name["k"], number, now)
            inside.append(entry)
        elif inside:
            inside.pop(number % len(inside)).release_request(now, number * 20)
        if turn % 7 == 6 and edits:
            per_minute, tokens = edits.pop()
            keys = ring(per_minute, tokens, None)
            limits.follow_keys(keys, now)
        shown = dict(limits.response_headers(keys.by_name["k"], now))
        for name, most in ((b"requests", per_minute), (b"tokens", tokens)):
            assert int(shown[b"x-ratelimit-limit-" + name]) == most
            assert 0 <= int(shown[b"x-ratelimit-remaining-" + name]) <= most
            assert b"-" not in shown[b"x-ratelimit-reset-" + name]
