"""One request that asks for many answers: its bounds, its share of the engine, and its end when the client leaves."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest

from contract.admin import Capabilities
from tests.fakes.fake_client import post_at_once
from tests.fakes.fake_controller import route
from tests.fakes.fake_tool_model import Call, Move
from tests.fakes.gateway_harness import GatewayHarness, engines, gateway_harness
from tests.fakes.mock_engine import MockEngine
from tests.support.gateway_rest import nothing_left
from tests.support.installed_engines import needed, started
from tests.support.llama_slots import make_endless
from tests.support.queueing import key
from tests.support.tool_loop import BONN, SAYS, looping
from tests.support.wait import until
from tests.support.worker_process import Worker

SLOTS = 4
TOKEN = "replica-token"
EYES = Capabilities(modalities=("text", "image"))
PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
SOURCE = {"type": "base64", "media_type": "image/png", "data": "AA=="}
LOOK: dict[str, list[Any]] = {
    "/v1/chat/completions": [{"role": "user", "content": [PICTURE] * 4}],
    "/v1/messages": [{"role": "user", "content": [{"type": "image", "source": SOURCE}] * 4}],
    "/v1/responses": [{"role": "user", "content": [{"type": "input_image", "image_url": "data:image/png,A"}] * 4}],
}
MANY = ["a"] * 9

# Bounds.

TOO_MUCH: list[tuple[str, dict[str, Any], str]] = [
    ("/v1/completions", {"prompt": MANY}, "prompt"),
    ("/v1/completions", {"prompt": [[1]] * 9}, "prompt"),
    ("/v1/completions", {"prompt": "a", "n": 4}, "n"),
    ("/v1/completions", {"prompt": "a", "best_of": 4}, "best_of"),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "n": 4}, "n"),
    ("/v1/chat/completions", {"messages": LOOK["/v1/chat/completions"]}, "messages"),
    ("/v1/messages", {"messages": LOOK["/v1/messages"], "max_tokens": 9}, "messages"),
    ("/v1/responses", {"input": LOOK["/v1/responses"]}, "input"),
    ("/v1/embeddings", {"input": MANY}, "input"),
    ("/v1/rerank", {"query": "a", "documents": MANY}, "documents"),
    ("/rerank", {"query": "a", "documents": MANY}, "documents"),
    ("/v2/rerank", {"query": "a", "documents": MANY}, "documents"),
    ("/completion", {"prompt": MANY}, "prompt"),
    ("/completion", {"prompt": "a", "n_cmpl": 4}, "n_cmpl"),
    ("/embedding", {"content": MANY}, "content"),
    ("/infill", {"input_prefix": "a", "n": 4}, "n"),
]


async def test_each_array_is_bounded_and_the_refusal_names_it() -> None:
    async with gateway_harness(max_inputs=8, max_choices=3, max_images=3) as gateway, engines(1) as (engine,):
        await gateway.publish(route("m", [engine.url], capabilities=EYES))
        for path, fields, param in TOO_MUCH:
            reply = await gateway.post(path, model="m", **fields)
            assert reply.status == 400, (path, reply.error)
            assert f"`{param}` must " in reply.error["message"]
            assert any(f"at most {most}" in reply.error["message"] for most in (8, 3))
            assert any(count in reply.error["message"] for count in ("has 9", "is 4", "are 4"))
            if path == "/v1/messages":
                assert reply.error["type"] == "invalid_request_error"
            else:
                assert (reply.code, reply.error["param"]) == ("invalid_request", param)
        assert engine.client_requests == []


async def test_what_is_one_input_is_not_counted_as_many() -> None:
    async with gateway_harness(max_inputs=8, max_images=3) as gateway, engines(1) as (engine,):
        await gateway.publish(route("m", [engine.url], capabilities=EYES))
        words = [{"role": "user", "content": [{"type": "text", "text": "{}"}] * 40}]
        for path, fields in (
            ("/v1/completions", {"prompt": [1] * 9}),
            ("/v1/embeddings", {"input": [1] * 9}),
            ("/v1/completions", {"prompt": MANY[:8]}),
            ("/v1/chat/completions", {"messages": words}),
        ):
            reply = await gateway.post(path, model="m", **fields)
            assert reply.status == 200, reply.text


async def test_of_the_calls_of_one_round_no_more_are_run_than_the_setting_says() -> None:
    calls = Move(calls=[Call("weather__get", BONN)] * 3)
    async with looping(calls, SAYS, max_tool_calls=2) as loop:
        response = await loop.create()
        assert response.output_text == "It rains in Bonn."
        told = [item.error for item in response.output if item.type == "mcp_call"]
        assert told[:2] == [None, None]
        assert "at most 2 calls" in str(told[2])
        assert len(loop.servers.calls) == 2


# Pieces, on a real engine.


@dataclass
class Real:
    """A gateway in front of llama-servers of four slots: `m` generates for as long as it is asked to, `vectors`
    embeds."""

    gateway: GatewayHarness
    engines: dict[str, Worker]

    async def post(self, path: str, model: str = "m", who: str = "alice", **fields: Any) -> Any:
        return (await self.gateway.post(path, {"model": model, **fields}, key=f"secret-{who}")).success

    async def own(self, path: str, model: str = "m", **fields: Any) -> Any:
        status, body = await asyncio.to_thread(self.engines[model].request, "POST", path, {"temperature": 0, **fields})
        assert status == 200, body
        return json.loads(body)

    def figure(self, name: str, model: str = "m") -> float:
        return self.engines[model].figure(name)


MODES = {"m": (), "vectors": ("--embeddings", "--pooling", "mean")}


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Worker]]:
    needed("embedded")
    folder = tmp_path_factory.mktemp("engines")
    make_endless(folder / "endless.gguf")
    with ExitStack() as stack:
        made = {
            name: stack.enter_context(started("embedded", folder, name, folder / "endless.gguf", *flags, token=TOKEN))
            for name, flags in MODES.items()
        }
        for worker in made.values():
            worker.ready()
        yield made


@pytest.fixture
async def real(servers: dict[str, Worker]) -> AsyncIterator[Real]:
    async with gateway_harness() as gateway:
        how: Any = {"token": TOKEN, "target_inflight": SLOTS, "max_choices": SLOTS, "notices_leaving": False}
        routes = [route(name, [f"http://127.0.0.1:{each.port}"], **how) for name, each in servers.items()]
        await gateway.publish(*routes, keys=(key("alice"), key("bob")))
        yield Real(gateway, servers)


PROMPTS = ["<|assistant|>", "<|assistant|>The", "<|assistant|>The quick", "Hi"] * 3
TEXTS = [f"text number {number}" for number in range(41)]


@pytest.mark.embedded
async def test_completions_in_pieces_are_those_of_the_engine(real: Real) -> None:
    asked: dict[str, Any] = {"prompt": PROMPTS, "max_tokens": 4, "temperature": 0, "n": 2}
    made, own = await real.post("/v1/completions", **asked), await real.own("/v1/completions", **asked)
    assert sorted(made["choices"][0]) == sorted(own["choices"][0])
    assert [each["index"] for each in made["choices"]] == list(range(24))
    assert [(each["index"], each["text"]) for each in made["choices"]] == [
        (each["index"], each["text"]) for each in own["choices"]
    ]
    # The engine tells the usage of one of its answers.
    single = [await real.own("/v1/completions", **{**asked, "prompt": each}) for each in PROMPTS[:4]]
    assert made["usage"]["prompt_tokens"] == 3 * sum(each["usage"]["prompt_tokens"] for each in single)
    native = await real.post("/completion", prompt=PROMPTS, n_predict=4, temperature=0)
    assert [(each["index"], each["content"]) for each in native] == [
        (number, each["text"]) for number, each in enumerate(made["choices"][::2])
    ]


@pytest.mark.embedded
@pytest.mark.parametrize("path", ["/v1/completions", "/completion"])
async def test_a_stream_in_pieces_has_each_choice_under_its_index(real: Real, path: str) -> None:
    asked: dict[str, Any] = {"prompt": PROMPTS, "max_tokens": 4, "n_predict": 4, "temperature": 0, "stream": True}
    asked["stream_options"] = {"include_usage": True}
    stream: str = await real.post(path, **asked)
    events = [json.loads(line[6:]) for line in stream.splitlines() if line.startswith("data: {")]
    assert stream.endswith("data: [DONE]\n\n") is (path == "/v1/completions")
    assert stream.count("[DONE]") <= 1
    assert len({event.get("id") for event in events}) == 1
    texts = dict.fromkeys(range(len(PROMPTS)), "")
    for event in events:
        for choice in event.get("choices", [event]):
            texts[choice["index"]] += choice.get("text", choice.get("content"))
    whole = await real.post("/v1/completions", **{**asked, "stream": False})
    assert [*texts.values()] == [each["text"] for each in whole["choices"]]


@pytest.mark.embedded
async def test_embeddings_in_pieces_are_those_of_the_engine(real: Real) -> None:
    for path, asked in (
        ("/v1/embeddings", {"input": TEXTS}),
        ("/v1/embeddings", {"input": TEXTS, "encoding_format": "base64"}),
        ("/embedding", {"content": TEXTS}),
    ):
        made, own = await real.post(path, "vectors", **asked), await real.own(path, "vectors", **asked)
        items, own_items = (made["data"], own["data"]) if path == "/v1/embeddings" else (made, own)
        assert [each["index"] for each in items] == list(range(len(TEXTS)))
        assert items == own_items
        if path == "/v1/embeddings":
            assert made["usage"] == own["usage"]


@pytest.mark.embedded
async def test_two_thousand_prompts_stop_when_their_client_leaves(real: Real) -> None:
    fields = {"model": "m", "prompt": ["Hi"] * 2000, "max_tokens": 300, "ignore_eos": True}
    headers = {"authorization": "Bearer secret-alice"}
    async with aiohttp.ClientSession(headers=headers) as leaving:
        call = asyncio.create_task(leaving.post(real.gateway.url + "/v1/completions", json=fields).__aenter__())
        await until("the engine works", lambda: real.figure("requests_processing") == SLOTS)
        assert real.figure("requests_deferred") == 0
        call.cancel()
    answer = await real.post("/v1/completions", who="bob", prompt="Hi", max_tokens=2)
    assert answer["usage"]["completion_tokens"] == 2
    await until("the engine is idle", lambda: real.figure("requests_processing") == 0, 20)
    assert real.figure("requests_deferred") == 0
    await nothing_left(real.gateway)


@pytest.mark.embedded
async def test_another_tenant_is_served_while_a_large_request_runs(real: Real) -> None:
    large = asyncio.create_task(real.post("/v1/completions", prompt=["Hi"] * 60, max_tokens=300, ignore_eos=True))
    await until("the engine works", lambda: real.figure("requests_processing") == SLOTS)
    for _ in range(3):
        answer = await real.post("/v1/completions", who="bob", prompt="Hi", max_tokens=2)
        assert answer["usage"]["completion_tokens"] == 2
    assert not large.done()
    assert len((await large)["choices"]) == 60
    await nothing_left(real.gateway)


# Pieces that fail.


async def test_a_piece_that_fails_ends_the_request_with_its_error(gateway: GatewayHarness, engine: MockEngine) -> None:
    bad = {"fault": "error_html"}
    await gateway.publish(route("m", [engine.url], target_inflight=2))
    for stream in (False, True):
        reply = await gateway.post("/v1/completions", model="m", prompt=MANY, stream=stream, **bad)
        assert reply.refusal == (500, "engine_error")
        fields = {"prompt": MANY, "stream": stream, "fault": "error_event" if stream else "die_mid_body"}
        text = (await gateway.post("/v1/completions", model="m", **fields)).text
        assert ("out of cells" if stream else "engine_disconnected") in text
    await nothing_left(gateway)


async def test_a_full_queue_refuses_a_request_and_not_its_later_pieces(
    gateway: GatewayHarness, engine: MockEngine
) -> None:
    await gateway.publish(route("m", [engine.url], target_inflight=1, queue_limit=1))
    first = asyncio.ensure_future(gateway.post("/v1/completions", model="m", prompt="Hi", fault="hold"))
    await until("it is inside", lambda: engine.running == 1)
    second = asyncio.ensure_future(gateway.post("/v1/completions", model="m", prompt=MANY))
    await until("it waits", lambda: gateway.services.admission.depths.get("m") == 1)
    refused = await gateway.post("/v1/completions", model="m", prompt=MANY)
    assert refused.refusal == (429, "queue_full")
    assert refused.headers["x-queue-depth"] == "3"
    assert "retry-after" in refused.headers
    engine.release.set()
    assert (await first).status == 200
    completion = (await second).success
    assert len(completion["choices"]) == len(MANY)
    assert completion["usage"]["completion_tokens"] == len(MANY) * len(engine.words)
    await nothing_left(gateway)


async def test_an_engine_of_one_answer_per_request_is_asked_for_one_prompt_at_a_time(
    gateway: GatewayHarness, engine: MockEngine
) -> None:
    await gateway.publish(route("m", [engine.url], max_choices=1, served_name="inner"))
    completion = (await gateway.post("/v1/completions", model="m", prompt=["a", [1, 2]])).success
    assert [each["index"] for each in completion["choices"]] == [0, 1]
    assert [request.body["prompt"] for request in engine.client_requests] == ["a", [1, 2]]
    await gateway.post("/v1/completions", model="m", prompt=["a"])
    assert engine.client_requests[-1].body["prompt"] == ["a"]


async def test_tokens_of_all_pieces_count_for_the_key(gateway: GatewayHarness, engine: MockEngine) -> None:
    await gateway.publish(route("m", [engine.url], target_inflight=2), keys=(key("a", tokens_per_minute=10_000),))
    reply = await gateway.post("/v1/completions", {"model": "m", "prompt": MANY}, key="secret-a")
    used = reply.body["usage"]["total_tokens"]
    left = int((await gateway.get("/v1/models", key="secret-a")).headers["x-ratelimit-remaining-tokens"])
    assert used > 9 * len(engine.words)
    assert 0 <= left - (10_000 - used) < 300  # it comes back by the second


async def test_a_client_that_leaves_at_once_is_not_counted_any_more(
    gateway: GatewayHarness, engine: MockEngine
) -> None:
    await gateway.publish(route("m", [engine.url], target_inflight=2), keys=(key("a", concurrency=1),))
    limits, opener = gateway.services.limits, gateway.app.inference.open_request(b"POST", b"/v1/completions")
    call = post_at_once(opener, "/v1/completions", {"model": "m", "prompt": MANY}, "secret-a")
    assert limits.count_inflight("a") == 1
    call.lose_client()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert limits.count_inflight("a") == 0
    assert (await gateway.post("/v1/completions", {"model": "m", "prompt": MANY}, key="secret-a")).status == 200
    await nothing_left(gateway)


async def test_an_engine_that_names_a_date_to_retry_at_is_an_error_of_the_engine(
    gateway: GatewayHarness, engine: MockEngine
) -> None:
    await gateway.publish(route("m", [engine.url], target_inflight=2))
    for date in (b"Wed, 21 Oct 2065 07:28:00 GMT", b"soon", b"17", b"9" * 400):
        body = b'{"error":{"message":"busy","type":"server_error","code":503}}'
        head = b"HTTP/1.1 503 X\r\ncontent-type: application/json\r\nretry-after: %b\r\ncontent-length: %d\r\n\r\n"
        engine.answers["/v1/completions"] = head % (date, len(body)) + body
        reply = await gateway.post("/v1/completions", model="m", prompt=MANY)
        assert reply.refusal == (503, "engine_error")
    await nothing_left(gateway)


async def test_streams_without_an_event_are_answered_as_such(gateway: GatewayHarness, engine: MockEngine) -> None:
    engine.words = []
    await gateway.publish(route("m", [engine.url], target_inflight=2))
    reply = await gateway.post("/v1/completions", model="m", prompt=["a"] * 3, stream=True)
    assert (reply.status, reply.text) == (200, "data: [DONE]\n\n")
    reply = await gateway.post("/completion", model="m", prompt=["a"] * 3, stream=True)
    assert reply.refusal == (502, "engine_disconnected")
    await nothing_left(gateway)


async def test_a_piece_of_a_stream_that_is_none_is_not_left_out(gateway: GatewayHarness, engine: MockEngine) -> None:
    await gateway.publish(route("m", [engine.url], target_inflight=2))
    reply = await gateway.post("/v1/completions", model="m", prompt=["a"] * 3, stream=True, fault="no_stream")
    assert reply.refusal == (502, "engine_disconnected")
    await nothing_left(gateway)
