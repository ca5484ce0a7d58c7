"""Sessions on a real llama-server: the next turn goes where its cache is, and costs its own tokens alone."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from contract.routing import ModelRoute
from contract.status import ModelState
from tests.fakes.fake_controller import route
from tests.fakes.gateway_harness import GatewayHarness, gateway_harness
from tests.support.conversations import Conversation, Turn, disturb
from tests.support.installed_engines import Kind, needed, started
from tests.support.worker_process import Worker
from worker.clockwork import make_model

pytestmark = [pytest.mark.engines, pytest.mark.embedded]

SLOTS = 4
TOKEN = "replica-token"
TURNS = 10


def model_at(*engines: Worker, **fields: Any) -> ModelRoute:
    """`m`: llama-servers of four slots, whose requests name theirs."""
    urls = [f"http://127.0.0.1:{engine.port}" for engine in engines]
    told = {"session_cache": SLOTS, "session_binding": "slot", "backend": "llama_server"} | fields
    return route("m", urls, token=TOKEN, target_inflight=SLOTS).model_copy(update=told)


@contextlib.asynccontextmanager
async def llama_gateway(kind: Kind, folder: Path, count: int = 1) -> AsyncIterator[tuple[GatewayHarness, list[Worker]]]:
    needed(kind)
    make_model(folder / "m.gguf", context=16_384)
    flags = ("--cache-ram", "0")
    async with contextlib.AsyncExitStack() as stack:
        engines = [
            stack.enter_context(started(kind, folder, f"m{number}", folder / "m.gguf", *flags, token=TOKEN))
            for number in range(count)
        ]
        for engine in engines:
            engine.ready()
        yield await stack.enter_async_context(gateway_harness()), engines


def costs_of(turns: list[Turn]) -> list[int]:
    """Tokens that the engine computed of each turn's prompt."""
    return [turn.evaluated_tokens for turn in turns]


@pytest.mark.parametrize("kind", ["embedded", "binary"])
async def test_ten_turns_cost_the_new_tokens_of_each(kind: Kind, tmp_path: Path) -> None:
    async with llama_gateway(kind, tmp_path) as (gateway, (engine,)):
        await gateway.publish(model_at(engine))
        with_session = Conversation(gateway, "with", {"session_id": "s"})
        without = Conversation(gateway, "without")
        turns, plain = [], []
        for number in range(TURNS):
            turns.append(await with_session.turn())
            plain.append(await without.turn())
            await disturb(gateway, SLOTS, number)
        assert [turn.decision for turn in turns] == ["new"] + ["reused"] * (TURNS - 1)
        assert {turn.decision for turn in plain} == {None}
        for before, turn in pairwise(turns):
            assert turn.evaluated_tokens <= turn.prompt_tokens - before.prompt_tokens, turns
        assert all(turn.cached_tokens <= 8 for turn in plain), "what is alike of the templates"
        assert costs_of(turns)[-1] * 5 < costs_of(plain)[-1]
        told = await gateway.metrics()
        assert 'roundhouse_gateway_session_turns_total{decision="reused",model="m"} 9.0' in told
        assert 'roundhouse_gateway_cached_tokens_total{model="m"} ' in told
        assert "roundhouse_gateway_session_misses_total{" not in told


async def test_sessions_stay_with_their_replicas(tmp_path: Path) -> None:
    async with llama_gateway("embedded", tmp_path, 2) as (gateway, engines):
        await gateway.publish(model_at(*engines))
        talks = [Conversation(gateway, f"talk {number}", {"session_id": f"s{number}"}) for number in range(4)]
        rounds = []
        for number in range(4):
            rounds.append([await talk.turn() for talk in talks])
            await disturb(gateway, 3, number)
        assert [turn.decision for turn in rounds[0]] == ["new"] * 4
        assert {turn.decision for later in rounds[1:] for turn in later} == {"reused"}
        for before, after in pairwise(rounds):
            for earlier, turn in zip(before, after, strict=True):
                assert turn.evaluated_tokens <= turn.prompt_tokens - earlier.prompt_tokens
        assert all(engine.figure("prompt_tokens_total") > 0 for engine in engines), "both have sessions"


async def test_a_replica_killed_in_the_middle_of_a_turn(tmp_path: Path) -> None:
    async with llama_gateway("embedded", tmp_path, 2) as (gateway, engines):
        await gateway.publish(model_at(*engines))
        talk = Conversation(gateway, "talk", {"session_id": "s"})
        assert [(await talk.turn()).decision for _ in range(3)] == ["new", "reused", "reused"]
        (home,) = [engine for engine in engines if engine.figure("prompt_tokens_total") > 100]
        talk.fields |= {"stream": True, "ignore_eos": True, "max_tokens": 4_000}
        async with talk.post() as response:
            assert response.headers["x-session"] == "reused"
            assert await response.content.readany()
            home.process.kill()
            assert b"engine_disconnected" in await response.read()
        talk.fields = {"session_id": "s"}
        talk.messages.pop()
        again = await talk.turn()
        assert (again.decision, again.cached_tokens <= 8) == ("rebuilt", True)
        after = await talk.turn()
        assert after.decision == "reused"
        assert after.evaluated_tokens <= after.prompt_tokens - again.prompt_tokens


async def test_five_sessions_on_a_cache_of_four(tmp_path: Path) -> None:
    async with llama_gateway("embedded", tmp_path) as (gateway, (engine,)):
        await gateway.publish(model_at(engine))
        talks = [Conversation(gateway, f"talk {number}", {"session_id": f"s{number}"}) for number in range(5)]
        assert [(await talk.turn()).decision for talk in talks] == ["new"] * 5
        assert [(await talk.turn()).decision for talk in talks[1:]] == ["reused"] * 4
        first = await talks[0].turn()
        assert (first.decision, first.cached_tokens <= 8) == ("new", True), "the fifth took its slot"
        assert [(await talk.turn()).decision for talk in talks[2:]] == ["reused"] * 3
        assert (await talks[1].turn()).decision == "new"


async def test_what_stands_for_a_session_id(tmp_path: Path) -> None:
    async with llama_gateway("embedded", tmp_path) as (gateway, (engine,)):
        await gateway.publish(model_at(engine))
        by_field = Conversation(gateway, "field", {"prompt_cache_key": "k"})
        for talk in (by_field, Conversation(gateway, "header", headers={"X-Conversation-Id": "other::m"})):
            assert [(await talk.turn()).decision for _ in range(3)] == ["new", "reused", "reused"], talk.name


async def test_responses_that_continue_one_another_are_a_session(tmp_path: Path) -> None:
    async with llama_gateway("embedded", tmp_path) as (gateway, (engine,)):
        await gateway.publish(model_at(engine))
        told: list[tuple[str | None, int, int]] = []
        previous: dict[str, str] = {}
        for number in range(4):
            text = f"{number} " + "hello " * 20
            reply = await gateway.post("/v1/responses", model="m", input=text, **previous)
            usage = reply.success["usage"]
            cached = usage["input_tokens_details"]["cached_tokens"]
            told.append((reply.headers.get("x-session"), usage["input_tokens"], cached))
            previous = {"previous_response_id": reply.body["id"]}
            await disturb(gateway, SLOTS, number)
        assert [decision for decision, _, _ in told] == [None, "new", "reused", "reused"]
        for (_, prompt, _), (_, later, cached) in pairwise(told[1:]):
            assert later - cached <= later - prompt
        conversation = {"conversation": (await gateway.post("/v1/conversations")).body["id"]}
        replies = [
            await gateway.post("/v1/responses", model="m", input=f"say {number}", **conversation) for number in range(3)
        ]
        assert [reply.headers.get("x-session") for reply in replies] == ["new", "reused", "reused"]


async def test_a_changed_beginning_is_rebuilt_and_other_sampling_is_not(tmp_path: Path) -> None:
    async with llama_gateway("embedded", tmp_path) as (gateway, (engine,)):
        await gateway.publish(model_at(engine))
        talk = Conversation(gateway, "talk", {"session_id": "s"})
        await talk.turn()
        talk.fields |= {"top_k": 3}
        assert (await talk.turn()).decision == "reused"
        talk.messages[0]["content"] = "another beginning"
        rebuilt = await talk.turn()
        assert (rebuilt.decision, rebuilt.cached_tokens <= 20) == ("rebuilt", True)
        assert (await talk.turn()).decision == "reused"
        await gateway.publish(model_at(engine, state=ModelState.UNLOADED, endpoints=()))
        await gateway.publish(model_at(engine))
        assert (await talk.turn()).decision == "new", "an unload drops sessions"
