"""Warm-ups and benchmarks: requests of the gateway's own, for a caller who waits."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from contract.status import ModelState
from tests.fakes.fake_controller import route
from tests.fakes.fake_holding_engine import holding
from tests.fakes.gateway_harness import GatewayHarness, engines, gateway_harness, until
from tests.fakes.mock_engine import MockEngine

CHAT = "/v1/chat/completions"


async def test_a_warm_up_waits_for_one_token(gateway: GatewayHarness, engine: MockEngine) -> None:
    await gateway.publish(route("m", [engine.url], apis=(CHAT,), aliases=("em",)))
    for query in ("", "?model=m", "?model=em"):
        reply = await gateway.request("POST", f"/health/warm{query}")
        assert (reply.status, reply.body.pop("ms") >= 0) == (200, True)
        assert reply.body == {"model": "m", "status": "warm", "engine_loaded": True}
    assert [(each.path, each.body["max_tokens"]) for each in engine.requests] == [(CHAT, 1)] * 3


@pytest.mark.parametrize("api", ["/v1/completions", "/v1/embeddings", "/v1/rerank"])
async def test_it_asks_by_an_api_that_the_model_has(gateway: GatewayHarness, engine: MockEngine, api: str) -> None:
    await gateway.publish(route("m", [engine.url], apis=(api,)))
    assert (await gateway.request("POST", "/health/warm")).status == 200
    assert [each.path for each in engine.requests] == [api]


async def test_which_model_is_warmed_up() -> None:
    async with gateway_harness(default_model="b") as gateway, engines(1) as (engine,):
        await gateway.publish(route("a", [engine.url], apis=(CHAT,)), route("b", [engine.url], apis=(CHAT,)))
        assert (await gateway.request("POST", "/health/warm")).body["model"] == "b"
        assert (await gateway.request("POST", "/health/warm?model=a")).body["model"] == "a"
        assert (await gateway.request("POST", "/health/warm?model=c")).refusal == (404, "unknown_model")
    async with gateway_harness() as gateway:
        await gateway.publish(route("a"), route("b"))
        reply = await gateway.request("POST", "/health/warm")
        assert (reply.status, reply.error["param"]) == (400, "model")


async def test_a_model_that_does_not_answer_is_told() -> None:
    async with gateway_harness() as gateway, holding() as engine:
        out = route("out", state=ModelState.UNLOADED)
        await gateway.publish(route("m", [engine.url], apis=(CHAT,)), route("gone", ["http://127.0.0.1:9"]), out)
        reply = await gateway.request("POST", "/health/warm?model=out")
        assert (reply.status, reply.body["status"], reply.body["code"]) == (503, "error", "model_not_loaded")
        reply = await gateway.request("POST", "/health/warm?model=gone")
        assert (reply.status, reply.body["status"], reply.body["code"]) == (503, "error", "engine_unreachable")
        reply = await gateway.request("POST", "/health/warm?model=m&timeout_s=0.2")
        assert (reply.status, reply.body["status"]) == (504, "timeout")
        await until(lambda: bool(engine.left), "its request has ended")


async def test_a_benchmark_is_measured_and_kept(tmp_path: Path) -> None:
    async with engines(1) as (engine,):
        async with gateway_harness(state=tmp_path) as gateway:
            await gateway.publish(route("org/m", [engine.url], apis=(CHAT,)))
            assert (await gateway.get("/v1/models/org/m/benchmark")).refusal == (404, "benchmark_not_found")
            body = {"prompts": ["Say hi.", "Count to ten."], "warmup": 1, "max_tokens": 5}
            result = await gateway.post("/v1/models/org/m/benchmark", body)
            assert result.status == 200
            prompts = [each.body["messages"][0]["content"] for each in engine.requests]
            assert prompts == ["Say hi.", "Say hi.", "Count to ten."]
            fields = "model_id status warmup_runs results total_tokens total_ms avg_tokens_per_sec"
            assert list(result.body) == fields.split()
            fields = "prompt output_tokens inference_ms tokens_per_sec ttft_ms"
            assert [list(each) for each in result.body["results"]] == [fields.split()] * 2
            told = [result.body[name] for name in ("model_id", "total_tokens", "warmup_runs")]
            assert told == ["org/m", 10, 1]
            assert all(each["ttft_ms"] <= each["inference_ms"] for each in result.body["results"])
            assert (await gateway.get("/v1/models/org/m/benchmark")).result == (200, result.body)
            assert (await gateway.request("POST", "/v1/models/org/m/benchmark")).status == 200, "a body is not needed"
            wrongs: tuple[Any, ...] = ({"prompts": []}, {"prompts": [""]}, {"warmup": "x"}, {"colour": 1})
            for wrong in wrongs:
                reply = await gateway.post("/v1/models/org/m/benchmark", wrong)
                assert reply.refusal == (400, "invalid_request"), wrong
            result = (await gateway.get("/v1/models/org/m/benchmark")).body
        async with gateway_harness(state=tmp_path) as gateway:
            await gateway.publish(
                route("org/m", state=ModelState.FAILED), route("vectors", [engine.url], apis=("/v1/embeddings",))
            )
            assert (await gateway.get("/v1/models/org/m/benchmark")).result == (200, result), "as before the restart"
            assert (await gateway.request("POST", "/v1/models/org/m/benchmark")).refusal == (503, "model_failed")
            assert (await gateway.get("/v1/models/org/m/benchmark")).result == (200, result)
            assert (await gateway.request("POST", "/v1/models/vectors/benchmark")).refusal == (501, "not_supported")


async def test_the_status_of_a_model(gateway: GatewayHarness) -> None:
    for state, autoload, code, word in (
        (ModelState.LOADED, False, 3, "available"),
        (ModelState.UNLOADED, True, 2, "downloadable"),
        (ModelState.LOADING, True, 1, "downloading"),
        (ModelState.UNLOADED, False, 0, "unavailable"),
        (ModelState.FAILED, True, 0, "unavailable"),
    ):
        await gateway.publish(route("org/m", state=state, autoload=autoload, reason="It rests."))
        status = (await gateway.get("/v1/models/org/m/status")).success
        assert (status["status_code"], status["status"], status["available"]) == (code, word, code == 3), state
        assert (status["model_id"], status["state"]) == ("org/m", state)


async def test_a_model_of_that_whole_name_goes_first(gateway: GatewayHarness) -> None:
    await gateway.publish(route("m"), route("m/status"), route("x/benchmark"))
    for name in ("m/status", "x/benchmark"):
        assert (await gateway.get(f"/v1/models/{name}")).body["id"] == name
    assert (await gateway.get("/v1/models/m")).body["id"] == "m"
    assert (await gateway.get("/v1/models/m/status/status")).body["model_id"] == "m/status"


async def test_a_client_that_leaves_ends_its_benchmark() -> None:
    async with gateway_harness() as gateway, holding() as engine:
        await gateway.publish(route("m", [engine.url], apis=(CHAT,)))
        request = asyncio.ensure_future(gateway.request("POST", "/v1/models/m/benchmark"))
        await until(lambda: bool(engine.inside), "it is asked")
        request.cancel()
        await until(lambda: bool(engine.left), "its request has ended")
