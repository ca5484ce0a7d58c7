"""Models that are loaded on demand: the demand goes up, the request waits, and every way of waiting ends."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from contract.routing import ModelRoute
from contract.status import ModelState
from tests.fakes.fake_controller import route
from tests.fakes.gateway_harness import GatewayHarness, engines, gateway_harness
from tests.fakes.mock_engine import MockEngine
from tests.support.http_client import PendingReply, Reply
from tests.support.wait import until


def unloaded(state: ModelState = ModelState.UNLOADED, **fields: Any) -> ModelRoute:
    """The model before it is there."""
    return route("m", state=state, autoload=True, aliases=("alias",), **fields)


async def waiting(gateway: GatewayHarness, count: int = 1) -> None:
    """Wait until the gateway reports so many waiting requests, and the demand."""
    report = await gateway.controller.report_where(lambda report: report.queued == {"m": count})
    assert set(report.demand) == {"m"}


def start_chat(gateway: GatewayHarness, **fields: Any) -> asyncio.Future[Reply]:
    return asyncio.ensure_future(gateway.chat(**fields))


@pytest.mark.parametrize("state", [ModelState.UNLOADED, ModelState.LOADING, ModelState.UNLOADING])
async def test_demand_goes_up_and_the_request_is_answered_once_the_model_is_loaded(
    state: ModelState, gateway: GatewayHarness, engine: MockEngine
) -> None:
    await gateway.publish(unloaded(state))
    call = start_chat(gateway, model="alias")
    await waiting(gateway)
    assert (await gateway.get("/health")).body["queue_depth"] == 1
    await gateway.publish(unloaded(ModelState.LOADING))
    assert not call.done()
    await gateway.publish(route("m", [engine.url], autoload=True, aliases=("alias",)))
    assert (await call).status == 200
    report = await gateway.controller.report_where(lambda report: not report.queued and not report.inflight)
    assert (report.demand, set(report.last_used)) == ({}, {"m"})


async def test_many_wait_and_all_are_answered() -> None:
    async with gateway_harness(queue_limit=20) as gateway, engines(2) as both:
        await gateway.publish(unloaded())
        calls = [start_chat(gateway, stream=number % 2 == 0) for number in range(20)]
        await waiting(gateway, 20)
        await gateway.publish(route("m", [engine.url for engine in both], autoload=True))
        for call in calls:
            assert (await call).status == 200
        assert [len(engine.requests) for engine in both] == [10, 10]


async def test_a_load_that_fails_is_told_with_its_reason(gateway: GatewayHarness) -> None:
    reply = await (await queued_then(gateway, unloaded(ModelState.FAILED, last_error="not a GGUF file")))
    assert reply.refusal == (503, "model_failed")
    assert "not a GGUF file" in reply.error["message"]


async def test_a_failed_model_does_not_make_clients_wait_but_the_demand_is_known(gateway: GatewayHarness) -> None:
    await gateway.publish(unloaded(ModelState.FAILED, last_error="no"))
    assert (await gateway.chat()).code == "model_failed"
    await gateway.controller.report_where(lambda report: set(report.demand) == {"m"})


async def test_a_model_that_vanishes_while_waited_for(gateway: GatewayHarness) -> None:
    await gateway.publish(unloaded())
    call = start_chat(gateway)
    await waiting(gateway)
    await gateway.publish()
    assert (await call).status == 404
    await gateway.controller.report_where(lambda report: not report.demand and not report.queued)


async def test_the_wait_is_bounded() -> None:
    async with gateway_harness(autoload_timeout_s=0.2) as gateway:
        await gateway.publish(unloaded())
        reply = await gateway.chat()
        assert (*reply.refusal, reply.headers["retry-after"]) == (503, "model_loading", "5")
        assert "0.2 s" in reply.error["message"]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_waits_no_longer(stream: bool, gateway: GatewayHarness, engine: MockEngine) -> None:
    await gateway.publish(unloaded())
    call = start_chat(gateway, stream=stream)
    await waiting(gateway)
    call.cancel()
    await gateway.controller.report_where(lambda report: not report.queued)
    await gateway.publish(route("m", [engine.url], autoload=True))
    assert (await gateway.chat()).status == 200
    assert len(engine.requests) == 1, "only the second client's"


async def test_a_stream_that_waits_gets_its_headers_heartbeats_and_then_the_answer() -> None:
    async with gateway_harness(hold_headers_s=0.05, heartbeat_s=0.05) as gateway, engines(1) as (engine,):
        await gateway.publish(unloaded())
        async with gateway.chat(stream=True) as answer:
            assert answer.status == 200
            for _ in range(2):
                assert await answer.content.readuntil(b"\n\n") == b": ka\n\n"
            await gateway.publish(route("m", [engine.url], autoload=True))
            text = (await answer.read()).decode()
        assert text.endswith("data: [DONE]\n\n")
        assert "sleeps!" in text


@pytest.mark.parametrize(
    ("table", "code", "words"),
    [
        (unloaded(ModelState.FAILED, last_error="out of memory"), "model_failed", "out of memory"),
        (unloaded(ModelState.UNLOADING).model_copy(update={"autoload": False}), "model_unloading", "unloaded"),
    ],
    ids=["failed", "unloaded"],
)
async def test_a_stream_that_waits_in_vain_is_told_in_the_stream(table: ModelRoute, code: str, words: str) -> None:
    async with gateway_harness(hold_headers_s=0.05) as gateway:
        await gateway.publish(unloaded(ModelState.LOADING))
        async with gateway.chat(stream=True) as answer:
            await answer.content.readuntil(b"\n\n")
            await gateway.publish(table)
            events = [event for event in (await answer.read()).decode().split("\n\n") if event.startswith("data: ")]
        error = json.loads(events[0].removeprefix("data: "))["error"]
        assert (error["code"], events[1]) == (code, "data: [DONE]")
        assert words in error["message"]


async def test_a_replica_lost_while_retrying_waits_for_the_next_one(gateway: GatewayHarness) -> None:
    async with engines(2) as (first, second):
        await gateway.publish(route("m", [first.url], autoload=True))
        call = start_chat(gateway, fault="hold")
        await until("the first one works", lambda: first.running == 1)
        await gateway.publish(unloaded(ModelState.LOADING))
        await first.stop()
        await waiting(gateway)
        second.release.set()
        await gateway.publish(route("m", [second.url], autoload=True))
        assert (await call).status == 200


async def queued_then(gateway: GatewayHarness, *tables: ModelRoute, stream: bool = False) -> asyncio.Future[Reply]:
    """A request that waits for an unloaded model while these tables come."""
    await gateway.publish(unloaded())
    call = start_chat(gateway, stream=stream)
    await waiting(gateway)
    for table in tables:
        await gateway.publish(table)
    return call


@pytest.mark.parametrize(
    "states",
    [
        [ModelState.UNLOADING],
        [ModelState.LOADING, ModelState.UNLOADING],
        [ModelState.LOADING, ModelState.UNLOADING, ModelState.UNLOADED],
        [ModelState.UNLOADED],
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_an_operators_unload_cancels_what_waits(
    states: list[ModelState], stream: bool, gateway: GatewayHarness
) -> None:
    tables = [unloaded(state).model_copy(update={"autoload": state is ModelState.LOADING}) for state in states]
    call = await queued_then(gateway, *tables, stream=stream)
    reply = await call
    assert (*reply.refusal, reply.headers["retry-after"]) == (503, "model_unloading", "5")
    await gateway.controller.report_where(lambda report: not report.queued)


async def test_an_eviction_does_not_cancel_what_waits(gateway: GatewayHarness, engine: MockEngine) -> None:
    call = await queued_then(gateway, unloaded(ModelState.LOADING), unloaded(ModelState.UNLOADING), unloaded())
    assert not call.done()
    await gateway.publish(route("m", [engine.url], autoload=True))
    assert (await call).status == 200


def start_with_progress(gateway: GatewayHarness, *, stream: bool) -> PendingReply:
    """A chat completion whose client wants to know how far the load is."""
    return gateway.chat(stream=stream, headers={"X-Load-Progress": "true"})


async def test_a_client_that_asks_is_told_how_far_the_load_is(gateway: GatewayHarness, engine: MockEngine) -> None:
    await gateway.publish(unloaded())
    async with start_with_progress(gateway, stream=True) as answer:
        assert answer.status == 200
        told = [await answer.content.readuntil(b"\n\n")]
        await gateway.publish(unloaded(ModelState.LOADING))
        told.append(await answer.content.readuntil(b"\n\n"))
        await gateway.publish(unloaded(ModelState.LOADING, last_error="nothing new"))
        await gateway.publish(unloaded(ModelState.LOADING, progress=0.25))
        told.append(await answer.content.readuntil(b"\n\n"))
        await gateway.publish(route("m", [engine.url], autoload=True))
        text = (await answer.read()).decode()
    assert told == [
        b': load-progress {"model":"m","state":"unloaded"}\n\n',
        b': load-progress {"model":"m","state":"loading"}\n\n',
        b': load-progress {"model":"m","state":"loading","progress":0.25}\n\n',
    ]
    assert text.startswith("data: ")
    assert text.endswith("data: [DONE]\n\n")


async def test_who_did_not_ask_or_does_not_stream_is_told_nothing_of_a_load(
    gateway: GatewayHarness, engine: MockEngine
) -> None:
    await gateway.publish(unloaded())
    quiet = start_chat(gateway, stream=True)
    blocking = asyncio.ensure_future(start_with_progress(gateway, stream=False))
    await waiting(gateway, 2)
    await gateway.publish(unloaded(ModelState.LOADING, progress=0.5))
    await gateway.publish(route("m", [engine.url], autoload=True))
    assert (await quiet).content.startswith(b"data: ")
    assert "choices" in (await blocking).body
