"""When written versions are flushed: at once if nothing else comes, and never later than a few flushes take."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from retrieval.ingestion.flush_policy import FLUSHES_WAITED, LONGEST_WAIT_S, MOST_TOGETHER, flush_delay_s

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
