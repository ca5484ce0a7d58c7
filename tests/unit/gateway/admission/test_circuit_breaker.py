"""When a replica that fails is left out."""

from __future__ import annotations

from gateway.admission.circuit_breaker import FAILURES, FIRST_PAUSE_S, LONGEST_PAUSE_S, CircuitBreaker


def _open() -> CircuitBreaker:
    breaker = CircuitBreaker()
    for _ in range(FAILURES):
        breaker.record_failure(0.0)
    return breaker


def test_it_opens_after_three_failures_in_a_row() -> None:
    breaker = CircuitBreaker()
    for _ in range(2):
        breaker.record_failure(0.0)
        assert not breaker.is_open
        assert breaker.admits_request(0.0)
    breaker.record_failure(0.0)
    assert breaker.is_open
    assert not breaker.admits_request(0.0)
    assert breaker.retry_in_s(0.25) == 0.75


def test_after_the_pause_one_trial_at_a_time() -> None:
    breaker, first, second = _open(), object(), object()
    assert not breaker.admits_request(FIRST_PAUSE_S - 0.001)
    assert breaker.admits_request(FIRST_PAUSE_S)
    breaker.begin_trial(first)
    assert not breaker.admits_request(FIRST_PAUSE_S + 50)
    breaker.end_trial(second)
    assert not breaker.admits_request(FIRST_PAUSE_S + 50)
    breaker.end_trial(first)
    assert breaker.admits_request(FIRST_PAUSE_S + 50)


def test_a_failed_trial_doubles_the_pause_up_to_the_longest() -> None:
    breaker = _open()
    now, pauses = FIRST_PAUSE_S, []
    for _ in range(7):
        trial = object()
        breaker.begin_trial(trial)
        breaker.record_failure(now)
        breaker.end_trial(trial)
        pauses.append(breaker.retry_in_s(now))
        now += pauses[-1]
    assert pauses == [2, 4, 8, 16, LONGEST_PAUSE_S, LONGEST_PAUSE_S, LONGEST_PAUSE_S]


def test_what_was_inside_when_it_opened_does_not_lengthen_the_pause() -> None:
    breaker = _open()
    for _ in range(20):
        breaker.record_failure(0.5)
    assert breaker.retry_in_s(0.5) == 0.5
