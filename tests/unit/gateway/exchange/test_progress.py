"""What clients are told of the progress of their requests, and when."""

from __future__ import annotations

import pytest

from controller.schema.status import ModelState
from gateway.admission.admission import QueuePlace
from gateway.exchange.progress import (
    TOLD_EVERY_S,
    Progress,
    ProgressPace,
    asked_progress,
    load_comment,
    prefill_progress,
    progress_comment,
    queue_progress,
)
from gateway.protocols.chat.prompt_progress import PromptProgress
from tests.fakes.fake_controller import route

M = route("m")
WAITING = route("m", state=ModelState.LOADING, reason="waiting for room: a is ending")
LOADING = route("m", state=ModelState.LOADING, progress=0.25004)


@pytest.mark.parametrize(
    ("progress", "comment"),
    [
        (
            queue_progress(M, QueuePlace(3, 4, 1500), is_loading=False),
            b': progress {"stage":"queue","model":"m","queue_position":3,"queue_depth":4,"estimated_wait_ms":1500}\n\n',
        ),
        (
            queue_progress(M, QueuePlace(2, 2, None), is_loading=False),
            b': progress {"stage":"queue","model":"m","queue_position":2,"queue_depth":2}\n\n',
        ),
        (
            queue_progress(LOADING, QueuePlace(2, 2, None), is_loading=True),
            b': progress {"stage":"load","model":"m","state":"loading","progress":0.25,"queue_position":2,'
            b'"queue_depth":2}\n\n',
        ),
        (
            queue_progress(route("m", state=ModelState.UNLOADED, reason="no request"), None, is_loading=True),
            b': progress {"stage":"load","model":"m","state":"unloaded"}\n\n',
        ),
        (
            queue_progress(WAITING, None, is_loading=True),
            b': progress {"stage":"load","model":"m","state":"loading","reason":"waiting for room: a is ending"}\n\n',
        ),
        (
            prefill_progress("m", session="reused"),
            b': progress {"stage":"prefill","model":"m","session":"reused"}\n\n',
        ),
        (prefill_progress("m"), b': progress {"stage":"prefill","model":"m"}\n\n'),
        (
            prefill_progress("a\n\nb", PromptProgress(1606, 6, 256)),
            b': progress {"stage":"prefill","model":"a\\n\\nb","progress":0.159,"prompt_tokens":1606,'
            b'"cached_tokens":6,"processed_tokens":256}\n\n',
        ),
    ],
)
def test_a_comment_is_one_line_of_json(progress: Progress, comment: bytes) -> None:
    assert progress_comment(progress) == comment


def test_the_comment_of_a_load_alone_has_the_form_that_it_always_had() -> None:
    assert load_comment(LOADING) == b': load-progress {"model":"m","state":"loading","progress":0.25}\n\n'
    waits = b': load-progress {"model":"m","state":"loading","reason":"waiting for room: a is ending"}\n\n'
    assert load_comment(WAITING) == waits


@pytest.mark.parametrize(
    ("headers", "asked"),
    [
        ([(b"x-progress", b"true")], {b"x-progress"}),
        ([(b"accept", b"*/*"), (b"x-progress", b" TRUE ")], {b"x-progress"}),
        ([(b"x-progress", b"false")], set()),
        ([(b"x-progress", b"1")], set()),
        ([(b"x-load-progress", b"true")], {b"x-load-progress"}),
        ([(b"x-load-progress", b"true"), (b"x-progress", b"true")], {b"x-progress", b"x-load-progress"}),
        ([], set()),
    ],
)
def test_who_asks(headers: list[tuple[bytes, bytes]], asked: set[bytes]) -> None:
    assert set(asked_progress(headers)) == asked


def read(processed: int, total: int = 100) -> Progress:
    """A prompt of which so many tokens are read."""
    return prefill_progress("m", PromptProgress(total, 0, processed))


def test_a_change_within_a_stage_waits_for_its_time_and_the_newest_is_told() -> None:
    pace = ProgressPace()
    assert pace.change(prefill_progress("m"), 1.0) is not None
    assert pace.change(read(0), 1.0) is not None, "the first share"
    assert pace.change(read(10), 1.0) is None
    assert pace.change(read(20), 1.0 + TOLD_EVERY_S / 2) is None
    assert pace.next_comment(1.0 + TOLD_EVERY_S / 2) is None
    assert pace.next_comment(1.0 + TOLD_EVERY_S) == progress_comment(read(20))
    assert pace.next_comment(9.0) is None, "nothing has changed"


def test_a_new_stage_a_new_state_and_the_end_of_a_prompt_are_told_at_once() -> None:
    pace = ProgressPace()
    steps = (
        queue_progress(route("m", state=ModelState.UNLOADED), None, is_loading=True),
        queue_progress(route("m", state=ModelState.LOADING), None, is_loading=True),
        queue_progress(LOADING, None, is_loading=True),
        queue_progress(M, QueuePlace(2, 2, 0), is_loading=False),
        prefill_progress("m"),
        read(0),
        read(100),
    )
    assert [pace.change(step, 1.0) for step in steps] == [progress_comment(step) for step in steps]


def test_what_was_told_is_not_told_again() -> None:
    pace = ProgressPace()
    assert pace.change(read(5), 1.0) is not None
    assert pace.change(read(6), 1.0) is None
    assert pace.change(read(5), 1.0) is None
    assert pace.next_comment(9.0) is None


def test_a_wait_that_is_over_is_not_told_of_later() -> None:
    pace = ProgressPace()
    pace.change(read(5), 1.0)
    pace.change(read(6), 1.0)
    pace.drop()
    assert pace.next_comment(9.0) is None
