"""The worker's routes over an engine, and jobs between engine threads and the event loop."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator

import pytest
from starlette.testclient import TestClient

from tests.support.wait import until
from worker.__main__ import parse_engine
from worker.engine import Job
from worker.errors import EngineFailedError, JobCancelledError, RequestError
from worker.metrics import Counters
from worker.serving import Run, Runner, Worker, create_app


def counting(job: Job) -> Iterator[int]:
    for number in range(3):
        job.count_token()
        yield number


def endless(job: Job) -> Iterator[int]:
    while True:
        job.count_token()
        yield 0
        job.pause(0.001)


async def exhaust(run: Run[int]) -> None:
    async for _ in run:
        pass


async def test_pieces_come_in_order_and_are_counted_once() -> None:
    counters = Counters()
    runner = Runner(1, counters)
    run = runner.start_run(counting)
    assert [number async for number in run] == [0, 1, 2]
    assert [number async for number in run] == [], "an end stays the end"
    assert counters.read_figures().tokens_predicted == run.job.completion_tokens == 3
    assert counters.read_figures().processing == counters.read_figures().deferred == 0
    run.cancel()
    run.cancel()
    runner.forget_run(run)
    assert counters.read_figures().processing == counters.read_figures().deferred == 0, "after the end, nothing changes"


async def test_one_slot_serves_in_order_of_arrival() -> None:
    runner = Runner(1, Counters())
    order: list[str] = []

    def named(name: str) -> object:
        def work(job: Job) -> Iterator[None]:
            order.append(name)
            yield None

        return runner.start_run(work)

    runs = [named(name) for name in "abcde"]
    await until("all have run", lambda: len(order) == len(runs))
    assert order == list("abcde")


async def test_several_slots_serve_side_by_side() -> None:
    runner = Runner(2, Counters())
    meeting = threading.Barrier(2, timeout=60)

    def meet(job: Job) -> Iterator[int]:
        yield meeting.wait()

    first, second = runner.start_run(meet), runner.start_run(meet)
    assert {await anext(first), await anext(second)} == {0, 1}


async def test_cancelling_stops_the_engine_at_its_next_token() -> None:
    counters = Counters()
    run = Runner(1, counters).start_run(endless)
    await anext(run)
    assert counters.read_figures().processing == 1
    run.cancel()
    with pytest.raises(JobCancelledError):
        await exhaust(run)
    await until("the slot is free", lambda: counters.read_figures().processing == 0)
    predicted = counters.read_figures().tokens_predicted
    assert predicted == run.job.completion_tokens


async def test_a_job_that_waits_is_withdrawn_without_ever_running() -> None:
    counters = Counters()
    runner = Runner(1, counters)
    running = runner.start_run(endless)
    await anext(running)
    ran = threading.Event()

    def work(job: Job) -> Iterator[None]:
        ran.set()
        yield None

    waiting = runner.start_run(work)
    assert counters.read_figures().deferred == 1
    waiting.cancel()
    assert counters.read_figures().deferred == 0
    with pytest.raises(JobCancelledError):
        await anext(waiting)
    runner.forget_run(running)
    last = runner.start_run(counting)
    assert [number async for number in last] == [0, 1, 2]
    assert not ran.is_set()


async def test_a_request_s_own_fault_is_passed_on() -> None:
    def refuse(job: Job) -> Iterator[int]:
        raise RequestError("too long", param="prompt")

    with pytest.raises(RequestError, match="too long"):
        await anext(Runner(1, Counters()).start_run(refuse))


async def test_an_engine_s_failure_is_logged_and_named_as_one(caplog: pytest.LogCaptureFixture) -> None:
    def break_down(job: Job) -> Iterator[int]:
        yield 1
        raise OSError("cable cut")

    counters = Counters()
    runner = Runner(1, counters)
    run = runner.start_run(break_down)
    assert await anext(run) == 1
    with pytest.raises(EngineFailedError):
        await anext(run)
    assert "cable cut" in caplog.text
    assert counters.read_figures().processing == 0
    assert [number async for number in runner.start_run(counting)] == [0, 1, 2]


async def test_stopping_cancels_what_runs_and_what_waits() -> None:
    counters = Counters()
    runner = Runner(1, counters)
    runs = [runner.start_run(endless) for _ in range(3)]
    await anext(runs[0])
    runner.stop_runs()
    assert runner.stopping
    for run in runs:
        with pytest.raises(JobCancelledError):
            await exhaust(run)
    await until("the slot is free", lambda: counters.read_figures().processing == 0)
    assert counters.read_figures().deferred == 0


@pytest.mark.parametrize("encoding", ["float", "base64"])
@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_vectors_must_be_finite(number: float, encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, args = parse_engine("stub", ["--host", "127.0.0.1", "--port", "1", "--served-name", "demo"])
    engine = module.create(args)
    monkeypatch.setattr(engine, "embed_texts", lambda texts, job: [[0.5, 1.0], [0.5, number]])
    worker = Worker(engine, "demo")
    worker.ready = True
    client = TestClient(create_app(worker, None))
    answer = client.post("/v1/embeddings", json={"input": ["a", "b"], "encoding_format": encoding})
    message = "The model gave a number that is not finite."
    error = {"message": message, "type": "server_error", "code": "internal_error", "param": None}
    assert (answer.status_code, answer.json()) == (500, {"error": error})
