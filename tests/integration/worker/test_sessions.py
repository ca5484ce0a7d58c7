"""Sessions in real workers behind the gateway: LiteRT-LM with a conversation of the library for each, and
llama-cpp-python with kept states of its one context."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any

import pytest

from controller.engines import ENGINES
from tests.fakes.fake_controller import route
from tests.fakes.gateway_harness import GatewayHarness, gateway_harness
from tests.support.conversations import Conversation, disturb
from tests.support.worker_engines import ENGINES as OFFERS
from tests.support.worker_engines import TOKEN, Fleet
from worker.clockwork import CHAT_TEMPLATE

pytestmark = pytest.mark.engines

TURNS = 10
BACKENDS = ("litert_lm", "llama_cpp")
ALIKE = 8
"""Tokens with which all conversations begin, at most."""


@contextlib.asynccontextmanager
async def session_gateway(fleet: Fleet, backend: str) -> AsyncIterator[GatewayHarness]:
    """A gateway whose model `m` is a worker of this backend, for four sessions, routed as the controller does."""
    engine = ENGINES[backend]
    definition = engine.definition.model_validate({"backend": backend, "model_path": "m", "session_cache": 4})
    if backend == "litert_lm":
        worker = fleet.plain(OFFERS["litert_lm"])
    else:
        worker = fleet.says(backend, (), CHAT_TEMPLATE, "--n-ctx", "4096", "--session-cache", "4", context=4096)
    model = route("m", [f"http://127.0.0.1:{worker.port}"], token=TOKEN, target_inflight=1).model_copy(
        update={
            "session_cache": engine.session_cache(definition),
            "session_binding": engine.session_binding(definition),
        }
    )
    async with gateway_harness() as gateway:
        await gateway.publish(model)
        yield gateway


@pytest.mark.parametrize("backend", BACKENDS)
async def test_ten_turns_cost_the_new_tokens_of_each(fleet: Fleet, backend: str) -> None:
    async with session_gateway(fleet, backend) as gateway:
        with_session = Conversation(gateway, "with", {"session_id": "ten"}, words=2)
        without = Conversation(gateway, "without", words=2)
        turns, plain = [], []
        for number in range(TURNS):
            turns.append(await with_session.turn())
            plain.append(await without.turn())
            await disturb(gateway, 1, number)
        assert [turn.decision for turn in turns] == ["new"] + ["reused"] * (TURNS - 1)
        for before, turn in pairwise(turns):
            assert 0 < turn.evaluated_tokens <= turn.prompt_tokens - before.prompt_tokens, turns
        assert all(turn.cached_tokens <= ALIKE for turn in plain)
        metrics = await gateway.metrics()
        assert "roundhouse_gateway_session_misses_total{" not in metrics


@pytest.mark.parametrize("backend", BACKENDS)
async def test_five_sessions_on_a_cache_of_four(fleet: Fleet, backend: str) -> None:
    async with session_gateway(fleet, backend) as gateway:
        talks = [
            Conversation(gateway, f"talk {number}", {"session_id": f"five {number}"}, words=2) for number in range(5)
        ]
        assert [(await talk.turn()).decision for talk in talks] == ["new"] * 5
        later = [await talk.turn() for talk in talks[1:]]
        assert [turn.decision for turn in later] == ["reused"] * 4
        assert all(turn.cached_tokens > ALIKE for turn in later)
        first = await talks[0].turn()
        assert (first.decision, first.cached_tokens <= ALIKE) == ("new", True)


async def test_other_sampling_and_another_beginning_are_rebuilt(fleet: Fleet) -> None:
    async with session_gateway(fleet, "litert_lm") as gateway:
        talk = Conversation(gateway, "talk", {"session_id": "rules"}, words=2)
        changes: list[tuple[dict[str, Any], str | None]] = [
            ({}, "new"),
            ({"max_tokens": 50}, "reused"),
            ({"top_k": 3}, "rebuilt"),
            ({"top_k": 3}, "reused"),
            ({"temperature": 0.1}, "rebuilt"),
            ({"session_id": ""}, None),
        ]
        for change, decision in changes:
            talk.fields |= change
            turn = await talk.turn()
            assert (turn.decision, turn.cached_tokens > 0) == (decision, decision == "reused")
        talk.fields["session_id"] = "rules"
        talk.messages[0]["content"] = "another beginning"
        turn = await talk.turn()
        assert (turn.decision, turn.cached_tokens) == ("rebuilt", 0)


async def test_other_sampling_is_nothing_to_llama_cpp(fleet: Fleet) -> None:
    async with session_gateway(fleet, "llama_cpp") as gateway:
        talk = Conversation(gateway, "talk", {"session_id": "rules"}, words=2)
        await talk.turn()
        await disturb(gateway, 1)
        talk.fields |= {"top_k": 3}
        turn = await talk.turn()
        assert (turn.decision, turn.cached_tokens > ALIKE) == ("reused", True)
