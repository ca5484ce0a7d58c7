"""Two models on real llama-servers, and room for one of them."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

import aiohttp
import pytest

from contract.status import ModelState
from tests.support.campaign import campaign_count, campaign_seed
from tests.support.llama_slots import make_endless
from tests.support.roundhouse_stack import SENTENCE, RoundhouseStack
from tests.support.wait import until
from worker.clockwork import make_model

pytestmark = pytest.mark.engines

ROOM = {"ROUNDHOUSE_ENGINES_MEMORY_MIB": "1000", "ROUNDHOUSE_SWAP_WAIT_S": "2"}
BIG = {"model_path": "clockwork.gguf", "llama_server_n_ctx": 8192, "llama_server_threads": 1, "memory_mib": 600}
ON_DEMAND = BIG | {"enabled": False, "autoload": True, "min_residency_s": 0.5, "queue_limit": 100}
TWO = {"one": ON_DEMAND, "two": ON_DEMAND}
TIMEOUT = aiohttp.ClientTimeout(total=120)


@pytest.fixture
def stack(process_stack: RoundhouseStack) -> RoundhouseStack:
    process_stack.settings |= ROOM
    make_model(process_stack.models / "clockwork.gguf")
    make_endless(process_stack.models / "long.gguf")
    return process_stack


def loads(stack: RoundhouseStack, *models: str) -> int:
    return sum(stack.log("controller").count(f"start {model}/0") for model in models or ("one", "two"))


async def chat(stack: RoundhouseStack, model: str, **fields: Any) -> str:
    """The answer's text, or its error's code."""
    reply = await stack.chat(model, **fields)
    return reply.code if "error" in reply.body else str(reply.body["choices"][0]["message"]["content"])


async def test_many_requests_load_each_model_once_and_mixed_ones_seldom(stack: RoundhouseStack) -> None:
    count = campaign_count(40, 400)
    dice = random.Random(campaign_seed())
    stack.declare(TWO)
    await stack.open()
    unused = [(model.state, model.replicas) for model in (await stack.status()).models]
    assert unused == [(ModelState.UNLOADED, [])] * 2
    at_once = (chat(stack, model) for model in ("one", "two") * 20)
    assert await asyncio.gather(*at_once) == [SENTENCE] * 40
    assert loads(stack) == 2
    loaded = [model for model in (await stack.status()).models if model.state is ModelState.LOADED]
    assert [(model.statement.kind, len(model.replicas)) for model in loaded] == [("autoload", 1)]
    left = iter([dice.choice(("one", "two")) for _ in range(count)])

    async def client() -> list[str]:
        return [await chat(stack, model) for model in left]

    answers = await asyncio.gather(*(client() for _ in range(8)))
    assert [text for each in answers for text in each] == [SENTENCE] * count
    # Eight clients wait for at most eight requests: each load serves at least those that wait for it, four on average.
    assert loads(stack) <= 2 + count // 4


async def test_a_busy_model_is_not_stopped_and_the_other_one_gets_its_turn(stack: RoundhouseStack) -> None:
    long = ON_DEMAND | {"model_path": "long.gguf", "target_inflight": 1, "llama_server_n_ctx": 16384}
    stack.declare({"long": long, "two": ON_DEMAND})
    await stack.open()
    async with aiohttp.ClientSession(timeout=TIMEOUT) as session:
        body = {"model": "long", "messages": [{"role": "user", "content": "Hi"}], "stream": True, "max_tokens": 12_000}
        async with session.post(f"{stack.url}/v1/chat/completions", json=body) as answer:
            assert answer.status == 200
            other = asyncio.create_task(chat(stack, "two"))
            later = asyncio.create_task(_ask_once_it_drains(stack, "long"))
            finishes, events = "", 0
            async for line in answer.content:
                if not line.startswith(b"data: {"):
                    continue
                event = json.loads(line[6:])
                finishes += event["choices"][0].get("finish_reason") or "" if event["choices"] else ""
                assert "error" not in event
                events += 1
                # A client may read behind its engine; so far behind, only one that does not read at all.
                assert events > 6_000 or not other.done(), "it was loaded while the other one was in use"
        assert finishes == "length", "all of it came, so the engine was not stopped for the other one's sake"
        assert await other == SENTENCE
        later.cancel()
    status = await stack.model("two")
    assert status is not None
    assert status.state is ModelState.LOADED


async def test_what_a_killed_gateway_was_using_makes_room_once_its_engine_says_that_it_is_idle(
    stack: RoundhouseStack,
) -> None:
    stack.declare({"long": ON_DEMAND | {"model_path": "long.gguf"}, "two": ON_DEMAND})
    await stack.open()
    async with aiohttp.ClientSession(timeout=TIMEOUT) as session:
        body = {"model": "long", "messages": [{"role": "user", "content": "Hi"}], "stream": True}
        async with session.post(f"{stack.url}/v1/chat/completions", json=body) as answer:
            await answer.content.readany()
            stack.kill("gateway")
            lost = await stack.model_where("long", lambda model: model.replicas[0].inflight is None, "nobody knows")
            assert lost.state is ModelState.LOADED
        stack.start("gateway")
        await stack.gateway_connected()
        # Far less than the ten minutes for which a lost gateway counts as one that may be back.
        assert await chat(stack, "two") == SENTENCE
    resting = await stack.model("long")
    assert resting is not None
    assert (resting.state, resting.statement.reason) == (
        ModelState.UNLOADED,
        "makes room for two; the next request loads it",
    )


async def test_what_waits_says_why_and_a_client_that_leaves_stops_no_load(stack: RoundhouseStack) -> None:
    slow = {"backend": "stub", "stub_load_s": 3.0, "stub_text": "There.", "memory_mib": 600, "autoload": True}
    stack.declare({"slow": slow | {"enabled": False}, "pinned": BIG | {"model_path": "clockwork.gguf"}})
    await stack.open("pinned")
    # What is enabled in the files and not loaded on demand goes for nobody.
    assert await chat(stack, "slow") == "model_failed"
    slow_status = await stack.model("slow")
    assert slow_status is not None
    assert slow_status.last_error == "needs 600 MiB of main memory; free: 400 of the 1000 MiB that engines may take"
    stack.declare({"slow": slow | {"enabled": False}})
    await stack.gone("pinned")
    leaving = asyncio.create_task(chat(stack, "slow"))
    staying = asyncio.create_task(chat(stack, "slow"))
    await stack.model_where("slow", lambda model: model.state is ModelState.LOADING and model.replicas != [], "starts")
    leaving.cancel()
    assert await staying == "There."
    assert loads(stack, "slow") == 1


async def test_what_nobody_uses_rests_unless_paused_and_comes_back(stack: RoundhouseStack) -> None:
    stack.declare({"one": ON_DEMAND | {"idle_ttl_s": 1.0}})
    await stack.open()
    assert await chat(stack, "one") == SENTENCE
    await stack.post("/internal/pause", {"paused": True})
    await until("it should rest", lambda: _drains(stack))
    status = await stack.model("one")
    assert status is not None
    assert status.state is ModelState.LOADED
    assert await chat(stack, "one") == SENTENCE
    await stack.post("/internal/pause", {"paused": False})
    resting = await stack.model_where("one", lambda model: model.state is ModelState.UNLOADED, "rests")
    assert resting.statement.reason == "not used for 1 s; the next request loads it"
    stack.kill("controller")
    stack.start("controller")
    await until("the controller is back", lambda: stack.log("controller").count("is connected") == 2)
    again = await stack.model("one")
    assert again is not None
    assert again.state is ModelState.UNLOADED
    assert await chat(stack, "one") == SENTENCE
    assert loads(stack, "one") == 2


async def _ask_once_it_drains(stack: RoundhouseStack, model: str) -> None:
    await until("it should drain", lambda: _drains(stack))
    await chat(stack, model, max_tokens=5)


async def _drains(stack: RoundhouseStack) -> bool:
    return any(action.kind == "drain" for action in (await stack.plan()).actions)
