"""How large batches become, and when writes are flushed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from retrieval.ingestion.policies import (
    FLUSHES_WAITED,
    GAIN,
    LONGEST_WAIT_S,
    MOST_TOGETHER,
    SAMPLES,
    TRY_AGAIN_AFTER,
    BatchSize,
    flush_delay_s,
)

largests = st.integers(1, 1024)


def list_sizes(largest: int) -> list[int]:
    """The sizes that there are."""
    return [largest >> shift for shift in range(largest.bit_length())]


@given(
    largests,
    st.lists(
        st.one_of(
            st.tuples(st.just("answer"), st.floats(1e-6, 1000)),
            st.tuples(st.just("short"), st.floats(1e-6, 1000)),
            st.tuples(st.just("refusal"), st.just(0.0)),
        ),
        max_size=200,
    ),
)
def test_a_size_is_within_its_bounds_whatever_happens(largest: int, events: list[tuple[str, float]]) -> None:
    batch = BatchSize(largest)
    for kind, seconds in events:
        size = batch.size
        assert size in list_sizes(largest)
        if kind == "refusal" and size > 1:
            batch.note_refusal(size)
            assert batch.size <= max(1, size // 2)
        elif kind == "short" and size > 1:
            batch.note_answer(size - 1, seconds)
            assert batch.size == size
        else:
            batch.note_answer(size, seconds)
            assert batch.size <= 2 * size + 1


@given(largests, st.floats(1e-3, 10), st.floats(1e-6, 1e-4))
def test_an_engine_that_only_a_request_costs_gets_the_largest(largest: int, fixed_s: float, text_s: float) -> None:
    """Each doubling gains, as long as the request's own cost is more than a fifth of it."""
    batch = BatchSize(largest)
    for _ in range(SAMPLES * 12):
        batch.note_answer(batch.size, fixed_s + text_s * batch.size)
    best = [size for size in list_sizes(largest) if size == 1 or fixed_s > 0.25 * (fixed_s + text_s * size)]
    assert batch.size >= max(best)


@given(largests, st.floats(1e-3, 1))
def test_an_engine_that_gains_nothing_gets_little(largest: int, text_s: float) -> None:
    batch = BatchSize(largest)
    for _ in range(SAMPLES * 3):
        batch.note_answer(batch.size, text_s * batch.size)
    assert batch.size <= 4


@given(st.integers(2, 1024), st.integers(1, 1023), st.floats(1e-3, 1))
def test_what_an_engine_refuses_is_asked_rarely(largest: int, most: int, fixed_s: float) -> None:
    """An engine takes `most` texts: of many requests, few are refused, and the others have the largest size that it
    takes."""
    batch, refused, sizes = BatchSize(largest), 0, []
    for _ in range(TRY_AGAIN_AFTER * 4):
        size = batch.size
        if size > most:
            refused += 1
            batch.note_refusal(size)
        else:
            sizes.append(size)
            batch.note_answer(size, fixed_s)
    assert refused <= 4 + largest.bit_length()
    fitting = max(size for size in list_sizes(largest) if size <= most)
    assert sizes[-1] == fitting


@given(largests)
def test_a_slower_engine_makes_a_size_lower_again(largest: int) -> None:
    """Sizes above 8 are slower than 8 by more than the gain that is asked for."""
    batch = BatchSize(largest)
    seen = []
    for _ in range(SAMPLES * 12):
        seen.append(batch.size)
        batch.note_answer(batch.size, 1.0 if batch.size <= 8 else GAIN * 2 * batch.size)
    assert batch.size <= 8 or batch.size == min(list_sizes(largest))
    assert max(seen) <= 31


seconds = st.floats(0, 1000)
counts = st.integers(1, 2 * MOST_TOGETHER)


@given(counts, seconds, seconds)
def test_nothing_waits_where_nothing_comes_or_a_group_is_full(waiting: int, waited_s: float, last_s: float) -> None:
    assert flush_delay_s(waiting, waited_s, last_s, is_more_expected=False) == 0
    assert flush_delay_s(waiting + MOST_TOGETHER, waited_s, last_s, is_more_expected=True) == 0


@given(counts, seconds, seconds)
def test_a_wait_is_as_long_as_a_few_flushes_at_most_and_ends(waiting: int, waited_s: float, last_s: float) -> None:
    delay = flush_delay_s(waiting, waited_s, last_s, is_more_expected=True)
    assert 0 <= delay <= min(LONGEST_WAIT_S, FLUSHES_WAITED * last_s)
    # Two spans are added: the sum may miss the first by a rounding.
    assert flush_delay_s(waiting, waited_s + delay + 1e-9, last_s, is_more_expected=True) < 1e-6
