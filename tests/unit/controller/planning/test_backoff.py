"""Backoff and plain words."""

from __future__ import annotations

import pytest

from controller.engines.base import Verdict
from controller.planning.backoff import MAX_BACKOFF_S, STABLE_S, next_failure, verdict_of_exit
from controller.state import Exit, Failure

NOW = 100.0


def _failures(count: int, *, ready_for_s: float | None) -> list[float]:
    """The waits after `count` failures in a row."""
    failure: Failure | None = None
    waits = []
    for attempt in range(1, count + 1):
        failure = next_failure(failure, Verdict("boom"), attempt, NOW, ready_for_s=ready_for_s)
        assert failure.retry_at is not None
        assert failure.attempt == attempt
        waits.append(failure.retry_at - NOW)
    return waits


def test_a_load_that_fails_waits_twice_as_long_each_time_up_to_five_minutes() -> None:
    assert _failures(5, ready_for_s=None) == [1, 2, 4, 8, 16]
    assert _failures(30, ready_for_s=None)[-1] == MAX_BACKOFF_S


def test_an_engine_that_served_is_started_again_at_once_the_first_time_and_after_long_each_time() -> None:
    assert _failures(4, ready_for_s=3.0) == [0, 1, 2, 4]
    assert _failures(4, ready_for_s=STABLE_S) == [0, 0, 0, 0]


def test_a_permanent_error_parks() -> None:
    parked = next_failure(None, Verdict("bad argument", permanent=True), 1, NOW, ready_for_s=None)
    assert parked.retry_at is None
    assert parked.must_wait(NOW + 1e9)


@pytest.mark.parametrize(
    ("end", "words"),
    [
        (Exit(1, log_tail="gguf_init: invalid magic characters"), "not a GGUF file; the engine ended with exit code 1"),
        (Exit(-9), "the engine was killed (SIGKILL)"),
        (Exit(137), "the engine was killed (SIGKILL)"),
        (Exit(139), "the engine crashed (SIGSEGV)"),
        (Exit(None), "the engine ended"),
        (Exit(127), "the engine could not be run: its program is not there"),
        (Exit(137, oom=True), "out of memory: the engine was killed at its memory limit"),
        (Exit(1, log_tail="cudaMalloc failed: out of memory"), "out of memory"),
        (Exit(1, log_tail="couldn't bind HTTP server socket"), "port taken"),
    ],
)
def test_plain_words_come_first_and_log_lines_follow(end: Exit, words: str) -> None:
    verdict = verdict_of_exit("llama_server", end, was_ready=False)
    assert verdict.message.startswith(words)
    assert verdict.plain is not None
    assert verdict.plain.startswith(words)
    assert verdict.message.startswith(verdict.plain)
    if end.log_tail:
        assert verdict.message == f"{verdict.plain}. Last log lines:\n{end.log_tail}"
        assert end.log_tail not in verdict.plain


def test_only_an_engine_that_never_served_fails_for_good() -> None:
    end = Exit(1, log_tail="error: invalid argument: --nonsense")
    assert verdict_of_exit("llama_server", end, was_ready=False).permanent
    assert not verdict_of_exit("llama_server", end, was_ready=True).permanent
