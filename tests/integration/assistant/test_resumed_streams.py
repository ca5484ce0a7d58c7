"""Streams with `X-Conversation-Id`: read again from any byte, by others, after the client has left; stopped and
replaced."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest

from contract.status import ModelState
from tests.fakes.fake_controller import route
from tests.fakes.gateway_harness import GatewayHarness, engines, gateway_harness, until
from tests.fakes.mock_engine import WORDS, MockEngine
from tests.support.resumed_streams import (
    CHAT,
    ID,
    check_every_cut,
    cut_stream,
    is_told,
    look_up,
    open_stream,
    read_again,
    read_stream,
    stop,
    text_of,
    until_live,
    until_read,
)

TEXT = " ".join(WORDS)


async def test_a_stream_is_read_again_from_every_byte(gateway: GatewayHarness, engine: MockEngine) -> None:
    reply = await read_stream(gateway)
    assert (reply.status, reply.headers["x-stream-file"], text_of(reply.content)) == (200, "kept", TEXT)
    for offset in range(0, len(reply.content) + 1, 7):
        read = await read_again(gateway, offset)
        assert (read.status, read.body, read.state) == (200, reply.content[offset:], "done")
        headers = [read.headers[f"x-stream-{name}"] for name in ("first-offset", "length", "file")]
        assert headers == ["0", str(len(reply.content)), "kept"]


async def test_every_family_is_cut_and_read_on(gateway: GatewayHarness, engine: MockEngine) -> None:
    await gateway.publish(route("m", [engine.url], apis=(CHAT,)))
    await check_every_cut(gateway, "m")


async def test_without_the_header_nothing_is_kept(gateway: GatewayHarness, engine: MockEngine) -> None:
    async with gateway.chat(stream=True) as response:
        assert "x-stream-file" not in response.headers
        await response.read()
    await gateway.chat(stream=False)
    assert 'roundhouse_gateway_streams{state="ended"} 0.0' in await gateway.metrics()


async def test_the_generation_goes_on_when_the_client_drops(gateway: GatewayHarness, engine: MockEngine) -> None:
    sent = await cut_stream(await open_stream(gateway, fault="pause_until_release", after=3))
    await until_read(gateway, 0)
    reader = asyncio.create_task(read_again(gateway, len(sent)))
    await until_read(gateway, 1)
    assert engine.cancelled == 0
    engine.release.set()
    read = await reader
    assert (read.status, read.state) == (200, "live")
    assert text_of(sent + read.body) == TEXT
    assert (await read_again(gateway)).body == sent + read.body
    await gateway.idle()


async def test_a_delete_stops_the_engine_and_every_reader(gateway: GatewayHarness, engine: MockEngine) -> None:
    async with open_stream(gateway, fault="pause_until_release", after=3) as response:
        first = await response.content.readuntil(b"\n\n")
        reader = asyncio.create_task(read_again(gateway))
        await until_read(gateway, 2)
        assert await stop(gateway) == 204
        sent = first + await response.read()
    await until(lambda: engine.cancelled == 1, "the engine stops")
    assert is_told("stream_stopped", sent)
    assert (await reader).body == sent
    for _ in range(2):
        read = await read_again(gateway)
        assert (read.status, read.body, read.state) == (200, sent, "stopped")
        assert await stop(gateway) == 204


async def test_a_delete_of_an_ended_stream_removes_it(gateway: GatewayHarness, engine: MockEngine) -> None:
    await read_stream(gateway)
    assert await stop(gateway) == 204
    read = await read_again(gateway)
    assert (read.status, read.code) == (404, "stream_not_found")
    assert await stop(gateway) == 204
    assert await stop(gateway, "never") == 404


async def test_another_request_of_the_id_replaces_the_stream(gateway: GatewayHarness, engine: MockEngine) -> None:
    await gateway.publish(route("m", [engine.url], target_inflight=1))
    async with open_stream(gateway, fault="pause_until_release", after=3) as first:
        await first.content.readuntil(b"\n\n")
        reader = asyncio.create_task(read_again(gateway))
        await until_read(gateway, 2)
        async with open_stream(gateway) as second:
            sent = await second.read()
        assert is_told("stream_replaced", await first.read())
    assert is_told("stream_replaced", (await reader).body)
    await until(lambda: engine.cancelled == 1)
    assert (await read_again(gateway)).body == sent


async def test_a_refused_request_leaves_nothing_and_an_absent_client_finds_its_error() -> None:
    async with gateway_harness() as gateway, engines(1) as (engine,):
        await gateway.publish(route("m", [engine.url]))
        assert (await read_stream(gateway, fault="bad_request")).status == 400
        assert (await read_again(gateway)).status == 404
        call = asyncio.create_task(open_stream(gateway, fault="hold", then="bad_request").__aenter__())
        await until(lambda: engine.running == 1)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        engine.release.set()
        await gateway.idle()
        read = await read_again(gateway)
        assert (read.status, read.state) == (200, "cut")
        assert b"too hot" in read.body


async def test_who_reads_along_is_told_why_a_request_was_refused_before_its_first_byte() -> None:
    async with gateway_harness() as gateway, engines(1) as (engine,):
        await gateway.publish(route("m", [engine.url]))
        call = asyncio.create_task(read_stream(gateway, fault="hold", then="bad_request"))
        await until(lambda: engine.running == 1)
        reader = asyncio.create_task(read_again(gateway))
        await until_read(gateway, 1)
        engine.release.set()
        assert (await call).status == 400
        assert b"too hot" in (await reader).body


async def test_a_slash_in_the_id_and_the_query_form() -> None:
    stream_id = "conv::org/model:Q8_0"
    async with gateway_harness() as gateway, engines(1) as (engine,):
        await gateway.publish(route("org/model:Q8_0", [engine.url]))
        async with open_stream(gateway, stream_id, model=None) as response:
            assert response.status == 200
            sent = await response.read()
        assert (await read_again(gateway, stream_id=stream_id)).body == sent
        assert (await gateway.get(f"/v1/stream/{stream_id}")).content == sent
        query = {"conv_id": stream_id, "from": "0"}
        assert (await gateway.get("/v1/stream", params=query)).content == sent
        [found] = await look_up(gateway, "conv")
        assert found["conversation_id"] == stream_id
        assert (found["is_done"], found["total_bytes"], found["state"]) == (True, len(sent), "done")
        assert await look_up(gateway, "other", "con") == []
        assert (await gateway.request("DELETE", "/v1/stream", params={"conv_id": stream_id})).status == 204
        assert (await read_again(gateway, stream_id=stream_id)).status == 404


async def test_ids_for_event_source(gateway: GatewayHarness, engine: MockEngine) -> None:
    sent = (await read_stream(gateway)).content
    events = (await read_again(gateway, ids="1")).body.decode().split("\n\n")[:-1]
    offsets = [int(event.split("\nid: ")[1]) for event in events]
    assert offsets[-1] == len(sent)
    last_event_id = {"Last-Event-ID": str(offsets[4])}
    assert (await gateway.get(f"/v1/stream/{ID}?from=3", headers=last_event_id)).content == sent[offsets[4] :]


async def test_wrong_offsets_are_refused() -> None:
    async with gateway_harness(stream_ring_kib=1) as gateway, engines(1) as (engine,):
        await gateway.publish(route("m", [engine.url]))
        sent = (await read_stream(gateway)).content
        assert len(sent) > 1024
        read = await read_again(gateway)
        assert (read.status, read.code) == (400, "stream_offset_lost")
        [found] = await look_up(gateway, ID)
        first_offset = found["first_offset"]
        assert (await read_again(gateway, first_offset)).body == sent[first_offset:]
        for wrong in (first_offset - 1, len(sent) + 1, "x", "-1"):
            assert (await read_again(gateway, wrong)).status == 400


async def test_a_reader_during_a_load_is_told_to_ask_again(gateway: GatewayHarness, engine: MockEngine) -> None:
    await gateway.publish(route("m", [], state=ModelState.LOADING, autoload=True))
    call = asyncio.create_task(open_stream(gateway).__aenter__())
    await until_live(gateway)
    read = await read_again(gateway)
    assert (read.status, read.code, read.headers["retry-after"]) == (503, "model_loading", "1")
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await gateway.publish(route("m", [engine.url]))
    read = await read_again(gateway)
    assert (read.status, text_of(read.body)) == (200, TEXT)


async def test_a_delete_during_a_load_ends_the_request(gateway: GatewayHarness) -> None:
    await gateway.publish(route("m", [], state=ModelState.LOADING, autoload=True))
    call = asyncio.create_task(open_stream(gateway).__aenter__())
    await until_live(gateway)
    assert await stop(gateway) == 204
    response: aiohttp.ClientResponse = await call
    assert response.status == 400
    assert "cancelled" in (await response.json())["error"]["message"]
    assert (await read_again(gateway)).status == 404
