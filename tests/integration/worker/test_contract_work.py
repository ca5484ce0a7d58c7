"""How every engine of the worker works: for several clients, for one that leaves, and until a signal ends it.

One busy worker of each engine serves the whole file, and another where a test has ended it.
"""

from __future__ import annotations

import http.client
import json
import signal
from typing import Any

import pytest

from tests.support.scripted_models import CHAT, USER, choice, post
from tests.support.worker_engines import Fleet, WorkerEngine, each_engine
from tests.support.worker_process import Worker, eventually, leave

pytestmark = pytest.mark.engines

SHORT = {"messages": USER, "max_tokens": 3}
SAID = "The quick brown"


@pytest.fixture
def worker(fleet: Fleet, engine: WorkerEngine) -> Worker:
    return fleet.busy(engine)


def idle(worker: Worker) -> bool:
    return worker.figure("requests_processing") + worker.figure("requests_deferred") == 0


def begin(worker: Worker, engine: WorkerEngine, **fields: Any) -> http.client.HTTPConnection:
    """A request that keeps one slot at work, and is worked on by now."""
    path, body = engine.work
    opened = worker.open("POST", path, {**body, **fields})
    eventually("it is worked on", lambda: worker.figure("requests_processing") > 0)
    return opened


# llama-server's figures stand still while it works: its own tests look into its log.
@pytest.mark.parametrize("stream", [True, False])
@each_engine(lambda engine: not engine.own_surface)
def test_a_client_that_leaves_stops_the_work(worker: Worker, engine: WorkerEngine, stream: bool) -> None:
    path, short = engine.request
    vectors = None if engine.chats else post(worker, path, **short)["data"]
    before = worker.figure(engine.counts)
    running = begin(worker, engine, stream=stream)
    assert worker.figure("requests_processing") == 1
    eventually("something is done", lambda: worker.figure(engine.counts) > before)
    leave(running)
    eventually("nothing runs", lambda: idle(worker))
    assert worker.figure(engine.counts) - before < engine.whole
    if engine.chats:
        # A further answer of known length is all that is counted from now on.
        created = worker.figure("tokens_predicted_total")
        assert choice(worker, max_tokens=3)["message"]["content"] == SAID
        assert worker.figure("tokens_predicted_total") == created + 3
    else:
        assert post(worker, path, **short)["data"] == vectors


@each_engine(lambda engine: engine.slots > 1 and not engine.own_surface)
def test_requests_are_worked_on_side_by_side(worker: Worker, engine: WorkerEngine) -> None:
    path, body = engine.work
    number = min(engine.slots, 5) - 1
    prompts = worker.figure("prompt_tokens_total")
    running = [worker.open("POST", path, body) for _ in range(number)]
    eventually("all are worked on", lambda: worker.figure("requests_processing") == number)
    assert choice(worker, max_tokens=3)["message"]["content"] == SAID
    assert worker.figure("requests_processing") == number, "the others run on"
    assert worker.figure("requests_deferred") == 0
    read = prompts + (number + 1) * engine.prompt_tokens
    eventually("all prompts were read", lambda: worker.figure("prompt_tokens_total") == read)
    for connection in running:
        leave(connection)
    eventually("none is left", lambda: idle(worker))


@each_engine(lambda engine: engine.slots <= 2 and not engine.own_surface and engine.chats)
def test_more_than_its_slots_wait_and_may_leave_and_counts_do_not_wait(worker: Worker, engine: WorkerEngine) -> None:
    running = [begin(worker, engine) for _ in range(engine.slots)]
    eventually("its slots are taken", lambda: worker.figure("requests_processing") == engine.slots)
    leaving = worker.open("POST", CHAT, {**SHORT, "stream": True})
    eventually("one waits", lambda: worker.figure("requests_deferred") == 1)
    staying = worker.open("POST", CHAT, SHORT)
    eventually("two wait", lambda: worker.figure("requests_deferred") == 2)
    if "prompts" in engine.apis:
        assert post(worker, f"{CHAT}/input_tokens")["input_tokens"] == engine.prompt_tokens
        assert worker.figure("requests_deferred") == 2
    leave(leaving)
    eventually("it waits no more", lambda: worker.figure("requests_deferred") == 1)
    assert worker.figure("requests_processing") == engine.slots
    leave(running.pop())
    answer = json.loads(staying.getresponse().read())
    assert answer["choices"][0]["message"]["content"] == SAID
    for connection in running:
        leave(connection)
    eventually("none is left", lambda: idle(worker))


@each_engine(lambda engine: engine.name in ("ct2", "exllamav3", "litert_lm"))
def test_a_request_may_be_as_long_as_the_model_can_take(worker: Worker, engine: WorkerEngine) -> None:
    assert json.loads(worker.request("GET", "/v1/models")[1])["data"][0]["meta"]["n_ctx"] == engine.own_context


@each_engine(lambda engine: not engine.own_surface)
def test_a_signal_ends_it_with_work_running(worker: Worker, engine: WorkerEngine) -> None:
    end_at_work(worker, engine, signal.SIGTERM)


# Above, a request that does not stream waits where there is one slot.
@each_engine(lambda engine: engine.slots == 1 and not engine.own_surface)
def test_a_signal_ends_an_answer_that_does_not_stream(worker: Worker, engine: WorkerEngine) -> None:
    running = begin(worker, engine)
    assert worker.stop() == 0
    whole = running.getresponse()
    assert (whole.status, json.loads(whole.read())["error"]["code"]) == (503, "model_unloading")


@each_engine(lambda engine: engine.name == "stub")
def test_so_does_ctrl_c(worker: Worker, engine: WorkerEngine) -> None:
    end_at_work(worker, engine, signal.SIGINT)


def end_at_work(worker: Worker, engine: WorkerEngine, number: signal.Signals) -> None:
    path, body = engine.work
    stream = begin(worker, engine, stream=True)
    speaks = engine.counts == "tokens_predicted_total"
    if speaks:
        response = stream.getresponse()
        assert response.readline().startswith(b"data: ")
    blocking = worker.open("POST", path, body)
    eventually("both were taken", lambda: worker.figure("requests_processing") + worker.figure("requests_deferred") > 1)
    assert worker.stop(number) == 0
    if speaks:
        *_, last, nothing = response.read().decode().split("\n\n")
        assert json.loads(last.removeprefix("data: "))["error"]["code"] == "model_unloading"
        assert nothing == ""
    whole = blocking.getresponse()
    assert (whole.status, json.loads(whole.read())["error"]["code"]) == (503, "model_unloading")
