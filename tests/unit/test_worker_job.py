"""How an engine learns that an answer is no longer wanted."""

from __future__ import annotations

import threading

import pytest

from worker.engine import Job
from worker.errors import JobCancelledError
from worker.metrics import Counters


def test_an_engine_is_interrupted_within_and_neither_before_nor_behind() -> None:
    job, told = Job(Counters()), []
    with job.interrupted_by(lambda: told.append("first")):
        pass
    with job.interrupted_by(lambda: told.append("second")):
        assert told == []
        thread = threading.Thread(target=job.cancel)
        thread.start()
        thread.join()
        assert told == ["second"]
    job.cancel()
    assert told == ["second"]


def test_what_was_cancelled_is_not_begun() -> None:
    job = Job(Counters())
    job.cancel()
    with pytest.raises(JobCancelledError), job.interrupted_by(lambda: pytest.fail("nothing was begun")):
        pytest.fail("it was begun")
    with pytest.raises(JobCancelledError):
        job.check()
