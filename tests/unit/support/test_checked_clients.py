"""What the chaos test believes must be able to fail: wrong, cut and doubled things are seen."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from controller.runtimes.process.groups import START_ENV
from controller.runtimes.process.records import ReplicaRecord
from controller.runtimes.process.spawn import mark_variables
from controller.runtimes.process.stat import read_stat
from tests.support.checked_clients import CheckedClients, WrongAnswerError, check_stream, check_whole
from tests.support.engine_processes import what_is_wrong_with_engines
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
    ("status", "body"),
    [
        (200, _whole(SENTENCE[:-1])),
        (200, _whole(SENTENCE + "!")),
        (200, _whole(SENTENCE, "length")),
        (200, _whole(SENTENCE)[:-1]),
        (200, ERROR),
        (500, _whole(SENTENCE)),
        (200, b""),
    ],
)
def test_a_wrong_whole_answer(status: int, body: bytes) -> None:
    with pytest.raises(WrongAnswerError):
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


def test_what_came_before_a_cut_must_be_right() -> None:
    assert check_stream(RIGHT[:-30], is_cut=True) == "cut"
    with pytest.raises(WrongAnswerError):
        check_stream(_event("x"), is_cut=True)


@asynccontextmanager
async def _server(answer: bytes, *, cuts: bool) -> AsyncIterator[str]:
    """Says this in a stream to everybody, and ends the body or breaks the connection."""

    async def say(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
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


@pytest.mark.parametrize(("answer", "cuts"), [(_event("The"), True), (_event("The"), False), (b"data: {\n\n", False)])
async def test_a_cut_or_silent_end_is_wrong_while_the_gateway_is_there(answer: bytes, cuts: bool) -> None:
    async with _server(answer, cuts=cuts) as url:
        clients = CheckedClients(url, ("m",))
        async with clients.running(2):
            await until("both asked", lambda: len(clients.wrong) > 3)
        assert clients.requests == len(clients.wrong)


@pytest.mark.parametrize("cuts", [True, False])
async def test_a_cut_is_excused_while_the_gateway_is_away_and_a_silent_end_is_not(cuts: bool) -> None:
    async with _server(_event("The"), cuts=cuts) as url:
        clients = CheckedClients(url, ("m",))
        with clients.gateway_away():
            async with clients.running(2):
                await until("both asked", lambda: clients.requests > 3)
        assert bool(clients.cut) is cuts
        assert bool(clients.wrong) is not cuts


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
        record = ReplicaRecord(
            instance=instance,
            name="rh-a",
            model="m",
            index=0,
            spec_hash="0" * 64,
            attempt=1,
            start_id="first",
            boot_id="boot",
            host="127.0.0.1",
            port=1,
            argv=("engine",),
            claims={},
            created_at=0.0,
            pid=engine.pid,
            start_ticks=stat.process.start_ticks,
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
