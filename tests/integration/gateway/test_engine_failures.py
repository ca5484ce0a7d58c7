"""Each way in which an engine can fail, in each API family: deadlines, broken streams, engines that are gone."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from contract.routing import Endpoint
from gateway.admission.circuit_breaker import LONGEST_PAUSE_S
from tests.fakes.fake_controller import route
from tests.fakes.fake_scripted_engine import Script, ScriptedEngine, Then, nobody_accepts, script, scripted
from tests.fakes.gateway_harness import GatewayHarness, gateway_harness
from tests.fakes.mock_engine import MockEngine
from tests.support.api_families import FAMILIES, STREAMING, Family
from tests.support.campaign import campaign_count
from tests.support.gateway_rest import nothing_left
from tests.support.loop_clock import LoopClock, loop_clock
from tests.support.queueing import Clock, clock
from tests.support.wait import until

__all__ = ["clock", "loop_clock"]

DEADLINE_S = 30.0
"""Of a request, on the test's clock."""
CHAT = FAMILIES[0]


def begun(family: Family) -> bytes:
    """A stream of the family that has begun, and is not at its end."""
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    return head + b"%x\r\n%b\r\n" % (len(family.events[0]), family.events[0])


@contextlib.asynccontextmanager
async def one_engine(
    family: Family, *scripts: Script, gathers: bool = False, slots: int = 1, **options: Any
) -> AsyncIterator[tuple[GatewayHarness, ScriptedEngine]]:
    """A gateway in front of an engine with these scripts; nothing may be left behind."""
    async with scripted(*scripts) as engine, gateway_harness(**options) as gateway:
        made = family.route("m", engine.url, target_inflight=slots)
        await gateway.publish(made.model_copy(update={"notices_leaving": not gathers}))
        yield gateway, engine
        await nothing_left(gateway)


@pytest.mark.parametrize("family", STREAMING, ids=str)
@pytest.mark.parametrize("then", ["close", "reset", "deaf", "stall"])
async def test_a_stream_that_breaks_off_ends_with_the_familys_error(
    family: Family, then: Then, loop_clock: LoopClock
) -> None:
    async with one_engine(family, script(begun(family), then), request_timeout_s=DEADLINE_S) as (gateway, engine):
        async with gateway.post(family.path, family.body("m", stream=True)) as answer:
            assert answer.status == 200
            content = await answer.content.readany()
            if then == "stall":
                await loop_clock.skip(DEADLINE_S + 5)
            content += await answer.read()
        assert content.startswith(family.begins), "what came before is passed on"
        error = family.last_error(content)
        code, status = ("request_timeout", 408) if then == "stall" else ("engine_disconnected", 502)
        assert (error["code"], error["status"]) == (code, status)
        assert len(engine.requests) == 1, "after the first byte there is no other try"


@pytest.mark.parametrize("family", STREAMING, ids=str)
async def test_heartbeats_stand_between_events(family: Family, loop_clock: LoopClock) -> None:
    half = family.events[1][:9]
    stalled = begun(family) + b"%x\r\n%b\r\n" % (len(half), half)
    async with one_engine(family, script(stalled, "stall"), request_timeout_s=DEADLINE_S, heartbeat_s=5) as (
        gateway,
        _,
    ):
        async with gateway.post(family.path, family.body("m", stream=True)) as answer:
            content = await answer.content.readany()
            await loop_clock.skip(DEADLINE_S + 5)
            content += await answer.read()
        beats = content.count(family.heartbeat)
        assert beats >= 2
        assert family.heartbeat * beats in content, "half an event was held back"
        assert family.last_error(content)["code"] == "request_timeout"


@pytest.mark.parametrize("family", FAMILIES, ids=str)
@pytest.mark.parametrize("gathers", [False, True])
async def test_a_blocking_call_gets_no_heartbeat_and_its_deadline_in_its_form(
    family: Family, gathers: bool, loop_clock: LoopClock
) -> None:
    part = b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\n{"
    stalled = begun(family) if gathers and family.streams else part
    times: dict[str, Any] = {"request_timeout_s": DEADLINE_S, "heartbeat_s": 5, "hold_headers_s": 5}
    async with one_engine(family, script(stalled, "stall"), gathers=gathers, **times) as (gateway, engine):
        call = asyncio.ensure_future(gateway.post(family.path, family.body("m")))
        await until("the engine has it", lambda: engine.requests)
        await loop_clock.skip(DEADLINE_S - 10)
        assert not call.done()
        await loop_clock.skip(15)
        reply = await call
        assert (reply.status, reply.code, reply.error["status"]) == (408, "request_timeout", 408)


@pytest.mark.parametrize("is_declared", [True, False])
async def test_a_request_that_waits_at_an_address_that_is_silent_goes_on_once_its_replica_has_ended(
    is_declared: bool, engine: MockEngine, gateway: GatewayHarness
) -> None:
    """As with a container that was killed: its address answers nothing, until another one has it."""
    async with nobody_accepts() as silent:
        await gateway.publish(route("m", [silent]))
        waiting = asyncio.ensure_future(gateway.chat())
        await until("it connects", lambda: gateway.services.engines.connecting_requests == 1)
        [successor] = [each.model_copy(update={"replica": "m-1"}) for each in route("m", [engine.url]).endpoints]
        await gateway.publish(*[route("m").model_copy(update={"endpoints": (successor,)})] if is_declared else [])
        async with asyncio.timeout(20):  # a connection may take longer here
            reply = await waiting
        assert reply.status == (200 if is_declared else 404), reply.text


@pytest.mark.parametrize("family", FAMILIES, ids=str)
@pytest.mark.parametrize("stream", [False, True])
async def test_an_engine_that_is_gone_is_left_out_then_tried_and_let_in_again(
    family: Family, stream: bool, clock: Clock
) -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    good = script(head % len(family.whole) + family.whole)
    gone = [script(b"", "close")] * 4
    async with one_engine(family, *gone, good, good) as (gateway, engine):
        for _ in range(2):
            reply = await gateway.post(family.path, family.body("m", stream=stream))
            assert (reply.status, reply.code) == (502, "engine_unreachable")
            assert int(reply.headers["retry-after"]) >= 1
        assert len(engine.requests) == 3, "two tries, then the third failure in a row"
        await gateway.controller.report_where(lambda report: "m-0" in report.failed)
        reply = await gateway.post(family.path, family.body("m", stream=stream))
        assert reply.refusal == (502, "engine_unreachable")
        assert "left out" in reply.error["message"]
        assert int(reply.headers["retry-after"]) >= 1
        assert len(engine.requests) == 3, "it is not asked"
        engine.scripts.pop(0)
        clock.now += LONGEST_PAUSE_S

        async def lets_in() -> bool:
            return bool((await gateway.post(family.path, family.body("m"))).status == 200)

        await until("it is tried, and is well", lets_in)
        await gateway.controller.report_where(lambda report: not report.failed)
        assert (await gateway.post(family.path, family.body("m"))).status == 200


REFUSES_TOKEN = script(
    b"HTTP/1.1 401 Unauthorized\r\ncontent-type: application/json\r\ncontent-length: 80\r\n\r\n"
    b'{"error":{"message":"Invalid API Key","type":"authentication_error","code":401}}'
)
"""As llama-server answers a token that is not its own."""


@pytest.mark.parametrize("family", FAMILIES, ids=str)
@pytest.mark.parametrize("stream", [False, True])
async def test_an_address_that_passed_to_another_engine_counts_as_refused(
    family: Family, stream: bool, gateway: GatewayHarness
) -> None:
    good = script(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (
        len(family.whole), family.whole))  # fmt: skip
    async with scripted(*[REFUSES_TOKEN] * 9) as stranger, scripted(*[good] * 9) as engine:
        made = family.route("m", stranger.url, token="its own", target_inflight=1)
        await gateway.publish(made)
        assert (await gateway.post(family.path, family.body("m", stream=stream))).refusal == (502, "engine_unreachable")
        await gateway.controller.report_where(lambda report: "m-0" in report.failed)

        other = Endpoint.model_validate({"replica": "m-1", "base_url": engine.url, "token": "another"})
        await gateway.publish(made.model_copy(update={"endpoints": (*made.endpoints, other)}))
        for _ in range(4):
            assert (await gateway.post(family.path, family.body("m"))).status == 200, "it went to the one that is well"
        await nothing_left(gateway)


async def test_the_401_of_a_remote_is_its_answer(gateway: GatewayHarness) -> None:
    async with scripted(REFUSES_TOKEN) as elsewhere:
        made = CHAT.route("m", elsewhere.url, token="sk-1")
        endpoints = (made.endpoints[0].model_copy(update={"remote": True}),)
        await gateway.publish(made.model_copy(update={"endpoints": endpoints}))
        error = (await gateway.post(CHAT.path, CHAT.body("m"))).error
        assert (error["code"], len(elsewhere.requests)) == ("engine_error", 1)
        assert "Invalid API Key" in error["message"]


@pytest.mark.parametrize("gathers", [False, True])
async def test_an_engine_that_closes_after_each_stream_without_a_word_is_well(
    gathers: bool, caplog: pytest.LogCaptureFixture
) -> None:
    clients = campaign_count(15, 500)
    # As llama-server does: its head promises to keep the connection.
    events = b"".join(CHAT.events)
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    whole = script(head + b"%x\r\n%b\r\n0\r\n\r\n" % (len(events), events), "close")
    scripts = [whole] * (4 * clients)
    async with one_engine(CHAT, *scripts, gathers=gathers, slots=4, queue_limit=clients) as (gateway, engine):
        answers = await asyncio.gather(
            *(gateway.post(CHAT.path, CHAT.body("m", stream=not gathers)) for _ in range(clients))
        )
        assert {reply.status for reply in answers} == {200}
        assert len(engine.requests) >= clients
        assert not any(report.failed for report in gateway.controller.reports)
        assert "closed the connection" not in caplog.text, "it counts as no failure"


@pytest.mark.parametrize("family", FAMILIES, ids=str)
async def test_an_answer_longer_than_the_buffer_breaks_off_visibly(family: Family) -> None:
    part = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 9000000\r\n\r\n" + b"x" * 3_000_000
    async with (
        one_engine(family, script(part, "close"), answer_buffer_mib=1) as (gateway, _),
        gateway.post(family.path, family.body("m")) as answer,
    ):
        if family.is_translated:  # which needs the whole of it
            assert (answer.status, family.error_in(await answer.read())["code"]) == (502, "engine_disconnected")
            return
        assert answer.status == 200
        with pytest.raises(aiohttp.ClientPayloadError):
            await answer.read()
