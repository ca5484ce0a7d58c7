"""Engines that refuse, break, garble; clients that leave. Retries before the first byte only; counters end at zero."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import aiohttp
import pytest

from tests.fakes.fake_controller import route
from tests.fakes.gateway_harness import GatewayHarness, engines, gateway_harness
from tests.fakes.mock_engine import MockEngine
from tests.support.campaign import campaign_count, campaign_seed
from tests.support.wait import until


async def code_of(gateway: GatewayHarness, **fields: Any) -> tuple[int, str]:
    reply = await gateway.chat(**fields)
    return reply.status, reply.code


async def test_replicas_share_the_work(gateway: GatewayHarness) -> None:
    async with engines(3) as three:
        await gateway.publish(route("m", [engine.url for engine in three]))
        for number in range(9):
            messages = [{"role": "user", "content": f"Hi {number}"}]
            assert (await gateway.post("/v1/chat/completions", model="m", messages=messages)).status == 200
        assert [len(engine.requests) for engine in three] == [3, 3, 3]


async def test_a_conversation_goes_where_its_beginning_is_cached(gateway: GatewayHarness) -> None:
    async with engines(3) as three:
        await gateway.publish(route("m", [engine.url for engine in three]))
        messages = [{"role": "user", "content": "Hi"}]
        for turn in range(4):
            assert (await gateway.post("/v1/chat/completions", model="m", messages=messages)).status == 200
            messages += [{"role": "assistant", "content": "Ho"}, {"role": "user", "content": f"{turn}"}]
        assert sorted(len(engine.requests) for engine in three) == [0, 0, 4]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
async def test_what_a_client_says_belongs_together_goes_to_one_replica(path: str, gateway: GatewayHarness) -> None:
    async with engines(3) as three:
        await gateway.publish(route("m", [engine.url for engine in three]))
        for number in range(4):
            texts = {"messages": [{"role": "user", "content": f"Hi {number}"}], "input": f"Hi {number}"}
            reply = await gateway.post(path, model="m", prompt_cache_key="agent", **texts)
            assert reply.status == 200, reply.text
        assert sorted(len(engine.requests) for engine in three) == [0, 0, 4]


async def test_a_response_goes_where_its_beginning_is_cached(gateway: GatewayHarness) -> None:
    async with engines(3) as three:
        await gateway.publish(route("m", [engine.url for engine in three]))
        items = [{"role": "user", "content": "Hi"}]
        for turn in range(4):
            assert (await gateway.post("/v1/responses", model="m", input=items)).status == 200
            items += [{"role": "assistant", "content": "Ho"}, {"role": "user", "content": f"{turn}"}]
        assert sorted(len(engine.requests) for engine in three) == [0, 0, 4]


async def test_the_replica_with_less_inside_gets_the_next_request(gateway: GatewayHarness) -> None:
    async with engines(2) as (busy, free):
        await gateway.publish(route("m", [busy.url, free.url]))
        async with gateway.chat(stream=True, fault="pause_until_release") as held:
            await held.content.readany()
            for _ in range(3):
                assert (await gateway.chat()).status == 200
            busy.release.set()
            await held.read()
        assert (len(busy.requests), len(free.requests)) == (1, 3)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_refused_connection_is_tried_elsewhere_and_reported(stream: bool, gateway: GatewayHarness) -> None:
    async with engines(2) as (dead, alive):
        await dead.stop()
        await gateway.publish(route("m", [dead.url, alive.url]))
        for _ in range(4):
            assert (await gateway.chat(stream=stream)).status == 200
        assert len(alive.requests) == 4
        await gateway.controller.report_where(lambda report: set(report.failed) == {"m-0"})
        assert 'roundhouse_gateway_retries_total{model="m"}' in await gateway.metrics()


async def test_with_every_replica_gone_the_client_is_told_at_once(gateway: GatewayHarness) -> None:
    async with engines(2) as both:
        for engine in both:
            await engine.stop()
        await gateway.publish(route("m", [engine.url for engine in both]))
        reply = await gateway.chat()
        assert (reply.status, reply.headers["retry-after"], reply.code) == (502, "5", "engine_unreachable")
        assert "connections to 2 replicas were refused" in reply.error["message"]


async def test_a_loaded_model_without_a_ready_replica(gateway: GatewayHarness) -> None:
    await gateway.publish(route("m"))
    assert await code_of(gateway) == (502, "engine_unreachable")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_kept_connection_gone_stale_costs_one_more_try_on_a_fresh_one(
    stream: bool, gateway: GatewayHarness, engine: MockEngine
) -> None:
    assert (await gateway.chat()).status == 200
    assert (await gateway.chat(stream=stream, fault="die_before_answer")).status == 502
    assert len(engine.requests) == 3, "broke on the kept connection, then on a fresh one, then no more"
    assert engine.connections == 2
    await gateway.controller.report_where(lambda report: "m-0" in report.failed)
    assert (await gateway.chat()).status == 200
    await gateway.controller.report_where(lambda report: not report.failed)


async def test_however_many_kept_connections_are_stale_one_more_try_is_enough(
    gateway: GatewayHarness, engine: MockEngine
) -> None:
    held = [asyncio.ensure_future(gateway.chat(fault="hold")) for _ in range(5)]
    await until("the engine works", lambda: engine.running == 5)
    engine.release.set()
    for call in held:
        await call
    assert (await gateway.chat(fault="die_if_kept")).status == 200
    assert engine.connections == 6


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_whose_kept_connection_breaks_goes_to_another_replica(
    stream: bool, gateway: GatewayHarness
) -> None:
    async with engines(2) as (dying, healthy):
        await gateway.publish(route("m", [dying.url, healthy.url]))
        assert (await gateway.chat()).status == 200
        assert (dying.connections, healthy.connections) == (1, 0)
        dying.breaks_all = True
        assert (await gateway.chat(stream=stream)).status == 200
        assert (len(dying.requests), len(healthy.requests)) == (2, 1)
        assert 'roundhouse_gateway_retries_total{model="m"} 1.0' in await gateway.metrics()


async def test_a_request_whose_kept_connection_breaks_waits_for_another_replica_that_is_full(
    gateway: GatewayHarness,
) -> None:
    async with engines(2) as (dying, healthy):
        await gateway.publish(route("m", [dying.url, healthy.url], target_inflight=1))
        assert (await gateway.chat()).status == 200
        held = asyncio.ensure_future(hold_slot(gateway))
        await until("the slot is held", lambda: healthy.running == 1)
        dying.breaks_all = True
        waiting = asyncio.ensure_future(gateway.chat())
        await gateway.controller.report_where(lambda report: report.queued == {"m": 1})
        healthy.release.set()
        for call in held, waiting:
            assert (await call).status == 200
        assert (len(dying.requests), len(healthy.requests)) == (2, 2)


def hold_slot(gateway: GatewayHarness) -> Any:
    """A completion of another prompt than `chat`'s, which the engine holds until its `release`."""
    return gateway.post("/v1/completions", model="m", prompt="Ho", fault="hold")


async def test_a_request_without_a_slot_whose_kept_connection_breaks_goes_to_a_busier_replica(
    gateway: GatewayHarness,
) -> None:
    async with engines(2) as (dying, healthy):
        await gateway.publish(route("m", [dying.url, healthy.url]))
        assert (await gateway.chat()).status == 200
        held = asyncio.ensure_future(hold_slot(gateway))
        await until("the slot is held", lambda: healthy.running == 1)
        dying.breaks_all = True
        assert (await gateway.post("/tokenize", model="m", content="Hi")).status == 200
        assert (len(dying.requests), len(healthy.requests)) == (2, 2)
        healthy.release.set()
        assert (await held).status == 200


async def test_an_engine_that_vanishes_while_idle_and_is_back_loses_no_request(
    gateway: GatewayHarness, engine: MockEngine
) -> None:
    for _ in range(5):
        assert (await gateway.chat()).status == 200
        engine.drop_connections()


async def test_a_request_that_crashes_engines_does_not_crash_them_all(gateway: GatewayHarness) -> None:
    async with engines(4) as four:
        await gateway.publish(route("m", [engine.url for engine in four]))
        assert await code_of(gateway, fault="die_before_answer") == (502, "engine_unreachable")
        assert sum(len(engine.requests) for engine in four) == 2


@pytest.mark.parametrize(
    ("fault", "status", "code"),
    [
        ("die_mid_body", 502, "engine_disconnected"),
        ("wrong_length", 502, "engine_disconnected"),
        ("garbage", 502, "engine_disconnected"),
        ("error_html", 500, "engine_error"),
        ("error_detail", 422, "engine_error"),
        ("redirect", 502, "engine_error"),
    ],
)
async def test_a_blocking_answer_that_is_none_becomes_an_envelope(
    fault: str, status: int, code: str, gateway: GatewayHarness
) -> None:
    async with engines(2) as both:
        await gateway.publish(route("m", [engine.url for engine in both]))
        assert await code_of(gateway, fault=fault) == (status, code)
        assert sum(len(engine.requests) for engine in both) == 1, "a part of an answer had come: no second try"
        assert (await gateway.chat()).status == 200


@pytest.mark.parametrize(
    ("fault", "status", "message"), [("bad_request", 400, "too hot"), ("error_json", 500, "exploded")]
)
async def test_an_engines_error_in_openai_form_passes(
    fault: str, status: int, message: str, gateway: GatewayHarness, engine: MockEngine
) -> None:
    reply = await gateway.chat(fault=fault)
    assert (reply.status, reply.error["message"]) == (status, message)


async def test_an_answer_too_long_to_hold_that_breaks_off_is_cut_and_not_completed() -> None:
    async with gateway_harness(answer_buffer_mib=1) as gateway, engines(1) as (engine,):
        await gateway.publish(route("m", [engine.url]))
        async with gateway.chat(fault="huge", bytes=4_000_000, dies=True) as answer:
            assert answer.status == 200
            with pytest.raises(aiohttp.ClientPayloadError):
                await answer.read()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("fault", ["hold", "stall"])
async def test_a_client_that_leaves_cancels_the_engines_work(stream: bool, fault: str) -> None:
    async with gateway_harness(hold_headers_s=0.05) as gateway, engines(1) as (engine,):
        await gateway.publish(route("m", [engine.url]))
        async with aiohttp.ClientSession() as leaving:
            call = asyncio.create_task(
                leaving.post(
                    gateway.url + "/v1/chat/completions", json={"model": "m", "stream": stream, "fault": fault}
                ).__aenter__()
            )
            await gateway.controller.report_where(lambda report: report.inflight == {"m-0": 1})
            await until("the engine works", lambda: engine.running == 1)
            call.cancel()
        await until("the engine sees the client leave", lambda: engine.cancelled == 1 and engine.running == 0)
        await gateway.idle()
        assert "roundhouse_gateway_client_disconnects_total" in await gateway.metrics()


async def test_a_client_that_leaves_before_it_has_asked_leaves_nothing(gateway: GatewayHarness) -> None:
    await gateway.publish(route("m"))
    host, port = gateway.url.removeprefix("http://").split(":")
    for _ in range(5):
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 99\r\n\r\n{")
        await writer.drain()
        writer.close()
    await until_metric(gateway, 'requests_total{model="unknown",route="/v1/chat/completions",status="499"} 5.0')


async def test_counters_return_to_zero_after_a_storm() -> None:
    dice = random.Random(campaign_seed())
    async with gateway_harness(heartbeat_s=0.02, hold_headers_s=0.02) as gateway, engines(3) as three:
        await gateway.publish(route("m", [engine.url for engine in three]))
        await asyncio.gather(*(one_of_a_storm(gateway, dice) for _ in range(campaign_count(50, 1_500))))
        await gateway.idle()
        await until("no engine works for nobody", lambda: all(engine.running == 0 for engine in three))
        for engine in three:
            await engine.stop()
        assert {engine["inflight"] for engine in (await gateway.get("/health")).body["engines"]} == {0}
        await until_metric(gateway, 'roundhouse_gateway_inflight{model="m"} 0.0')


async def one_of_a_storm(gateway: GatewayHarness, dice: random.Random) -> None:
    """A request of any kind; half of the clients leave at some moment."""
    fault = dice.choice(["", "", "half_chunks", "stall", "die_before_answer", "die_mid_body", "die_mid_stream", "busy"])
    body = {"model": "m", "stream": dice.random() < 0.6, "fault": fault, "max_tokens": 30, "pause": 0.002}
    patience = dice.uniform(0.0, 0.1) if fault == "stall" or dice.random() < 0.5 else 60
    try:
        async with (
            asyncio.timeout(patience),
            aiohttp.ClientSession() as client,
            client.post(gateway.url + "/v1/chat/completions", json=body) as answer,
        ):
            await answer.read()
    except TimeoutError:
        assert patience < 1, "only clients who meant to leave may run out of patience"


async def until_metric(gateway: GatewayHarness, part: str) -> None:
    async with asyncio.timeout(60):
        while part not in await gateway.metrics():  # noqa: ASYNC110 - /metrics has no event
            await asyncio.sleep(0.02)


async def test_an_engine_killed_under_load_costs_no_request_that_had_no_byte(gateway: GatewayHarness) -> None:
    each = campaign_count(15, 300)
    async with engines(2) as (victim, other):
        await gateway.publish(route("m", [victim.url, other.url]))
        statuses: list[int] = []

        async def client() -> None:
            for _ in range(each):
                reply = await gateway.chat()
                statuses.append(reply.status)

        clients = [asyncio.create_task(client()) for _ in range(8)]
        await until("it serves", lambda: len(victim.requests) > 20)
        await victim.stop()
        await asyncio.gather(*clients)
        assert statuses == [200] * 8 * each
