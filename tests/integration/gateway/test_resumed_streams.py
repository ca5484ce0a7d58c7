"""Streams with `X-Conversation-Id`: read again from any byte, by others, after the client has left; stopped and
replaced."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from urllib.parse import quote

import aiohttp
import pytest

from controller.schema.status import ModelState
from gateway.streams.resumable_streams import ResumableStreams
from tests.fakes.fake_controller import route
from tests.fakes.gateway_harness import GatewayHarness, engines, gateway_harness, until
from tests.fakes.mock_engine import WORDS

ID = "conv-1"


def open_stream(here: GatewayHarness, stream_id: str = ID, **fields: Any) -> Any:
    """An opted-in chat stream; an async context manager, as aiohttp's."""
    body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "stream": True, **fields}
    headers = {"X-Conversation-Id": stream_id}
    return here.client.post(here.url + "/v1/chat/completions", json=body, headers=headers)


async def read_whole(here: GatewayHarness, stream_id: str = ID, **query: Any) -> tuple[int, bytes, Any]:
    """Status, body and headers of GET /v1/stream/{id}."""
    url = f"{here.url}/v1/stream/{quote(stream_id, safe='')}"
    async with here.client.get(url, params={name: str(value) for name, value in query.items()}) as answer:
        return answer.status, await answer.read(), answer.headers


async def stop(here: GatewayHarness, stream_id: str = ID) -> int:
    """Status of DELETE /v1/stream/{id}."""
    async with here.client.delete(f"{here.url}/v1/stream/{quote(stream_id, safe='')}") as answer:
        return answer.status


async def look_up(here: GatewayHarness, *stream_ids: str) -> Any:
    """What POST /v1/streams/lookup tells."""
    async with here.post("/v1/streams/lookup", conversation_ids=stream_ids) as answer:
        assert answer.status == 200
        return await answer.json()


async def until_read(here: GatewayHarness, readers: int) -> None:
    """Wait until the gateway's streams have so many readers."""
    await until(lambda: _streams(here).registry.count_readers() == readers, f"{readers} readers")


async def until_open(here: GatewayHarness) -> None:
    """Wait until a stream is live."""
    await until(lambda: _streams(here).registry.live_count == 1, "a stream")


def _streams(here: GatewayHarness) -> ResumableStreams:
    assert here.server is not None
    streams: ResumableStreams = here.server._gateway.streams
    return streams


def text_of(stream: bytes) -> str:
    """The words of a stream of chunks."""
    events = [event.removeprefix("data: ") for event in stream.decode().split("\n\n") if event.startswith("data: {")]
    chunks = [json.loads(event) for event in events]
    return "".join(each["choices"][0]["delta"].get("content", "") for each in chunks if each.get("choices")).strip()


def code_of(stream: bytes) -> str:
    """The code of the error that ends a stream of chunks."""
    assert stream.endswith(b"\n\ndata: [DONE]\n\n")
    code: str = json.loads(stream.split(b"\n\n")[-3].removeprefix(b"data: "))["error"]["code"]
    return code


async def test_a_stream_is_read_again_from_every_byte() -> None:
    async with gateway_harness() as here, engines(1) as (engine,):
        await here.publish(route("m", [engine.url]))
        async with open_stream(here) as answer:
            assert answer.status == 200
            assert answer.headers["x-stream-file"] == "kept"
            sent = await answer.read()
        assert text_of(sent) == " ".join(WORDS)
        for offset in range(0, len(sent) + 1, 7):
            status, rest, headers = await read_whole(here, **{"from": offset})
            assert (status, rest) == (200, sent[offset:])
            assert headers["x-stream-state"] == "done"
            assert headers["x-stream-first-offset"] == "0"
            assert headers["x-stream-length"] == str(len(sent))


async def test_without_the_header_nothing_is_kept() -> None:
    async with gateway_harness() as here, engines(1) as (engine,):
        await here.publish(route("m", [engine.url]))
        async with here.chat(stream=True) as answer:
            assert "x-stream-file" not in answer.headers
            await answer.read()
        async with here.chat(stream=False) as answer:
            await answer.read()
        assert 'roundhouse_gateway_streams{state="ended"} 0.0' in await here.metrics()


async def test_the_generation_goes_on_when_the_client_drops() -> None:
    async with gateway_harness() as here, engines(1) as (engine,):
        await here.publish(route("m", [engine.url]))
        answer = await open_stream(here, fault="pause_until_release", after=3)
        sent = await answer.content.readuntil(b"\n\n")
        answer.close()
        await until_read(here, 0)
        reader = asyncio.create_task(read_whole(here, **{"from": len(sent)}))
        await until_read(here, 1)
        assert engine.cancelled == 0
        engine.release.set()
        status, rest, headers = await reader
        assert (status, headers["x-stream-state"]) == (200, "live")
        assert text_of(sent + rest) == " ".join(WORDS)
        assert (await read_whole(here))[1] == sent + rest
        await here.idle()


async def test_a_delete_stops_the_engine_and_every_reader() -> None:
    async with gateway_harness() as here, engines(1) as (engine,):
        await here.publish(route("m", [engine.url]))
        async with open_stream(here, fault="pause_until_release", after=3) as answer:
            first = await answer.content.readuntil(b"\n\n")
            reader = asyncio.create_task(read_whole(here))
            await until_read(here, 2)
            assert await stop(here) == 204
            sent = first + await answer.read()
        await until(lambda: engine.cancelled == 1, "the engine stops")
        assert code_of(sent) == "stream_stopped"
        assert (await reader)[1] == sent
        for _ in range(2):
            status, again, headers = await read_whole(here)
            assert (status, again, headers["x-stream-state"]) == (200, sent, "stopped")
            assert await stop(here) == 204


async def test_a_delete_of_an_ended_stream_removes_it() -> None:
    async with gateway_harness() as here, engines(1) as (engine,):
        await here.publish(route("m", [engine.url]))
        async with open_stream(here) as answer:
            await answer.read()
        assert await stop(here) == 204
        status, body, _ = await read_whole(here)
        assert (status, json.loads(body)["error"]["code"]) == (404, "stream_not_found")
        assert await stop(here) == 204
        assert await stop(here, "never") == 404


async def test_another_request_of_the_id_replaces_the_stream() -> None:
    async with gateway_harness() as here, engines(1) as (engine,):
        await here.publish(route("m", [engine.url], target_inflight=1))
        async with open_stream(here, fault="pause_until_release", after=3) as first:
            await first.content.readuntil(b"\n\n")
            reader = asyncio.create_task(read_whole(here))
            await until_read(here, 2)
            async with open_stream(here) as second:
                sent = await second.read()
            assert code_of(await first.read()) == "stream_replaced"
        assert code_of((await reader)[1]) == "stream_replaced"
        await until(lambda: engine.cancelled == 1)
        assert (await read_whole(here))[1] == sent


async def test_a_refused_request_leaves_nothing_and_an_absent_client_finds_its_error() -> None:
    async with gateway_harness() as here, engines(1) as (engine,):
        await here.publish(route("m", [engine.url]))
        async with open_stream(here, fault="bad_request") as answer:
            assert answer.status == 400
        assert (await read_whole(here))[0] == 404
        call = asyncio.create_task(open_stream(here, fault="hold", then="bad_request").__aenter__())
        await until(lambda: engine.running == 1)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        engine.release.set()
        await here.idle()
        status, body, headers = await read_whole(here)
        assert (status, headers["x-stream-state"]) == (200, "cut")
        assert b"too hot" in body


async def test_a_slash_in_the_id_and_the_query_form() -> None:
    stream_id = "conv::org/model:Q8_0"
    async with gateway_harness() as here, engines(1) as (engine,):
        await here.publish(route("org/model:Q8_0", [engine.url]))
        async with open_stream(here, stream_id, model=None) as answer:
            assert answer.status == 200
            sent = await answer.read()
        assert (await read_whole(here, stream_id))[1] == sent
        async with here.client.get(f"{here.url}/v1/stream/{stream_id}") as answer:
            assert await answer.read() == sent
        query = {"conv_id": stream_id, "from": "0"}
        async with here.client.get(f"{here.url}/v1/stream", params=query) as answer:
            assert await answer.read() == sent
        [found] = await look_up(here, "conv")
        assert found["conversation_id"] == stream_id
        assert (found["is_done"], found["total_bytes"], found["state"]) == (True, len(sent), "done")
        assert await look_up(here, "other", "con") == []
        async with here.client.delete(f"{here.url}/v1/stream", params={"conv_id": stream_id}) as answer:
            assert answer.status == 204
        assert (await read_whole(here, stream_id))[0] == 404


async def test_ids_for_event_source() -> None:
    async with gateway_harness() as here, engines(1) as (engine,):
        await here.publish(route("m", [engine.url]))
        async with open_stream(here) as answer:
            sent = await answer.read()
        _, body, _ = await read_whole(here, ids=1)
        events = body.decode().split("\n\n")[:-1]
        offsets = [int(event.split("\nid: ")[1]) for event in events]
        assert offsets[-1] == len(sent)
        last_event_id = {"Last-Event-ID": str(offsets[4])}
        async with here.client.get(f"{here.url}/v1/stream/{ID}?from=3", headers=last_event_id) as answer:
            assert await answer.read() == sent[offsets[4] :]


async def test_wrong_offsets_are_refused() -> None:
    async with gateway_harness(stream_ring_kib=1) as here, engines(1) as (engine,):
        await here.publish(route("m", [engine.url]))
        async with open_stream(here) as answer:
            sent = await answer.read()
        assert len(sent) > 1024
        status, body, _ = await read_whole(here)
        assert (status, json.loads(body)["error"]["code"]) == (400, "stream_offset_lost")
        [found] = await look_up(here, ID)
        first_offset = found["first_offset"]
        assert (await read_whole(here, **{"from": first_offset}))[1] == sent[first_offset:]
        assert (await read_whole(here, **{"from": len(sent) + 1}))[0] == 400
        assert (await read_whole(here, **{"from": "x"}))[0] == 400


async def test_a_reader_during_a_load_is_told_to_ask_again() -> None:
    async with gateway_harness() as here, engines(1) as (engine,):
        await here.publish(route("m", [], state=ModelState.LOADING, autoload=True))
        call = asyncio.create_task(open_stream(here).__aenter__())
        await until_open(here)
        status, body, _ = await read_whole(here)
        assert (status, json.loads(body)["error"]["code"]) == (503, "model_loading")
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await here.publish(route("m", [engine.url]))
        status, body, _ = await read_whole(here)
        assert (status, text_of(body)) == (200, " ".join(WORDS))


async def test_a_delete_during_a_load_ends_the_request() -> None:
    async with gateway_harness() as here:
        await here.publish(route("m", [], state=ModelState.LOADING, autoload=True))
        call = asyncio.create_task(open_stream(here).__aenter__())
        await until_open(here)
        assert await stop(here) == 204
        answer: aiohttp.ClientResponse = await call
        assert answer.status == 400
        assert "cancelled" in (await answer.json())["error"]["message"]
        assert (await read_whole(here))[0] == 404
