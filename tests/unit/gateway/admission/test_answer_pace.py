"""What answers took, and what is expected of the next one."""

from __future__ import annotations

import pytest

from gateway.admission.answer_pace import AnswerPace, AnswerPaces


def pace(*answers: tuple[int, int, float]) -> AnswerPace:
    """After answers of (prompt tokens, completion tokens, seconds)."""
    made = AnswerPace()
    for answer in answers:
        made.record_answer(*answer)
    return made


def test_nothing_is_expected_before_an_answer_with_tokens() -> None:
    assert pace().expected_s(10, 100, runs_to_bound=False) is None
    assert pace((10, 0, 1.0)).expected_s(10, 100, runs_to_bound=False) is None


@pytest.mark.parametrize(
    ("most_tokens", "runs_to_bound", "expected_s"),
    [
        (10, False, 0.1),  # its own limit
        (None, False, 2.0),  # four times the others
        (5000, False, 2.0),
        (5000, True, 50.0),  # it does not end by itself
        (None, True, None),
    ],
)
def test_an_answer_takes_its_tokens_times_what_one_took(
    most_tokens: int | None, runs_to_bound: bool, expected_s: float | None
) -> None:
    told = pace((10, 50, 0.5)).expected_s(10, most_tokens, runs_to_bound=runs_to_bound)
    assert told == (None if expected_s is None else pytest.approx(expected_s))


def test_of_a_longer_prompt_than_the_others_nothing_is_expected() -> None:
    known = pace((1000, 50, 0.5))
    assert known.expected_s(2064, 10, runs_to_bound=False) is not None
    assert known.expected_s(2065, 10, runs_to_bound=False) is None


def test_what_changes_is_learned_within_some_answers() -> None:
    known = pace(*[(10, 100, 0.1)] * 50, *[(10, 100, 10.0)] * 10)
    told = known.expected_s(10, 100, runs_to_bound=False)
    assert told is not None
    assert 5.0 < told < 10.0


def test_models_that_are_gone_are_forgotten() -> None:
    paces = AnswerPaces()
    for name in ("kept", "gone"):
        paces.of(name).record_answer(1, 1, 1.0)
    paces.keep_models({"kept": object()})
    assert paces.of("kept").expected_s(1, 1, runs_to_bound=False) == pytest.approx(1.0)
    assert paces.of("gone").expected_s(1, 1, runs_to_bound=False) is None
