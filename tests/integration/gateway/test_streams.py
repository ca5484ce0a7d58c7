"""Streams: events as the engine sent them, usage taken out, heartbeats in silence, errors told to the end."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.fakes.fake_controller import route
from tests.fakes.gateway_harness import GatewayHarness, engines, gateway_harness, until
from tests.fakes.mock_engine import WORDS, MockEngine
from tests.support.loop_clock import LoopClock, loop_clock
from tests.support.raw_http import chat_body, raw, request, spotless

__all__ = ["loop_clock"]


def events_of(stream: bytes) -> list[str]:
    """The events of a whole stream, comments included."""
    text = stream.decode().replace("\r\n", "\n")
    assert text.endswith("\n\n")
    return text[:-2].split("\n\n")


def payloads(events: list[str]) -> list[Any]:
    """What the events hold, without comments and the final `[DONE]`, which is asserted."""
    data = [event.removeprefix("data: ") for event in events if not event.startswith(":")]
    assert data[-1] == "[DONE]"
    return [json.loads(event) for event in data[:-1]]


def words_of(events: list[str]) -> list[str]:
    chunks = payloads(events)
    return "".join(chunk["choices"][0]["delta"]["content"] for chunk in chunks if chunk.get("choices")).split()


async def read_stream(gateway: GatewayHarness, **fields: Any) -> list[str]:
    """The events of a chat stream that is answered with 200."""
    reply = await gateway.chat(stream=True, **fields)
    assert reply.status == 200
    assert reply.headers["content-type"].startswith("text/event-stream")
    return events_of(reply.content)


@pytest.mark.parametrize("fault", ["", "half_chunks", "crlf"])
async def test_a_stream_comes_through_without_the_usage_event(fault: str) -> None:
    async with gateway_harness() as gateway, engines(1) as (engine,):
        await gateway.publish(route("m", [engine.url]))
        events = await read_stream(gateway, fault=fault)
        assert words_of(events) == WORDS
        assert all(chunk["choices"] for chunk in payloads(events))
        assert engine.requests[0].body["stream_options"] == {"include_usage": True}
        await gateway.idle()
        assert 'roundhouse_gateway_tokens_total{direction="out",model="m"} 13.0' in await gateway.metrics()


async def test_a_client_that_asks_for_usage_gets_it(gateway: GatewayHarness, engine: MockEngine) -> None:
    last = payloads(await read_stream(gateway, stream_options={"include_usage": True}))[-1]
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 13


async def test_headers_are_held_so_that_an_error_keeps_its_status(gateway: GatewayHarness, engine: MockEngine) -> None:
    reply = await gateway.chat(stream=True, fault="busy")
    assert (reply.status, reply.headers["retry-after"], reply.error["message"]) == (503, "17", "busy")


async def test_a_slow_first_byte_gets_headers_and_heartbeats() -> None:
    async with gateway_harness(hold_headers_s=0.05, heartbeat_s=0.05) as gateway, engines(1) as (engine,):
        await gateway.publish(route("m", [engine.url]))
        async with gateway.chat(stream=True, fault="hold") as response:
            assert response.status == 200
            for _ in range(3):
                assert await response.content.readuntil(b"\n\n") == b": ka\n\n"
            engine.release.set()
            assert words_of(events_of(await response.read())) == WORDS


async def test_an_error_after_the_headers_were_sent_comes_as_an_event() -> None:
    async with gateway_harness(hold_headers_s=0.02) as gateway, engines(1) as (engine,):
        await gateway.publish(route("m", [engine.url]))
        async with gateway.chat(stream=True, fault="hold") as response:
            await response.content.readuntil(b"\n\n")
            await engine.stop()
            events = events_of(await response.read())
        assert payloads(events)[-1]["error"]["code"] == "engine_unreachable"


async def test_an_engines_error_after_the_headers_were_sent_comes_as_an_event() -> None:
    async with gateway_harness(hold_headers_s=0.02) as gateway, engines(1) as (engine,):
        await gateway.publish(route("m", [engine.url]))
        async with gateway.chat(stream=True, fault="hold", then="busy") as response:
            await response.content.readuntil(b"\n\n")
            engine.release.set()
            events = events_of(await response.read())
        error = payloads(events)[0]["error"]
        assert (error["message"], error["code"], error["status"]) == ("busy", "engine_error", 503)
        assert 'roundhouse_gateway_broken_answers_total{code="engine_error",model="m"} 1.0' in await gateway.metrics()


async def test_a_stream_without_done_is_whole_where_its_answer_has_ended(
    gateway: GatewayHarness, engine: MockEngine
) -> None:
    """Some servers end so, and send the body's end as HTTP has it."""
    events = await read_stream(gateway, fault="no_done")
    assert events == await read_stream(gateway)
    assert "roundhouse_gateway_broken_answers_total{" not in await gateway.metrics()


@pytest.mark.parametrize("fault", ["die_mid_stream", "end_early"])
async def test_an_engine_that_ends_mid_stream_is_told_of(fault: str) -> None:
    async with gateway_harness() as gateway, engines(1) as (engine,):
        await gateway.publish(route("m", [engine.url]))
        error = payloads(await read_stream(gateway, fault=fault))[-1]["error"]
        assert error["code"] == "engine_disconnected"
        assert error["status"] == 502
        assert len(engine.requests) == 1, "after the first byte there is no second try"
        metrics = await gateway.metrics()
        assert 'roundhouse_gateway_broken_answers_total{code="engine_disconnected",model="m"} 1.0' in metrics
        assert 'roundhouse_gateway_requests_total{model="m",route="/v1/chat/completions",status="200"} 1.0' in metrics


async def test_an_engines_own_error_event_is_the_last_word(gateway: GatewayHarness, engine: MockEngine) -> None:
    last = payloads(await read_stream(gateway, fault="error_event"))[-1]
    assert (last["error"]["message"], last["error"]["code"]) == ("out of cells", "engine_error")


async def test_the_deadline_ends_a_stream(loop_clock: LoopClock) -> None:
    async with gateway_harness(request_timeout_s=30) as gateway, engines(1) as (engine,):
        await gateway.publish(route("m", [engine.url]))
        async with gateway.chat(stream=True, fault="stall") as response:
            await loop_clock.skip(20)
            assert engine.running == 1
            await loop_clock.skip(15)
            assert payloads(events_of(await response.read()))[-1]["error"]["code"] == "request_timeout"
        await until(lambda: engine.cancelled == 1, "the engine sees it too")


async def test_a_client_that_sends_its_body_too_slowly_is_told() -> None:
    async with gateway_harness(request_timeout_s=0.2) as gateway:
        await gateway.publish(route("m"))
        host, port = gateway.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\n{")
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 408 ")
        writer.close()


async def test_a_slow_reader_gets_everything(gateway: GatewayHarness, engine: MockEngine) -> None:
    engine.words = ["w" * 2000]
    await gateway.publish(route("m", [engine.url]))
    async with raw(gateway, receive_bytes=4096) as client:
        client.write(request(body=chat_body(stream=True, max_tokens=500)))
        await until(lambda: any(each.flow.write_paused for each in gateway.connections), "every buffer is full")
        events = (await client.answer()).body.decode()[:-2].split("\n\n")
    assert len(payloads(events)) == 500
    await spotless(gateway)
