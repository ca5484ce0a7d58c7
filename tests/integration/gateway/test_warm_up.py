"""Warm-ups and benchmarks: requests of the gateway's own, for a caller who waits."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from controller.schema.status import ModelState
from tests.fakes.fake_controller import route
from tests.fakes.fake_holding_engine import holding
from tests.fakes.gateway_harness import GatewayHarness, engines, gateway_harness, until
from tests.support.queueing import key

CHAT = "/v1/chat/completions"


async def ask(
    here: GatewayHarness, method: str, path: str, body: Any = None, secret: str | None = None
) -> tuple[int, Any]:
    """Status and JSON of an answer."""
    headers = {} if secret is None else {"authorization": f"Bearer {secret}"}
    async with here.client.request(method, here.url + path, json=body, headers=headers) as answer:
        return answer.status, await answer.json()


async def test_a_warm_up_waits_for_one_token() -> None:
    async with gateway_harness() as here, engines(1) as (engine,):
        await here.publish(route("m", [engine.url], apis=(CHAT,), aliases=("em",)))
        for query in ("", "?model=m", "?model=em"):
            status, answer = await ask(here, "POST", f"/health/warm{query}")
            assert (status, answer.pop("ms") >= 0) == (200, True)
            assert answer == {"model": "m", "status": "warm", "engine_loaded": True}
        assert [(each.path, each.body["max_tokens"]) for each in engine.requests] == [(CHAT, 1)] * 3


@pytest.mark.parametrize("api", ["/v1/completions", "/v1/embeddings", "/v1/rerank"])
async def test_it_asks_by_an_api_that_the_model_has(api: str) -> None:
    async with gateway_harness() as here, engines(1) as (engine,):
        await here.publish(route("m", [engine.url], apis=(api,)))
        assert (await ask(here, "POST", "/health/warm"))[0] == 200
        assert [each.path for each in engine.requests] == [api]


async def test_which_model_is_warmed_up() -> None:
    async with gateway_harness(default_model="b") as here, engines(1) as (engine,):
        await here.publish(route("a", [engine.url], apis=(CHAT,)), route("b", [engine.url], apis=(CHAT,)))
        assert (await ask(here, "POST", "/health/warm"))[1]["model"] == "b"
        assert (await ask(here, "POST", "/health/warm?model=a"))[1]["model"] == "a"
        status, answer = await ask(here, "POST", "/health/warm?model=c")
        assert (status, answer["error"]["code"]) == (404, "unknown_model")
    async with gateway_harness() as here:
        await here.publish(route("a"), route("b"))
        status, answer = await ask(here, "POST", "/health/warm")
        assert (status, answer["error"]["param"]) == (400, "model")


async def test_a_model_that_does_not_answer_is_told() -> None:
    async with gateway_harness() as here, holding() as engine:
        out = route("out", state=ModelState.UNLOADED)
        await here.publish(route("m", [engine.url], apis=(CHAT,)), route("gone", ["http://127.0.0.1:9"]), out)
        status, answer = await ask(here, "POST", "/health/warm?model=out")
        assert (status, answer["status"], answer["code"]) == (503, "error", "model_not_loaded")
        status, answer = await ask(here, "POST", "/health/warm?model=gone")
        assert (status, answer["status"], answer["code"]) == (503, "error", "engine_unreachable")
        status, answer = await ask(here, "POST", "/health/warm?model=m&timeout_s=0.2")
        assert (status, answer["status"]) == (504, "timeout")
        await until(lambda: bool(engine.left), "its request has ended")


async def test_a_warm_up_is_one_request_of_a_key() -> None:
    keys = (key("a", concurrency=1, requests_per_minute=1), key("other", models=("x",)))
    async with gateway_harness() as here, engines(1) as (engine,):
        await here.publish(route("m", [engine.url], apis=(CHAT,)), keys=keys)
        assert (await ask(here, "POST", "/health/warm"))[0] == 401
        assert (await ask(here, "POST", "/health/warm", secret="secret-a"))[0] == 200
        assert (await ask(here, "POST", "/health/warm", secret="secret-a"))[0] == 429
        status, answer = await ask(here, "POST", "/health/warm?model=m", secret="secret-other")
        assert (status, answer["error"]["code"]) == (403, "model_not_allowed")


async def test_a_benchmark_is_measured_and_kept(tmp_path: Path) -> None:
    async with engines(1) as (engine,):
        async with gateway_harness(state=tmp_path) as here:
            await here.publish(route("org/m", [engine.url], apis=(CHAT,)))
            status, answer = await ask(here, "GET", "/v1/models/org/m/benchmark")
            assert (status, answer["error"]["code"]) == (404, "benchmark_not_found")
            body = {"prompts": ["Say hi.", "Count to ten."], "warmup": 1, "max_tokens": 5}
            status, result = await ask(here, "POST", "/v1/models/org/m/benchmark", body)
            assert status == 200
            assert [each.body["messages"][0]["content"] for each in engine.requests] == [
                "Say hi.",
                "Say hi.",
                "Count to ten.",
            ]
            assert list(result) == [
                *("model_id", "status", "warmup_runs", "results", "total_tokens", "total_ms", "avg_tokens_per_sec")
            ]
            assert [list(each) for each in result["results"]] == [
                ["prompt", "output_tokens", "inference_ms", "tokens_per_sec", "ttft_ms"]
            ] * 2
            assert (result["model_id"], result["total_tokens"], result["warmup_runs"]) == ("org/m", 10, 1)
            assert all(each["ttft_ms"] <= each["inference_ms"] for each in result["results"])
            assert await ask(here, "GET", "/v1/models/org/m/benchmark") == (200, result)
            status, _ = await ask(here, "POST", "/v1/models/org/m/benchmark")
            assert status == 200, "all of the request may be left out"
            wrong: dict[str, Any]
            for wrong in ({"prompts": []}, {"prompts": [""]}, {"warmup": "x"}, {"colour": 1}):
                status, answer = await ask(here, "POST", "/v1/models/org/m/benchmark", wrong)
                assert (status, answer["error"]["code"]) == (400, "invalid_request"), wrong
            _, result = await ask(here, "GET", "/v1/models/org/m/benchmark")
        async with gateway_harness(state=tmp_path) as here:
            await here.publish(
                route("org/m", state=ModelState.FAILED), route("vectors", [engine.url], apis=("/v1/embeddings",))
            )
            assert await ask(here, "GET", "/v1/models/org/m/benchmark") == (200, result), "as before the restart"
            status, answer = await ask(here, "POST", "/v1/models/org/m/benchmark")
            assert (status, answer["error"]["code"]) == (503, "model_failed")
            assert await ask(here, "GET", "/v1/models/org/m/benchmark") == (200, result)
            status, answer = await ask(here, "POST", "/v1/models/vectors/benchmark")
            assert (status, answer["error"]["code"]) == (501, "not_supported")


@pytest.mark.parametrize(
    ("state", "autoload", "code", "word"),
    [
        (ModelState.LOADED, False, 3, "available"),
        (ModelState.UNLOADED, True, 2, "downloadable"),
        (ModelState.LOADING, True, 1, "downloading"),
        (ModelState.UNLOADED, False, 0, "unavailable"),
        (ModelState.FAILED, True, 0, "unavailable"),
    ],
)
async def test_the_status_of_a_model(state: ModelState, autoload: bool, code: int, word: str) -> None:
    async with gateway_harness() as here:
        await here.publish(route("org/m", state=state, autoload=autoload, reason="It rests."))
        status, answer = await ask(here, "GET", "/v1/models/org/m/status")
        assert (status, answer["status_code"], answer["status"]) == (200, code, word)
        assert answer["available"] == (code == 3)
        assert (answer["model_id"], answer["state"]) == ("org/m", state)


async def test_the_status_of_a_failed_model_tells_no_address() -> None:
    async with gateway_harness() as here:
        error = "the engine at http://10.1.2.3:8000/health does not answer"
        await here.publish(route("m", state=ModelState.FAILED, last_error=error))
        _, answer = await ask(here, "GET", "/v1/models/m/status")
        assert answer["reason"] == "the engine at [address] does not answer"


async def test_a_model_of_that_whole_name_goes_first() -> None:
    async with gateway_harness() as here:
        await here.publish(route("m"), route("m/status"), route("x/benchmark"))
        for name in ("m/status", "x/benchmark"):
            assert (await ask(here, "GET", f"/v1/models/{name}"))[1]["id"] == name
        assert (await ask(here, "GET", "/v1/models/m"))[1]["id"] == "m"
        assert (await ask(here, "GET", "/v1/models/m/status/status"))[1]["model_id"] == "m/status"


async def test_a_client_that_leaves_ends_its_benchmark() -> None:
    async with gateway_harness() as here, holding() as engine:
        await here.publish(route("m", [engine.url], apis=(CHAT,)))
        request = asyncio.ensure_future(ask(here, "POST", "/v1/models/m/benchmark"))
        await until(lambda: bool(engine.inside), "it is asked")
        request.cancel()
        await until(lambda: bool(engine.left), "its request has ended")
