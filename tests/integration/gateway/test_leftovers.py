"""A request that is over is gone: nothing of it, such as its body, waits for the cyclic garbage collector.

The gateway lets that run once 50,000 objects have come together, whatever they hold.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from random import Random
from urllib.parse import urlsplit

from contract.status import ModelState
from tests.fakes.fake_controller import route
from tests.fakes.fake_scripted_engine import nobody_accepts
from tests.fakes.gateway_harness import GatewayHarness, engines, gateway_harness
from tests.support import gateway_process
from tests.support.engine_calls import on
from tests.support.hostile_clients import KINDS, Target, torment
from tests.support.memory import leftovers_of, memory_of
from tests.support.ports import free_port
from tests.support.raw_http import chat_body, raw, request, spotless
from tests.support.wait import until

PACKAGES = ("fastapi", "gateway", "starlette", "uvicorn")
CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"
TRIES = 3
BODY_BYTES = 2_000_000


def _responses_body(**fields: object) -> bytes:
    return json.dumps({"model": "m", "input": "x", **fields}).encode()


ASKED: dict[str, tuple[bytes, int]] = {
    "a method that is none of HTTP's requests": (request("CONNECT", "localhost:1"), 400),
    "headers that are too long": (request(headers=[f"x: {'a' * 40_000}"]), 431),
    "a host that is not ours": (request(headers=["host: evil.example"]), 403),
    "no JSON": (request(body=b"{"), 400),
    "an unknown model": (request(body=chat_body(model="none")), 404),
    "a model that is not loaded": (request(body=chat_body(model="cold")), 503),
    "a stream of a model that is not loaded": (request(body=chat_body(model="cold", stream=True)), 503),
    "an engine that is gone": (request(body=chat_body(model="gone")), 502),
    "an engine that speaks no HTTP": (request(body=chat_body(model="garbles", fault="garbage")), 502),
    "an engine that dies": (request(body=chat_body(model="dies", fault="die_mid_body")), 502),
    "an unknown response before": (
        request(target=RESPONSES, body=_responses_body(previous_response_id=f"resp_{'0' * 48}")),
        400,
    ),
    "an unknown item": (
        request(target=RESPONSES, body=_responses_body(input=[{"type": "item_reference", "id": f"msg_{'0' * 52}"}])),
        400,
    ),
    "an unknown response": (request("GET", f"{RESPONSES}/resp_{'0' * 48}"), 404),
    "an unknown route": (request("GET", "/nowhere"), 404),
    "a good one": (request(), 200),
    "a good one in the background": (request(target=RESPONSES, body=_responses_body(background=True)), 200),
}
"""What is asked, and the status of the answer."""


@contextlib.asynccontextmanager
async def _site() -> AsyncIterator[GatewayHarness]:
    async with (
        gateway_harness(client_timeout_s=1, keep_alive_s=1, max_body_mib=1, answer_buffer_mib=1) as gateway,
        engines(2) as (engine, narrow),
        nobody_accepts() as far,
    ):
        await gateway.publish(
            *(route(name, [engine.url], apis=(CHAT,)) for name in ("m", "garbles", "dies")),
            route("narrow", [narrow.url], apis=(CHAT,), target_inflight=1, queue_limit=4),
            route("gone", [f"http://127.0.0.1:{free_port()}"], apis=(CHAT,)),
            route("far", [far], apis=(CHAT,)),
            route("cold", state=ModelState.UNLOADED),
        )
        yield gateway


async def _status(gateway: GatewayHarness, sent: bytes) -> int:
    async with raw(gateway) as client:
        await client.send(sent)
        return (await client.answer()).status


def on_the_gateways_loop(scenario: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    """A test whose event loop is the gateway's."""

    def test() -> None:
        on("uvloop", scenario)

    return test


@on_the_gateways_loop
async def test_an_answered_request_leaves_nothing() -> None:
    async with _site() as gateway:
        found = {}
        for name, (sent, status) in ASKED.items():
            with leftovers_of(*PACKAGES) as left:
                for _ in range(TRIES):
                    assert await _status(gateway, sent) == status, name
                await spotless(gateway)
            if left:
                found[name] = dict(left)
        assert found == {}


@on_the_gateways_loop
async def test_a_client_that_leaves_while_its_engine_is_connected_to_leaves_nothing() -> None:
    async with _site() as gateway:
        server = gateway.server
        assert server is not None
        engine_client = server.gateway.inference._services.engines
        with leftovers_of(*PACKAGES) as left:
            for _ in range(TRIES):
                async with raw(gateway) as client:
                    await client.send(request(body=chat_body(model="far")))
                    await until("it is connected to", lambda: engine_client.connecting_requests)
                    client.reset()
                await until("it is not any more", lambda: not engine_client.connecting_requests)
            await spotless(gateway)
        assert not left


@on_the_gateways_loop
async def test_an_admin_request_leaves_nothing_whoever_is_gone() -> None:
    async with _site() as gateway:
        sent = request(target="/v1/admin/models/m/load", body=b"{}")
        with leftovers_of(*PACKAGES) as left:
            for _ in range(TRIES):
                async with raw(gateway) as client:
                    await client.send(sent.replace(b"content-length: 2", b"content-length: 3"))
                    client.reset()
            await spotless(gateway)
        assert not left, "its client left"
        await gateway.controller.stop()
        assert await _status(gateway, sent) == 503
        with leftovers_of(*PACKAGES, "aiohttp") as left:
            for _ in range(TRIES):
                assert await _status(gateway, sent) == 503
            await spotless(gateway)
        assert not left, "the controller is gone"


@on_the_gateways_loop
async def test_no_hostile_client_leaves_anything() -> None:
    async with _site() as gateway:
        target = Target(urlsplit(gateway.url).port or 0, "none", 1 << 20, 1.5)
        with leftovers_of(*PACKAGES) as left:
            await asyncio.gather(
                *(torment(name, target, Random(f"{name} {n}")) for name in KINDS for n in range(TRIES))
            )
            await spotless(gateway)
        assert not left


async def test_bodies_of_refused_requests_are_not_kept() -> None:
    async with gateway_process.running(ROUNDHOUSE_LOG_LEVEL="error") as (process, gateway):
        await gateway.publish(route("cold", state=ModelState.UNLOADED))
        bodies = (
            (CHAT, {"model": "cold", "messages": [{"role": "user", "content": "x" * BODY_BYTES}]}, 503),
            (RESPONSES, {"model": "cold", "input": "x" * BODY_BYTES, "previous_response_id": f"resp_{'0' * 48}"}, 400),
        )

        async def ask_all(times: int) -> float:
            for path, fields, status in bodies * times:
                assert (await gateway.post(path, **fields)).status == status
            return memory_of(process.pid)["anonymous"]

        first = await ask_all(2)
        assert await ask_all(5) < first + 20, "MiB; the bodies were 20 MB, and each is held twice while it is read"
