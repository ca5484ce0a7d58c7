"""Each way in which an engine can fail, in each API family: deadlines, broken streams, engines that are gone."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from tests.fakes.fake_controller import route
from tests.fakes.fake_scripted_engine import Script, ScriptedEngine, Then, script, scripted
from tests.fakes.gateway_harness import House, house
from tests.support.api_families import EVENTS, FAMILIES, STREAMING
from tests.support.gateway_rest import nothing_left
from tests.support.wait import until

DEADLINE_S = 0.5
HEARTBEATS = {
    path: b'event: ping\ndata: {"type": "ping"}\n\n' if "messages" in path else b": ka\n\n" for path in FAMILIES
}


def begun(path: str) -> bytes:
    """A stream of the family that has begun, and is not at its end."""
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    return head + b"%x\r\n%b\r\n" % (len(EVENTS[path][0]), EVENTS[path][0])


def last_error(path: str, content: bytes) -> dict[str, Any]:
    """The error that a stream ends with, in the family's form: its fields."""
    events = [event for event in content.split(b"\n\n") if event and not event.startswith(b":")]
    if path in ("/v1/chat/completions", "/v1/completions"):
        assert events.pop() == b"data: [DONE]"
    name, _, data = events[-1].rpartition(b"data: ")
    fields: dict[str, Any] = json.loads(data)
    if path in ("/v1/responses", "/v1/messages"):
        assert (name, fields["type"]) == (b"event: error\n", "error")
    if path == "/v1/responses":
        return fields
    error: dict[str, Any] = fields["error"]
    return error


def ask(here: House, path: str, **fields: Any) -> Any:
    """A request of the family, for the model `m`."""
    whole = {"messages": [{"role": "user", "content": "Hi"}], "input": "Hi", "prompt": "Hi", "max_tokens": 5}
    return here.post(path, model="m", **whole, **fields)


@contextlib.asynccontextmanager
async def one_engine(
    *scripts: Script, gathers: bool = False, slots: int = 1, **options: Any
) -> AsyncIterator[tuple[House, ScriptedEngine]]:
    """A gateway in front of an engine with these scripts; nothing may be left behind."""
    async with scripted(*scripts) as engine, house(**options) as here:
        made = route("m", [engine.url], target_inflight=slots)
        await here.publish(made.model_copy(update={"notices_leaving": not gathers}))
        yield here, engine
        await nothing_left(here)


@pytest.mark.parametrize("path", STREAMING)
@pytest.mark.parametrize("then", ["close", "reset", "deaf", "stall"])
async def test_a_stream_that_breaks_off_ends_with_the_familys_error(path: str, then: Then) -> None:
    async with one_engine(script(begun(path), then), request_timeout_s=DEADLINE_S) as (here, engine):
        async with ask(here, path, stream=True) as answer:
            assert answer.status == 200
            content = await answer.read()
        assert content.startswith(EVENTS[path][0]), "what came before is passed on"
        error = last_error(path, content)
        code, status = ("request_timeout", 408) if then == "stall" else ("engine_disconnected", 502)
        assert (error["code"], error["status"]) == (code, status)
        assert len(engine.requests) == 1, "after the first byte there is no other try"


@pytest.mark.parametrize("path", STREAMING)
async def test_heartbeats_stand_between_events(path: str) -> None:
    half = EVENTS[path][1][:9]
    stalled = begun(path) + b"%x\r\n%b\r\n" % (len(half), half)
    async with one_engine(script(stalled, "stall"), request_timeout_s=DEADLINE_S, heartbeat_s=0.05) as (here, _):
        async with ask(here, path, stream=True) as answer:
            content = await answer.read()
        beats = content.count(HEARTBEATS[path])
        assert beats >= 2
        assert content.startswith(EVENTS[path][0] + HEARTBEATS[path] * beats), "half an event was held back"
        assert last_error(path, content)["code"] == "request_timeout"


@pytest.mark.parametrize("path", FAMILIES)
@pytest.mark.parametrize("gathers", [False, True])
async def test_a_blocking_call_gets_no_heartbeat_and_its_deadline_in_its_form(path: str, gathers: bool) -> None:
    part = b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\n{"
    stalled = begun(path) if gathers and path in STREAMING else part
    times: dict[str, Any] = {"request_timeout_s": DEADLINE_S, "heartbeat_s": 0.02, "hold_headers_s": 0.02}
    async with one_engine(script(stalled, "stall"), gathers=gathers, **times) as (here, _):
        async with ask(here, path) as answer:
            error = (await answer.json())["error"]
            assert answer.status == 408
        assert (error["code"], error["status"]) == ("request_timeout", 408)


@pytest.mark.parametrize("path", FAMILIES)
@pytest.mark.parametrize("stream", [False, True])
async def test_an_engine_that_is_gone_is_left_out_then_tried_and_let_in_again(path: str, stream: bool) -> None:
    good = script(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}")
    gone = [script(b"", "close")] * 4
    async with one_engine(*gone, good, good) as (here, engine):
        for _ in range(2):
            async with ask(here, path, stream=stream) as answer:
                assert (answer.status, (await answer.json())["error"]["code"]) == (502, "engine_unreachable")
                assert int(answer.headers["retry-after"]) >= 1
        assert len(engine.requests) == 3, "two tries, then the third failure in a row"
        await here.controller.report_where(lambda report: "m-0" in report.failed)
        async with ask(here, path, stream=stream) as answer:
            error = (await answer.json())["error"]
            assert (answer.status, error["code"]) == (502, "engine_unreachable")
            assert "left out" in error["message"]
            assert int(answer.headers["retry-after"]) >= 1
        assert len(engine.requests) == 3, "it is not asked"
        engine.scripts.pop(0)

        async def lets_in() -> bool:
            async with ask(here, path) as answer:
                return bool(answer.status == 200)

        await until("it is tried, and is well", lets_in)
        await here.controller.report_where(lambda report: not report.failed)
        async with ask(here, path) as answer:
            assert answer.status == 200


@pytest.mark.parametrize("gathers", [False, True])
async def test_an_engine_that_closes_after_each_stream_without_a_word_is_well(
    gathers: bool, caplog: pytest.LogCaptureFixture
) -> None:
    # As llama-server does: its head promises to keep the connection.
    path = "/v1/chat/completions"
    events = b"".join(EVENTS[path])
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    whole = script(head + b"%x\r\n%b\r\n0\r\n\r\n" % (len(events), events), "close")
    async with one_engine(*[whole] * 200, gathers=gathers, slots=4, queue_limit=100) as (here, engine):
        answers = await asyncio.gather(*(_text(here, path, stream=not gathers) for _ in range(60)))
        assert {status for status, _ in answers} == {200}
        assert len(engine.requests) >= 60
        assert not any(report.failed for report in here.controller.reports)
        assert "closed the connection" not in caplog.text, "it counts as no failure"


async def _text(here: House, path: str, *, stream: bool) -> tuple[int, bytes]:
    async with ask(here, path, stream=stream) as answer:
        return answer.status, await answer.read()


@pytest.mark.parametrize("path", FAMILIES)
async def test_an_answer_longer_than_the_buffer_breaks_off_visibly(path: str) -> None:
    part = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 9000000\r\n\r\n" + b"x" * 3_000_000
    async with one_engine(script(part, "close"), answer_buffer_mib=1) as (here, _), ask(here, path) as answer:
        assert answer.status == 200
        with pytest.raises(aiohttp.ClientPayloadError):
            await answer.read()
