"""Clients that are slow, or that only wait: each holds a connection as long as the settings say, and little memory."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.fakes.fake_controller import route
from tests.fakes.gateway_harness import GatewayHarness, engines, gateway_harness
from tests.fakes.mock_engine import MockEngine
from tests.support.raw_http import RawClient, chat_body, raw, request, spotless
from tests.support.wait import until

SMALL = 4096
"""Bytes that the kernel keeps for a client that reads nothing."""


@contextlib.asynccontextmanager
async def one_model(**settings: Any) -> AsyncIterator[tuple[GatewayHarness, MockEngine]]:
    """A gateway with short patience, and the model `m` on `engine`; nothing may be left afterwards."""
    async with (
        gateway_harness(**{"client_timeout_s": 0.3, "keep_alive_s": 60} | settings) as here,
        engines(1) as (engine,),
    ):
        await here.publish(route("m", [engine.url]))
        yield here, engine
        await spotless(here)


async def trickle(client: RawClient, data: bytes, pause_s: float) -> None:
    """Byte by byte, until the gateway has had enough."""
    for at in range(len(data)):
        if client.ended:
            return
        await client.send(data[at : at + 1])
        await asyncio.sleep(pause_s)


@pytest.mark.parametrize("before", [b"", request("GET", "/v1/models")], ids=["first", "later"])
async def test_headers_that_trickle_have_one_time_limit(before: bytes) -> None:
    async with one_model() as (here, _), raw(here) as client:
        await client.send(before)
        sending = asyncio.create_task(trickle(client, b"GET /v1/models HTTP/1.1\r\nx-a: " + b"b" * 5000, 0.02))
        *_, last = await client.to_the_end()
        assert (last.status, last.error["code"], last["connection"]) == (408, "request_timeout", "close")
        sending.cancel()


@pytest.mark.parametrize("target", ["/v1/chat/completions", "/v1/messages", "/v1/admin/plan"])
@pytest.mark.parametrize("framing", ["content-length: 100", "transfer-encoding: chunked"])
async def test_a_body_that_stops_is_not_waited_for(target: str, framing: str) -> None:
    async with one_model() as (here, engine), raw(here) as client:
        client.write(f"POST {target} HTTP/1.1\r\nhost: localhost\r\n{framing}\r\n\r\n".encode() + b'5\r\n{"a":')
        (answer,) = await client.to_the_end()
        assert (answer.status, answer.error["code"], answer["connection"]) == (408, "request_timeout", "close")
        assert not engine.requests


async def test_a_body_that_goes_on_may_be_slow() -> None:
    async with one_model(client_timeout_s=1) as (here, engine), raw(here) as client:
        sent = request(body=chat_body(n=1))
        at = len(sent) - 40
        client.write(sent[:at])
        await trickle(client, sent[at:], 0.05)  # two seconds in all
        assert (await client.answer()).status == 200
        assert engine.requests[0].raw == chat_body(n=1)
        client.close()


async def test_trailers_that_trickle_are_not_waited_for() -> None:
    async with one_model() as (here, _), raw(here) as client:
        client.write(
            b"POST /tokenize HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n"
        )
        sending = asyncio.create_task(trickle(client, b"x-a: " + b"b" * 5000, 0.02))
        (answer,) = await client.to_the_end()
        assert answer.status == 408
        sending.cancel()


@pytest.mark.parametrize(
    "before", [b"", request("GET", "/health"), request()], ids=["nothing", "framework", "inference"]
)
async def test_a_connection_without_a_request_ends(before: bytes) -> None:
    async with one_model(keep_alive_s=0.2) as (here, _), raw(here) as client:
        await client.send(before)
        assert [answer.status for answer in await client.to_the_end()] == [200] * bool(before)


async def test_a_kept_connection_stays_as_long_as_it_is_used() -> None:
    async with one_model(keep_alive_s=1.5, client_timeout_s=0.2) as (here, _), raw(here) as client:
        for number in range(1, 7):
            client.write(request("GET", "/v1/models"))
            assert (await client.answer(number)).status == 200
            await asyncio.sleep(0.4)
        client.close()


async def test_an_answer_that_takes_long_is_no_fault_of_the_client() -> None:
    async with one_model(client_timeout_s=0.1, keep_alive_s=0.1) as (here, engine), raw(here) as client:
        client.write(request(body=chat_body(fault="hold")))
        await until("it is inside", lambda: engine.running == 1)
        await asyncio.sleep(0.5)
        engine.release.set()
        assert (await client.answer()).status == 200


async def test_a_client_that_reads_nothing_of_a_stream_stops_the_engine_and_is_left() -> None:
    async with one_model(client_timeout_s=1.0) as (here, engine):
        engine.words = ["w" * 5000]
        async with raw(here, receive_bytes=SMALL) as client:
            client.write(request(body=chat_body(stream=True, max_tokens=20_000)))  # 100 MB
            assert await most_unsent(here) < 1_000_000
            await until("the engine's work is cancelled", lambda: not engine.open_transports)
            client.reset()


async def test_who_does_not_take_an_answer_is_given_no_other() -> None:
    async with one_model(client_timeout_s=1.0) as (here, engine):
        async with raw(here, receive_bytes=SMALL) as client:
            client.write(request(body=chat_body(fault="huge", bytes=8_000_000)))
            await until("it is answered", lambda: any(each.flow.write_paused for each in connections(here)))
            client.write(request(body=chat_body(stream=True, max_tokens=20_000)) + request())
            assert await most_unsent(here) < 8_100_000
            client.reset()
        assert len(engine.requests) == 1


async def test_who_takes_it_in_the_end_is() -> None:
    async with one_model(client_timeout_s=20) as (here, engine), raw(here, receive_bytes=SMALL) as client:
        client.write(request(body=chat_body(fault="huge", bytes=8_000_000)))
        await until("it is answered", lambda: any(each.flow.write_paused for each in connections(here)))
        client.write(request() + request("GET", "/v1/models"))
        assert [len((await client.answer(number)).body) > 8_000_000 - 1 for number in (1, 2, 3)] == [True, False, False]
        assert len(engine.requests) == 2
        client.close()


async def most_unsent(here: GatewayHarness) -> int:
    """The most bytes that the gateway had for the client until it ended the connection."""
    most = 0

    def look() -> bool:
        nonlocal most
        most = max([most, *(each.transport.get_write_buffer_size() for each in connections(here))])
        return not connections(here)

    await until("the connection is ended", look)
    return most


def connections(here: GatewayHarness) -> set[Any]:
    """Those of clients."""
    assert here.server is not None
    return here.server.server_state.connections


async def test_a_client_that_reads_slowly_gets_all_of_a_large_answer() -> None:
    size = 6_000_000
    async with one_model(client_timeout_s=0.5) as (here, engine), raw(here, receive_bytes=SMALL) as client:
        client.write(request(body=chat_body(fault="huge", bytes=size)))
        await until("the engine is done", lambda: len(engine.requests) == 1 and engine.running == 0)
        dice = random.Random(3)
        while not client.answers or not client.answers[0].whole:
            assert await client.read(), f"it was ended after {len(client.received)} bytes"
            if dice.random() < 0.004:
                await asyncio.sleep(0.2)
        assert len(client.answers[0].body) == size
        client.close()


async def test_an_answer_that_is_complete_and_not_taken_is_not_kept_for_ever() -> None:
    for more in ((), ("connection: close",)):
        async with one_model() as (here, _), raw(here, receive_bytes=SMALL) as client:
            client.write(request(body=chat_body(fault="huge", bytes=12_000_000), headers=more))
            await until("the connection is ended", lambda: not connections(here))
            client.reset()
