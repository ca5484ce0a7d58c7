"""What the chaos test believes must be able to fail: wrong, cut and doubled things are seen."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from controller.runtimes.process.groups import START_ENV
from controller.runtimes.process.records import ReplicaRecord
from controller.runtimes.process.spawn import mark_variables
from controller.runtimes.process.stat import read_stat
from tests.support.checked_clients import (
    GATEWAYS_MARK,
    CheckedClients,
    Outcome,
    SilentEndError,
    WrongAnswerError,
    check_stream,
    check_whole,
)
from tests.support.engine_processes import what_is_wrong_with_engines
from tests.support.ports import free_port
from tests.support.roundhouse_stack import SENTENCE
from tests.support.wait import until


def _whole(text: str, finish: str = "stop") -> bytes:
    return json.dumps({"choices": [{"message": {"content": text}, "finish_reason": finish}]}).encode()


def _event(text: str, finish: str | None = None) -> bytes:
    return b"data: %b\n\n" % json.dumps({"choices": [{"delta": {"content": text}, "finish_reason": finish}]}).encode()


ERROR = json.dumps({"error": {"code": "engine_disconnected"}}).encode()
DONE = b"data: [DONE]\n\n"
RIGHT = _event(SENTENCE[:9]) + b": ka\n\n" + _event(SENTENCE[9:]) + _event("", "stop") + DONE


def test_a_right_answer_and_an_error_in_words() -> None:
    assert check_whole(200, _whole(SENTENCE)) == ""
    assert check_whole(502, ERROR) == "engine_disconnected"
    assert check_stream(RIGHT) == ""
    assert check_stream(_event(SENTENCE[:9]) + b"data: " + ERROR + b"\n\n") == "engine_disconnected"


@pytest.mark.parametrize(
    ("status", "body", "error"),
    [
        (200, _whole(SENTENCE[:-1]), WrongAnswerError),
        (200, _whole(SENTENCE + "!"), WrongAnswerError),
        (200, _whole(SENTENCE, "length"), WrongAnswerError),
        (200, _whole(SENTENCE)[:-1], SilentEndError),
        (200, ERROR, WrongAnswerError),
        (500, _whole(SENTENCE), WrongAnswerError),
        (200, b"", WrongAnswerError),
    ],
)
def test_a_wrong_whole_answer(status: int, body: bytes, error: type[WrongAnswerError]) -> None:
    with pytest.raises(error):
        check_whole(status, body)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        RIGHT.removesuffix(DONE),
        RIGHT[:-1],
        _event(SENTENCE[:9]) + DONE,
        _event(SENTENCE) + DONE,
        _event(SENTENCE + "x", "stop") + DONE,
        _event("x") + b"data: " + ERROR + b"\n\n",
        b"data: {\n\n" + DONE,
    ],
)
def test_a_wrong_stream(body: bytes) -> None:
    with pytest.raises(WrongAnswerError):
        check_stream(body)


def test_what_came_before_a_cut_must_be_right_and_an_end_without_a_mark_is_silent() -> None:
    with pytest.raises(SilentEndError):
        check_stream(RIGHT.removesuffix(DONE))
    assert check_stream(RIGHT[:-30], is_cut=True) == "cut"
    with pytest.raises(WrongAnswerError):
        check_stream(_event("x"), is_cut=True)


@asynccontextmanager
async def _server(answer: bytes, *, cuts: bool, is_gateway: bool = True) -> AsyncIterator[str]:
    """Says this in a stream to everybody, and ends the body or breaks the connection."""
    marks = {GATEWAYS_MARK: "req-1"} if is_gateway else {}

    async def say(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream", **marks})
        await response.prepare(request)
        await response.write(answer)
        if cuts:
            assert request.transport is not None
            request.transport.abort()
        return response

    app = web.Application()
    app.router.add_post("/v1/chat/completions", say)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        host, port = runner.addresses[0][:2]
        yield f"http://{host}:{port}"
    finally:
        await runner.cleanup()


@pytest.mark.parametrize(
    ("answer", "cuts", "outcome"),
    [
        (_event("The"), True, Outcome.CUT),
        (_event("The"), False, Outcome.SILENT),
        (_event("x"), True, Outcome.WRONG),
        (b"data: {\n\n", False, Outcome.WRONG),
        (b"data: " + ERROR + b"\n\n", False, "refused: engine_disconnected"),
    ],
)
async def test_how_a_request_ended_is_told_with_its_times(answer: bytes, cuts: bool, outcome: str) -> None:
    began = time.monotonic()
    async with _server(answer, cuts=cuts) as url:
        clients = CheckedClients(url, ("m",))
        async with clients.running(2):
            await until("both asked", lambda: len(clients.lost) > 3)
    assert {each.outcome for each in clients.lost} == {outcome}
    assert all(began <= each.began <= each.ended <= time.monotonic() for each in clients.lost)
    assert {each.stream for each in clients.lost} == {True, False}
    assert clients.requests == len(clients.lost)
    assert bool(clients.wrong) is (outcome in (Outcome.SILENT, Outcome.WRONG))


async def test_who_is_no_gateway_is_not_its_answer_and_who_is_not_there_is_not_connected_to() -> None:
    clients = CheckedClients(f"http://127.0.0.1:{free_port()}", ("m",))
    async with clients.running(1):
        await until("it asked", lambda: clients.lost)
    assert {each.outcome for each in clients.lost} == {Outcome.NOT_CONNECTED}
    async with _server(b"denied destination", cuts=False, is_gateway=False) as url:
        clients = CheckedClients(url, ("m",))
        async with clients.running(1):
            await until("it asked", lambda: clients.lost)
    assert {each.outcome for each in clients.lost} == {Outcome.NOT_CONNECTED}
    assert "denied destination" in clients.lost[0].detail


async def test_the_first_answer_is_one_to_a_request_that_began_later() -> None:
    async with _server(RIGHT, cuts=False) as url:
        clients = CheckedClients(url, ("a", "b"))
        async with clients.running(4):
            after = time.monotonic()
            first = await clients.first_answer("b", after, 60)
            assert (first.model, first.outcome) == ("b", Outcome.ANSWERED)
            assert after < first.began <= first.ended
            assert (await clients.first_answer(None, first.ended, 60)).began > first.ended
            with pytest.raises(TimeoutError, match="no answer of c within 0 s"):
                await clients.first_answer("c", after, 0)


async def test_answers_are_counted_by_model() -> None:
    async with _server(RIGHT, cuts=False) as url:
        clients = CheckedClients(url, ("a", "b"))
        async with clients.running(4):
            await clients.answer_more(3)
        assert clients.wrong == []
        assert min(clients.answered["a"], clients.answered["b"]) >= 3
        assert clients.requests == clients.answered.total()


def test_missing_doubled_dead_and_orphaned_engines_are_seen() -> None:
    instance = f"t{secrets.token_hex(4)}"
    with subprocess.Popen(
        [sys.executable, "-c", "input()"],
        stdin=subprocess.PIPE,
        env=os.environ | mark_variables(instance, "rh-a", "first"),
    ) as engine:
        stat = read_stat(engine.pid)
        assert stat is not None
        record = ReplicaRecord.model_validate(
            {"instance": instance, "name": "rh-a", "model": "m", "index": 0, "spec_hash": "0" * 64, "attempt": 1}
            | {
                "start_id": "first",
                "boot_id": "boot",
                "host": "127.0.0.1",
                "port": 1,
                "argv": ("engine",),
                "claims": {},
            }
            | {"created_at": 0.0, "pid": engine.pid, "start_ticks": stat.process.start_ticks}
        )
        one = Counter(m=1)
        assert what_is_wrong_with_engines({"rh-a": record}, one) == []
        assert "instead of" in str(what_is_wrong_with_engines({}, one))
        assert "2 engines at" in str(what_is_wrong_with_engines({"rh-a": record, "rh-b": record}, Counter(m=2)))
        other = record.model_copy(update={"start_id": "second"})
        assert "orphan" in str(what_is_wrong_with_engines({"rh-a": other}, one))
        reused = record.model_copy(update={"start_ticks": stat.process.start_ticks + 1})
        assert "does not run" in str(what_is_wrong_with_engines({"rh-a": reused}, one))
        engine.kill()
    assert "does not run" in str(what_is_wrong_with_engines({"rh-a": record}, one))
    assert START_ENV in mark_variables(instance, "rh-a", "first")
