"""Many resumable streams at once, slow readers, full memory, and who may see whose."""

from __future__ import annotations

import asyncio
import gc
import json
import math
import time
from typing import Any

from gateway.exchange.exchange import Exchange
from tests.fakes.fake_controller import route
from tests.fakes.gateway_harness import GatewayHarness, engines, gateway_harness
from tests.fakes.mock_engine import WORDS, MockEngine
from tests.support.campaign import campaign_count
from tests.support.gateway_rest import nothing_left
from tests.support.queueing import key
from tests.support.raw_http import chat_body, raw, request
from tests.support.resumed_streams import (
    CHAT,
    FAMILIES,
    ID,
    cut_stream,
    is_told,
    look_up,
    open_stream,
    read_again,
    read_stream,
    stop,
    streams_of,
    text_of,
    until_live,
    until_read,
)

TEXT = " ".join(WORDS)
STREAMS = campaign_count(100, 500)
MIB = 2**20


async def test_many_streams_are_dropped_and_read_on_at_once() -> None:
    async with gateway_harness(streams_max_mib=64) as gateway, engines(1) as (engine,):
        engine.words = [f"w{number}" for number in range(40)]
        await gateway.publish(route("m", [engine.url], apis=(CHAT,), target_inflight=10_000))

        async def drop_and_read_on(number: int) -> None:
            name = f"conv-{number}"
            fields: Any = {"fault": "pause_until_release", "after": 1 + number % 7, "max_tokens": 20 + number}
            sent = await cut_stream(await open_stream(gateway, name, **fields))
            rest = await read_again(gateway, len(sent), name)
            assert rest.status == 200, rest.body
            words = text_of(sent + rest.body).split()
            assert words == [f"w{index % 40}" for index in range(20 + number)], "another stream's"

        async with asyncio.TaskGroup() as group:
            for number in range(STREAMS):
                group.create_task(drop_and_read_on(number))
            await until_live(gateway, STREAMS)
            assert streams_of(gateway).registry.used_bytes <= 64 * MIB
            await until_read(gateway, STREAMS)
            engine.release.set()
        registry = streams_of(gateway).registry
        assert (registry.live_count, registry.ended_count, registry.evicted_count) == (0, STREAMS, 0)
        assert registry.used_bytes <= 64 * MIB
        await nothing_left(gateway)


async def test_a_slow_reader_holds_back_nobody_and_is_told_what_it_lost() -> None:
    async with gateway_harness(stream_ring_kib=64, client_timeout_s=60) as gateway, engines(1) as (engine,):
        engine.words = ["x" * 10_000] * 400
        await gateway.publish(route("m", [engine.url]))
        headers = [f"X-Conversation-Id: {ID}"]
        async with raw(gateway, receive_bytes=4096) as own, raw(gateway, receive_bytes=4096) as other:
            own.write(request(body=chat_body(stream=True, fault="pause_until_release"), headers=headers))
            await until_read(gateway, 1)
            other.write(request("GET", f"/v1/stream/{ID}"))
            await until_read(gateway, 2)
            fast = asyncio.create_task(read_again(gateway))
            await until_read(gateway, 3)
            engine.release.set()
            assert len(text_of((await fast).body).split()) == 400
            [found] = await look_up(gateway, ID)
            assert found["state"] == "done"
            for slow in (own, other):
                body = (await slow.answer()).body
                assert is_told("stream_offset_lost", body)
                assert len(body) < 4 * MIB


async def test_when_all_memory_is_taken_by_live_streams_another_is_refused() -> None:
    async with gateway_harness(streams_max_mib=1) as gateway, engines(1) as (engine,):
        await gateway.publish(route("m", [engine.url]))
        await read_stream(gateway, "ended")
        opened = []
        for number in range(100):
            answer = await open_stream(gateway, f"conv-{number}", fault="pause_until_release")
            if answer.status != 200:
                break
            opened.append(answer)
        assert (answer.status, (await answer.json())["error"]["code"]) == (503, "streams_full")
        assert "retry-after" in answer.headers
        assert 5 < len(opened) < 20
        assert (await read_again(gateway, stream_id="ended")).status == 404, "it made room"
        assert text_of((await gateway.chat(stream=True)).content) == TEXT
        assert text_of((await read_stream(gateway, "conv-0")).content) == TEXT
        assert (await read_stream(gateway, "another")).status == 200, "one that has ended makes room"
        metrics = await gateway.metrics()
        assert "roundhouse_gateway_stream_refusals_total 1.0" in metrics
        assert "roundhouse_gateway_stream_evictions_total 2.0" in metrics
        response = await gateway.post("/v1/responses", model="m", input="Hi", background=True, stream=True)
        assert (response.status, "response.completed" in response.text) == (200, True)
        engine.release.set()
        for answer in opened[1:]:
            assert text_of(await answer.read()) == TEXT


async def test_what_one_request_lacks_replaces_no_stream(gateway: GatewayHarness, engine: MockEngine) -> None:
    async with open_stream(gateway, fault="pause_until_release") as first:
        sent = await first.content.readuntil(b"\n\n")
        for wrong in ({"model": "unknown"}, {"stream": "yes"}, {"stream": False}):
            await read_stream(gateway, **wrong)
        assert (await gateway.request("POST", CHAT, data=b"{", headers={"X-Conversation-Id": ID})).status == 400
        engine.release.set()
        sent += await first.read()
    assert text_of(sent) == TEXT
    assert (await read_again(gateway)).body == sent


async def test_a_key_with_one_request_at_a_time_reads_stops_and_replaces_its_stream() -> None:
    async with gateway_harness() as gateway, engines(1) as (engine,):
        await gateway.publish(
            route("m", [engine.url]), keys=(key("alice", concurrency=1), key("bob", tenant="alice", concurrency=1))
        )
        gateway.client.headers["authorization"] = "Bearer secret-alice"
        sent = await cut_stream(await open_stream(gateway, fault="pause_until_release"))
        await until_read(gateway, 0)
        assert (await read_stream(gateway, "another")).status == 429
        reader = asyncio.create_task(read_again(gateway, len(sent)))
        await until_read(gateway, 1)
        assert len(await look_up(gateway, ID)) == 1
        second = await open_stream(gateway, fault="pause_until_release")
        assert second.status == 200, "it takes the place of the first"
        assert is_told("stream_replaced", (await reader).body)
        gateway.client.headers["authorization"] = "Bearer secret-bob"
        async with open_stream(gateway, "bobs", fault="pause_until_release") as own:
            assert own.status == 200
            assert (await read_stream(gateway)).status == 429, "what ends counts for another key"
            assert await stop(gateway) == 204
            assert is_told("stream_stopped", await second.read())
            engine.release.set()
            assert text_of(await own.read()) == TEXT
        await nothing_left(gateway)


async def test_requests_leave_no_cycles_behind(gateway: GatewayHarness, engine: MockEngine) -> None:
    await gateway.publish(route("m", [engine.url], apis=(CHAT,)))

    async def make_streams(number: int) -> None:
        for path in FAMILIES:
            await read_stream(gateway, f"{path}{number}", path)
        await cut_stream(await open_stream(gateway, f"cut{number}"))
        await gateway.post("/v1/responses", model="m", input="Hi", background=True, stream=True)
        await gateway.idle()

    await make_streams(0)
    gc.collect()
    gc.disable()
    try:
        await make_streams(1)
        await until_read(gateway, 0)
        assert [each for each in gc.get_objects() if isinstance(each, Exchange)] == []
    finally:
        gc.enable()


async def test_a_bad_id_is_refused(gateway: GatewayHarness, engine: MockEngine) -> None:
    reply = await read_stream(gateway, "x" * 513)
    assert (reply.status, reply.error["param"]) == (400, "X-Conversation-Id")
    reply = await gateway.get("/v1/stream")
    assert (reply.status, reply.error["param"]) == (400, "conv_id")
    for wrong in ({}, {"conversation_ids": "x"}, {"conversation_ids": [1]}, {"conversation_ids": ["x"] * 1001}):
        reply = await gateway.post("/v1/streams/lookup", **wrong)
        assert (reply.status, reply.error["param"]) == (400, "conversation_ids")


async def asks_of(gateway: GatewayHarness, name: str, stream_id: str) -> list[tuple[int, str]]:
    """What a key is answered on every route that takes an id of a stream, without what names the request."""
    gateway.client.headers["authorization"] = f"Bearer secret-{name}"
    answers = []
    for method, path in (
        ("GET", f"/v1/stream/{stream_id}"),
        ("GET", f"/v1/stream/{stream_id}?from=5&ids=1"),
        ("GET", f"/v1/stream/{stream_id}?from=100000"),
        ("GET", f"/v1/stream?conv_id={stream_id}"),
        ("DELETE", f"/v1/stream/{stream_id}"),
        ("DELETE", f"/v1/stream?conv_id={stream_id}"),
        ("GET", f"/v1/responses/{stream_id}?stream=true"),
    ):
        reply = await gateway.request(method, path)
        fields = reply.error | {"request_id": None} if reply.status >= 400 else None
        answers.append((reply.status, json.dumps(fields).replace(stream_id, "ID")))
    ids = [stream_id, stream_id.partition("::")[0]]
    reply = await gateway.post("/v1/streams/lookup", conversation_ids=ids)
    return [*answers, (reply.status, reply.text)]


async def test_an_id_of_another_tenant_is_one_that_nobody_has() -> None:
    keys = (key("alice"), key("bob"), key("carol", tenant="alice", models=["other"]))
    async with gateway_harness() as gateway, engines(1) as (engine,):
        await gateway.publish(route("m", [engine.url]), route("other", [engine.url]), keys=keys)
        gateway.client.headers["authorization"] = "Bearer secret-alice"
        sent = (await read_stream(gateway, "done-1::m")).content
        live = await open_stream(gateway, "live-1::m", fault="pause_until_release")
        begun = await live.content.readuntil(b"\n\n")
        async with gateway.post("/v1/responses", model="m", input="Hi", background=True, stream=True) as response:
            response_id = (await response.content.readuntil(b"\n\n")).split(b'"id":"')[1].split(b'"')[0].decode()
            await response.read()
        for name in ("bob", "carol"):
            for stream_id in ("done-1::m", "live-1::m", response_id):
                unknown = await asks_of(gateway, name, "x" * len(stream_id))
                assert await asks_of(gateway, name, stream_id) == unknown
                assert [status for status, _ in unknown] == [404] * 7 + [200]
                assert unknown[-1][1] == "[]"
        gateway.client.headers["authorization"] = "Bearer secret-bob"
        await read_stream(gateway, "done-1::m")
        assert await stop(gateway, "done-1::m") == 204
        gateway.client.headers["authorization"] = "Bearer secret-alice"
        assert (await read_again(gateway, stream_id="done-1::m")).body == sent
        engine.release.set()
        assert text_of(begun + await live.read()) == TEXT
        ids = [found["conversation_id"] for found in await look_up(gateway, "live-1", "done-1")]
        assert ids == ["live-1::m", "done-1::m"]


async def test_an_id_of_another_tenant_takes_as_long_as_none() -> None:
    """Tries of both kinds in turn: their times, ranked together, tell nothing of which is which."""
    keys = (key("alice"), key("bob"))
    async with gateway_harness() as gateway, engines(1) as (engine,):
        await gateway.publish(route("m", [engine.url]), keys=keys)
        gateway.client.headers["authorization"] = "Bearer secret-alice"
        await read_stream(gateway, "conv-1")
        gateway.client.headers["authorization"] = "Bearer secret-bob"
        for method, path in (("GET", "/v1/stream/"), ("DELETE", "/v1/stream/"), ("GET", "/v1/responses/")):
            times: dict[str, list[float]] = {"conv-1": [], "conv-2": []}
            for number in range(2 * campaign_count(150, 1000)):
                name = ("conv-1", "conv-2")[(number ^ number >> 1) & 1]
                began = time.perf_counter()
                async with gateway.request(method, path + name) as response:
                    await response.read()
                times[name].append(time.perf_counter() - began)
                assert response.status == 404
            assert abs(rank_sum_z(times["conv-1"], times["conv-2"])) < 4.5, (method, path)


def rank_sum_z(first: list[float], second: list[float]) -> float:
    """By how many standard deviations the ranks of two samples differ (Mann and Whitney, 1947)."""
    ranked = sorted([(each, True) for each in first] + [(each, False) for each in second])
    rank_sum = sum(rank for rank, (_, is_first) in enumerate(ranked, 1) if is_first)
    n, m = len(first), len(second)
    return (rank_sum - n * (n + m + 1) / 2) / math.sqrt(n * m * (n + m + 1) / 12)


async def test_a_body_without_a_model_is_for_the_one_that_the_id_names() -> None:
    async with gateway_harness() as gateway, engines(1) as (engine,):
        await gateway.publish(route("m", [engine.url]), route("n", [engine.url]))
        for fields in ({}, {"padding": "x" * 600_000}):
            body = {"messages": [{"role": "user", "content": "Hi"}], **fields}
            assert (await gateway.post(CHAT, body, headers={"X-Conversation-Id": "conv::n"})).status == 200
            assert engine.requests[-1].body["model"] == "n"
            assert engine.requests[-1].body.get("padding") == fields.get("padding")
            reply = await gateway.post(CHAT, body, headers={"X-Conversation-Id": "conv"})
            assert (reply.status, reply.error["param"]) == (400, "model")
        await read_stream(gateway, "conv::n", model="m")
        assert engine.requests[-1].body["model"] == "m", "the body says so"
        assert (await look_up(gateway, "conv"))[0]["model"] == "m"
