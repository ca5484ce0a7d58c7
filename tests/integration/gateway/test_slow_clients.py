"""Clients that are slow, or that only wait: each holds a connection as long as the settings say, and little memory."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from typing import Any

import pytest

from gateway.server.connection import ClientConnection
from tests.fakes.fake_controller import route
from tests.fakes.gateway_harness import GatewayHarness, engines, gateway_harness
from tests.fakes.mock_engine import MockEngine
from tests.support.loop_clock import LoopClock, loop_clock
from tests.support.raw_http import RawClient, chat_body, raw, request, spotless
from tests.support.wait import until

__all__ = ["loop_clock"]

SMALL = 4096
"""Bytes that the kernel keeps for a client that reads nothing."""
PATIENCE_S = 10.0
"""The gateway's, on the test's clock."""


@contextlib.asynccontextmanager
async def one_model(**settings: Any) -> AsyncIterator[tuple[GatewayHarness, MockEngine]]:
    """A gateway and the model `m` on `engine`; nothing may be left afterwards."""
    async with (
        gateway_harness(**{"client_timeout_s": PATIENCE_S, "keep_alive_s": 3600} | settings) as gateway,
        engines(1) as (engine,),
    ):
        await gateway.publish(route("m", [engine.url]))
        yield gateway, engine
        await spotless(gateway)


@dataclass
class Heard:
    """What all gateways have read of their clients."""

    count: int = 0
    """Bytes."""

    async def all_of(self, client: RawClient, data: bytes) -> None:
        """Send, and wait until it is read."""
        goal = self.count + len(data)
        await client.send(data)
        await until("the gateway has read it", lambda: self.count >= goal)

    async def trickle(
        self, gateway: GatewayHarness, client: RawClient, data: bytes, clock: LoopClock, pause_s: float
    ) -> float:
        """Byte by byte, until the gateway listens no more: for how long that went."""
        for at in range(len(data)):
            if all(each._ignores_input for each in gateway.connections):
                return at * pause_s
            await self.all_of(client, data[at : at + 1])
            await clock.skip(pause_s)
        return len(data) * pause_s


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> Heard:
    made, read = Heard(), ClientConnection.data_received

    def data_received(self: ClientConnection, data: bytes) -> None:
        made.count += len(data)
        read(self, data)

    monkeypatch.setattr(ClientConnection, "data_received", data_received)
    return made


@pytest.mark.parametrize("before", [b"", request("GET", "/v1/models")], ids=["first", "later"])
async def test_headers_that_trickle_have_one_time_limit(before: bytes, heard: Heard, loop_clock: LoopClock) -> None:
    async with one_model() as (gateway, _), raw(gateway) as client:
        if before:
            await client.send(before)
            await client.answer()
        line = b"GET /v1/models HTTP/1.1\r\nx-a: " + b"b" * 5000
        took = await heard.trickle(gateway, client, line, loop_clock, 0.7)
        *_, last = await client.to_the_end()
        assert (last.status, last.error["code"], last["connection"]) == (408, "request_timeout", "close")
        assert took < 3 * PATIENCE_S


@pytest.mark.parametrize("target", ["/v1/chat/completions", "/v1/messages", "/v1/admin/plan"])
@pytest.mark.parametrize("framing", ["content-length: 100", "transfer-encoding: chunked"])
async def test_a_body_that_stops_is_not_waited_for(
    target: str, framing: str, heard: Heard, loop_clock: LoopClock
) -> None:
    async with one_model() as (gateway, engine), raw(gateway) as client:
        head = f"POST {target} HTTP/1.1\r\nhost: localhost\r\n{framing}\r\n\r\n".encode()
        await heard.all_of(client, head + b'5\r\n{"a":')
        await loop_clock.skip(PATIENCE_S - 4)
        assert not any(each._ignores_input for each in gateway.connections)
        await loop_clock.skip(4 + PATIENCE_S)
        (response,) = await client.to_the_end()
        assert (response.status, response.error["code"], response["connection"]) == (408, "request_timeout", "close")
        assert not engine.requests


async def test_a_body_that_goes_on_may_be_slow(heard: Heard, loop_clock: LoopClock) -> None:
    async with one_model() as (gateway, engine), raw(gateway) as client:
        sent = request(body=chat_body(n=1))
        at = len(sent) - 40
        await heard.all_of(client, sent[:at])
        assert await heard.trickle(gateway, client, sent[at:], loop_clock, 0.4 * PATIENCE_S) > 10 * PATIENCE_S
        assert (await client.answer()).status == 200
        assert engine.requests[0].raw == chat_body(n=1)
        client.close()


async def test_trailers_that_trickle_are_not_waited_for(heard: Heard, loop_clock: LoopClock) -> None:
    async with one_model() as (gateway, _), raw(gateway) as client:
        await heard.all_of(
            client, b"POST /tokenize HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n"
        )
        took = await heard.trickle(gateway, client, b"x-a: " + b"b" * 5000, loop_clock, 0.7)
        (response,) = await client.to_the_end()
        assert response.status == 408
        assert took < 3 * PATIENCE_S


@pytest.mark.parametrize(
    "before", [b"", request("GET", "/health"), request()], ids=["nothing", "framework", "inference"]
)
async def test_a_connection_without_a_request_ends(before: bytes, loop_clock: LoopClock) -> None:
    patience = {"keep_alive_s": PATIENCE_S, "client_timeout_s": 3600}
    if not before:  # it has never asked: there is nothing to keep alive
        patience = {"keep_alive_s": 3600, "client_timeout_s": PATIENCE_S}
    async with one_model(**patience) as (gateway, _), raw(gateway) as client:
        await until("it is accepted", lambda: gateway.connections)
        if before:
            await client.send(before)
            assert (await client.answer()).status == 200
        await loop_clock.skip(PATIENCE_S - 4)
        assert gateway.connections
        await loop_clock.skip(4 + PATIENCE_S)
        assert len(await client.to_the_end()) == bool(before)


async def test_a_kept_connection_stays_as_long_as_it_is_used(loop_clock: LoopClock) -> None:
    async with one_model(keep_alive_s=15, client_timeout_s=2) as (gateway, _), raw(gateway) as client:
        for number in range(1, 7):
            client.write(request("GET", "/v1/models"))
            assert (await client.answer(number)).status == 200
            await loop_clock.skip(8)
        client.close()


async def test_an_answer_that_takes_long_is_no_fault_of_the_client(loop_clock: LoopClock) -> None:
    async with one_model(keep_alive_s=PATIENCE_S) as (gateway, engine), raw(gateway) as client:
        client.write(request(body=chat_body(fault="hold")))
        await until("it is inside", lambda: engine.running == 1)
        await loop_clock.skip(5 * PATIENCE_S)
        engine.release.set()
        assert (await client.answer()).status == 200


async def test_a_client_that_reads_nothing_of_a_stream_stops_the_engine_and_is_left(loop_clock: LoopClock) -> None:
    async with one_model() as (gateway, engine):
        engine.words = ["w" * 5000]
        async with raw(gateway, receive_bytes=SMALL) as client:
            client.write(request(body=chat_body(stream=True, max_tokens=20_000)))  # 100 MB
            await until("the engine has much more", lambda: unsent(engine.open_transports) > 20_000_000)
            assert unsent(each.transport for each in gateway.connections) < 1_000_000
            await until("the connection is ended", lambda: ended(gateway, loop_clock))
            await until("the engine's work is cancelled", lambda: not engine.open_transports)
            client.reset()


async def test_who_does_not_take_an_answer_is_given_no_other(heard: Heard, loop_clock: LoopClock) -> None:
    async with one_model() as (gateway, engine):
        async with raw(gateway, receive_bytes=SMALL) as client:
            client.write(request(body=chat_body(fault="huge", bytes=8_000_000)))
            await until("it is answered", lambda: any(each.flow.write_paused for each in gateway.connections))
            await until("the engine is done", lambda: engine.running == 0)
            await heard.all_of(client, request(body=chat_body(stream=True, max_tokens=20_000)) + request())
            assert unsent(each.transport for each in gateway.connections) < 8_100_000
            await until("the connection is ended", lambda: ended(gateway, loop_clock))
            client.reset()
        assert len(engine.requests) == 1


async def test_who_takes_it_in_the_end_is() -> None:
    async with one_model(client_timeout_s=60) as (gateway, engine), raw(gateway, receive_bytes=SMALL) as client:
        client.write(request(body=chat_body(fault="huge", bytes=8_000_000)))
        await until("it is answered", lambda: any(each.flow.write_paused for each in gateway.connections))
        client.write(request() + request("GET", "/v1/models"))
        assert [len((await client.answer(number)).body) > 8_000_000 - 1 for number in (1, 2, 3)] == [True, False, False]
        assert len(engine.requests) == 2
        client.close()


def unsent(transports: Iterable[asyncio.Transport]) -> int:
    """Bytes that were written and that the system has not taken."""
    return sum(transport.get_write_buffer_size() for transport in transports)


async def ended(gateway: GatewayHarness, clock: LoopClock) -> bool:
    """Let time go on: whether the gateway has no client any more."""
    await clock.skip(1)
    return not gateway.connections


async def test_a_client_that_reads_slowly_gets_all_of_a_large_answer(loop_clock: LoopClock) -> None:
    size, pauses = 6_000_000, 0
    async with one_model() as (gateway, engine), raw(gateway, receive_bytes=SMALL) as client:
        client.write(request(body=chat_body(fault="huge", bytes=size)))
        await until("the engine is done", lambda: len(engine.requests) == 1 and engine.running == 0)
        while not client.answers or not client.answers[0].whole:
            assert await client.read(), f"it was ended after {len(client.received)} bytes"
            if len(client.received) > 300_000 * (pauses + 1):
                pauses += 1
                await loop_clock.skip(0.4 * PATIENCE_S)
        assert len(client.answers[0].body) == size
        assert pauses * 0.4 > 3, "it took much longer than the gateway's patience"
        client.close()


async def test_an_answer_that_is_complete_and_not_taken_is_not_kept_for_ever(loop_clock: LoopClock) -> None:
    for more in ((), ("connection: close",)):
        async with one_model() as (gateway, engine), raw(gateway, receive_bytes=SMALL) as client:
            client.write(request(body=chat_body(fault="huge", bytes=12_000_000), headers=more))
            await until("it is answered", lambda: any(each.flow.write_paused for each in gateway.connections))
            await until("the engine is done", lambda: engine.running == 0)
            await loop_clock.skip(PATIENCE_S - 4)
            assert gateway.connections
            await until("the connection is ended", lambda: ended(gateway, loop_clock))
            client.reset()
