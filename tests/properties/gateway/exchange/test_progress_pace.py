"""Whatever changes whenever: no comment repeats the last, none comes too soon, and the newest is told in the end."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from gateway.admission.ticket import QueuePlace
from gateway.exchange.progress import TOLD_EVERY_S, Progress, ProgressPace, progress_comment
from gateway.protocols.chat.prompt_progress import PromptProgress

places = st.integers(2, 4).map(lambda number: QueuePlace(number, 4, None))
prompts = st.integers(0, 4).map(lambda number: PromptProgress(4, 0, number))
progresses = (
    places.map(lambda place: Progress("queue", "m", place=place))
    | st.tuples(st.sampled_from(["unloaded", "loading"]), st.sampled_from([None, 0.1, 0.2])).map(
        lambda told: Progress("load", "m", *told)
    )
    | prompts.map(lambda prompt: Progress("prefill", "m", share=prompt.share, prompt=prompt))
    | st.just(Progress("prefill", "m"))
)
steps = st.lists(st.tuples(st.none() | progresses, st.integers(0, 3)), max_size=30)


@given(steps)
def test_progress_comments_keep_their_pace(taken: list[tuple[Progress | None, int]]) -> None:
    pace, now = ProgressPace(), 0.0
    told: list[tuple[bytes, Progress, float]] = []
    newest: Progress | None = None
    for progress, quarters in taken:
        now += quarters * TOLD_EVERY_S / 2
        newest = progress or newest
        comment = pace.next_comment(now) if progress is None else pace.change(progress, now)
        if comment is not None:
            assert newest is not None
            assert comment == progress_comment(newest)
            told.append((comment, newest, now))
    for (before, one, at), (after, other, then) in itertools.pairwise(told):
        assert before != after
        is_same = (one.stage, one.state, one.share is None) == (other.stage, other.state, other.share is None)
        assert not is_same or other.share == 1 or then - at >= TOLD_EVERY_S
    if newest is not None:
        last = pace.next_comment(now + TOLD_EVERY_S) or told[-1][0]
        assert last == progress_comment(newest)
