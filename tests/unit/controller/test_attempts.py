"""Numbers of attempts: none comes twice, whatever was forgotten."""

from __future__ import annotations

from controller.state import MOST_ATTEMPT_KEYS, AttemptNumbers


def test_the_highest_attempt_counts() -> None:
    numbers = AttemptNumbers().with_attempt("a", 3)
    assert (numbers.highest_of("a"), numbers.highest_of("b")) == (3, 0)
    assert numbers.with_attempt("a", 2) is numbers
    assert numbers.with_attempt("a", 4).highest == {"a": 4}
    assert numbers.highest == {"a": 3}


def test_what_was_dropped_lifts_those_that_are_not_known() -> None:
    numbers = AttemptNumbers().with_attempt("a", 9).with_attempt("b", 1).with_attempt("a", 10)
    for number in range(MOST_ATTEMPT_KEYS - 1):
        numbers = numbers.with_attempt(f"m/{number}", 1)
    assert (len(numbers.highest), numbers.dropped) == (MOST_ATTEMPT_KEYS, 1), "the one that was started first"
    assert "b" not in numbers.highest
    numbers = numbers.with_attempt("one more", 2)
    assert numbers.dropped == 10
    assert numbers.highest_of("a") == numbers.highest_of("never seen") == 10
    assert numbers.with_attempt("a", 5) is numbers


def test_what_is_stored_is_read() -> None:
    numbers = AttemptNumbers(highest={"team/m:1/0/0123": 2, "m/0/1": 1}, dropped=3)
    assert AttemptNumbers.model_validate_json(numbers.model_dump_json()) == numbers
