"""Requests that each fit into an engine's context, and together do not: a real llama-server, and scripted engines."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from contract.routing import ModelRoute
from tests.fakes.fake_controller import route
from tests.fakes.fake_scripted_engine import Script, ScriptedEngine, script, scripted
from tests.fakes.gateway_harness import GatewayHarness, gateway_harness
from tests.support import installed_engines
from tests.support.campaign import RecordProperty, campaign_count, campaign_seeds, record_figure
from tests.support.llama_slots import make_endless
from tests.support.wait import until
from tests.support.worker_process import Worker

CONTEXT = 4096
SLOTS = 4
TOKEN = "replica-token"
EXHAUSTED = b'{"error":{"code":500,"message":"Context size has been exceeded.","type":"server_error"}}'
STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"x"},"finish_reason":null}]}\n\n'
ANSWER = {
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hello!"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9},
}
HI = [{"role": "user", "content": "Hi"}]


def model_at(url: str, *, kv_cache_tokens: int | None = CONTEXT, **fields: Any) -> ModelRoute:
    """`m`: an engine of four slots that share one cache."""
    made = route("m", [url], target_inflight=SLOTS, queue_limit=100, **fields)
    (endpoint,) = made.endpoints
    return made.model_copy(update={"endpoints": (endpoint.model_copy(update={"kv_cache_tokens": kv_cache_tokens}),)})


def scripted_reply(status: int, body: bytes) -> Script:
    head = f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    return script(head.encode() + body)


async def send(
    gateway: GatewayHarness, *, path: str = "/v1/chat/completions", content: str = "Hi", **fields: Any
) -> tuple[int, Any, Any]:
    """Status, headers, and the body, or a stream's error, None where it has none."""
    messages = [{"role": "user", "content": content}]
    async with gateway.post(path, model="m", messages=messages, **fields) as response:
        body = await response.read()
        if response.content_type != "text/event-stream":
            return response.status, response.headers, json.loads(body)
        events = [each.removeprefix(b"data: ") for each in body.split(b"\n\n") if each.startswith(b"data: {")]
        return response.status, response.headers, json.loads(events[-1]).get("error")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_refusal_before_the_first_byte_is_asked_again_by_the_gateway(stream: bool) -> None:
    body = json.dumps(ANSWER).encode()
    stream_answer = script(STREAM_HEAD + EVENT + b"data: [DONE]\n\n", "close")
    async with (
        scripted(scripted_reply(500, EXHAUSTED), stream_answer if stream else scripted_reply(200, body)) as engine,
        gateway_harness() as gateway,
    ):
        await gateway.publish(model_at(engine.url))
        status, _, told = await send(gateway, stream=stream)
        assert (status, None if stream else told["usage"]["completion_tokens"]) == (200, None if stream else 2)
        assert len(engine.requests) == 2
        assert 'roundhouse_gateway_retries_total{model="m"} 1.0' in await gateway.metrics()


async def test_the_second_try_of_a_stale_connection_counts_as_a_retry_too() -> None:
    body = json.dumps(ANSWER).encode()
    scripts = scripted_reply(200, body), script(b"", "close"), scripted_reply(500, EXHAUSTED), scripted_reply(200, body)
    async with scripted(*scripts) as engine, gateway_harness() as gateway:
        await gateway.publish(model_at(engine.url))
        assert [(await send(gateway))[0] for _ in range(2)] == [200, 200]
        assert len(engine.requests) == 4
        assert 'roundhouse_gateway_retries_total{model="m"} 2.0' in await gateway.metrics()


@pytest.mark.parametrize("stream", [False, True])
async def test_where_the_cache_is_not_known_a_refusal_says_to_come_again(stream: bool) -> None:
    async with scripted(scripted_reply(500, EXHAUSTED)) as engine, gateway_harness() as gateway:
        await gateway.publish(model_at(engine.url, kv_cache_tokens=None))
        reply = await gateway.chat(stream=stream)
        assert (*reply.refusal, reply.headers["retry-after"]) == (503, "kv_cache_exhausted", "5")
        assert len(engine.requests) == 1


async def test_a_request_that_had_all_of_the_cache_is_not_asked_again() -> None:
    async with scripted(*[scripted_reply(500, EXHAUSTED)] * 9) as engine, gateway_harness() as gateway:
        await gateway.publish(model_at(engine.url))
        reply = await gateway.chat()
        assert (*reply.refusal, reply.headers["retry-after"]) == (503, "kv_cache_exhausted", "5")
        assert len(engine.requests) <= 4


@pytest.mark.parametrize("cut", [0, 20, 60])
@pytest.mark.parametrize(
    ("path", "mark"), [("/v1/chat/completions", b'"code":"kv_cache_exhausted"'), ("/v1/messages", b"overloaded_error")]
)
async def test_an_error_in_the_middle_of_a_stream_has_the_code_too(path: str, mark: bytes, cut: int) -> None:
    """`cut`: the event comes in two reads."""
    begun, event = STREAM_HEAD + EVENT, b"data: " + EXHAUSTED + b"\n\n"
    failing = script(begun + event, "close", cuts=[len(begun) + cut])
    async with scripted(failing) as engine, gateway_harness() as gateway:
        await gateway.publish(model_at(engine.url, apis=("/v1/chat/completions",)))
        reply = await gateway.post(path, model="m", messages=HI, stream=True, max_tokens=9)
        assert (reply.status, mark in reply.content) == (200, True)
        assert 'broken_answers_total{code="kv_cache_exhausted",model="m"} 1.0' in await gateway.metrics()


TEXT = b"Context size has been exceeded."
SAYS_IT = b'data: {"choices":[{"index":0,"delta":{"content":"%b"},"finish_reason":"stop"}]}\n\n' % TEXT


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
async def test_the_model_may_say_what_the_error_says(path: str) -> None:
    done = script(STREAM_HEAD + EVENT + SAYS_IT + b"data: [DONE]\n\n", "close")
    async with scripted(done) as engine, gateway_harness() as gateway:
        await gateway.publish(model_at(engine.url, apis=("/v1/chat/completions",)))
        assert TEXT in (await gateway.post(path, model="m", messages=HI, stream=True, max_tokens=9)).content
        assert "broken_answers_total{" not in await gateway.metrics()


@pytest.mark.parametrize("how", ["blocking", "stream", "gathered"])
async def test_an_error_that_quotes_the_client_is_passed_on(how: str) -> None:
    error = {"code": 400, "message": "Unknown role", "value": TEXT.decode()}
    quoting = json.dumps({"error": error}).encode()
    in_stream = script(STREAM_HEAD + b"data: " + quoting + b"\n\n", "close")
    async with (
        scripted(in_stream if how == "gathered" else scripted_reply(400, quoting)) as engine,
        gateway_harness() as gateway,
    ):
        await gateway.publish(model_at(engine.url, notices_leaving=how != "gathered"))
        reply = await gateway.chat(stream=how == "stream")
        assert (reply.status, reply.error["message"]) == (400, "Unknown role")
        assert len(engine.requests) == 1


async def test_the_youngest_stream_ends_when_streams_fill_the_cache() -> None:
    endless = Script((STREAM_HEAD + EVENT,), "stall")
    async with scripted(endless, endless) as engine, gateway_harness() as gateway:
        await gateway.publish(model_at(engine.url, kv_cache_tokens=1024))
        async with gateway.chat(stream=True) as oldest, gateway.chat(stream=True) as youngest:
            await asyncio.gather(oldest.content.readuntil(b"\n\n"), youngest.content.readuntil(b"\n\n"))
            rest = asyncio.create_task(youngest.read())
            passed = await _answer_until(engine, oldest, rest)
            assert b'"code":"kv_cache_exhausted"' in await rest
            assert 300 < passed < 512, "not before they came near to filling it together"
            engine.say(EVENT * 400 + b"data: [DONE]\n\n")
            engine.close_connections()
            assert (await oldest.read()).endswith(b"data: [DONE]\n\n"), "it had room to go on"


async def test_a_gathered_answer_is_sent_again_before_a_stream_ends() -> None:
    endless = Script((STREAM_HEAD + EVENT,), "stall")
    done = script(STREAM_HEAD + EVENT + b"data: [DONE]\n\n", "close")
    async with scripted(endless, endless, done) as engine, gateway_harness(gather_after_s=0) as gateway:
        await gateway.publish(model_at(engine.url, kv_cache_tokens=1024, notices_leaving=False))
        async with gateway.chat(stream=True) as stream:
            await stream.content.readuntil(b"\n\n")
            gathered = asyncio.create_task(send(gateway))
            await until("both are inside", lambda: len(engine.requests) == 2)
            await _answer_until_asked_again(engine, stream)
            engine.say(EVENT * 300 + b"data: [DONE]\n\n")
            engine.close_connections()
            assert (await stream.read()).endswith(b"data: [DONE]\n\n")
        status, _, body = await gathered
        assert (status, body["choices"][0]["message"]["content"]) == (200, "x")
        assert len(engine.requests) == 3


async def _answer_until(engine: ScriptedEngine, oldest: Any, rest: asyncio.Task[bytes]) -> int:
    """Let all streams go on until one has ended; how many events each has had."""
    passed = 1
    while not rest.done():
        engine.say(EVENT * 16)
        passed += 16
        await oldest.content.readexactly(16 * len(EVENT))
    return passed


async def _answer_until_asked_again(engine: ScriptedEngine, stream: Any) -> None:
    peers = set(engine.peers)
    while engine.peers >= peers:
        engine.say(EVENT * 16)
        await stream.content.readexactly(16 * len(EVENT))


@dataclass
class Shared:
    """A gateway, and a llama-server of four slots that share a context of 4,096 tokens, whose model never ends."""

    gateway: GatewayHarness
    engine: Worker


@pytest.fixture
async def shared(tmp_path: Path) -> AsyncIterator[Shared]:
    installed_engines.needed("embedded")
    make_endless(tmp_path / "endless.gguf")
    with installed_engines.started("embedded", tmp_path, "m", tmp_path / "endless.gguf", token=TOKEN) as worker:
        worker.ready()
        async with gateway_harness() as gateway:
            url = f"http://127.0.0.1:{worker.port}"
            fields: dict[str, Any] = {"token": TOKEN, "served_name": "inner-m", "notices_leaving": False}
            await gateway.publish(model_at(url, context_length=CONTEXT, **fields))
            yield Shared(gateway, worker)


@pytest.mark.engines
@pytest.mark.embedded
async def test_requests_that_fit_alone_and_not_together_are_all_answered(shared: Shared) -> None:
    answers = await asyncio.gather(*(send(shared.gateway, max_tokens=1500) for _ in range(4)))
    assert [status for status, _, _ in answers] == [200] * 4
    assert [body["usage"]["completion_tokens"] for _, _, body in answers] == [1500] * 4


@pytest.mark.engines
@pytest.mark.embedded
@pytest.mark.parametrize("seed", campaign_seeds(1, 20))
async def test_clients_of_mixed_lengths_get_no_500(shared: Shared, seed: int, record_property: RecordProperty) -> None:
    dice = random.Random(seed)
    clients = campaign_count(12, 40)
    kinds = [*("long",) * (clients // 4), *("prompt",) * (clients // 6), *("middle",) * (clients // 4), "endless"]
    kinds += ["short"] * (clients - len(kinds))
    dice.shuffle(kinds)
    answers = await asyncio.gather(*(_send_kind(shared.gateway, kind, dice) for kind in kinds))
    statuses = Counter(status for status, _, _ in answers)
    errors = [told for _, _, told in answers if told and "code" in told]
    record_figure(record_property, "requests of mixed lengths to a llama-server of 4,096 tokens", clients)
    record_figure(record_property, "of them answered with 500, or broken off", statuses[500] + len(errors))
    assert statuses == {200: clients}
    assert not errors


def _send_kind(gateway: GatewayHarness, kind: str, dice: random.Random) -> Any:
    stream = dice.random() < 0.5
    if kind == "short":
        return send(gateway, max_tokens=dice.randint(1, 40), stream=stream)
    if kind == "middle":
        return send(gateway, content="word " * dice.randint(1, 60), max_tokens=dice.randint(100, 400), stream=stream)
    if kind == "long":
        return send(gateway, max_tokens=dice.randint(1000, 1800), stream=stream)
    if kind == "prompt":
        return send(gateway, content="The quick brown fox " * dice.randint(20, 150), max_tokens=100, stream=stream)
    return send(gateway)
