"""Sessions on a real llama-server: the next turn goes where its cache is, and costs its own tokens alone."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from controller.schema.routing import ModelRoute
from tests.fakes.fake_controller import route
from tests.fakes.gateway_harness import GatewayHarness, gateway_harness
from tests.support.conversations import Conversation, Turn, disturb
from tests.support.llama_servers import Kind, needed, started
from tests.support.worker_process import Worker
from worker.clockwork import make_model

pytestmark = [pytest.mark.engines]

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
    """A gateway, and so many real llama-servers."""
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


@pytest.mark.embedded
@pytest.mark.parametrize("kind", ["embedded", "binary"])
async def test_ten_turns_cost_the_new_tokens_of_each(kind: Kind, tmp_path: Path) -> None:
    async with llama_gateway(kind, tmp_path) as (here, (engine,)):
        await here.publish(model_at(engine))
        with_session = Conversation(here, "with", {"session_id": "s"})
        without = Conversation(here, "without")
        turns, plain = [], []
        for number in range(TURNS):
            turns.append(await with_session.turn())
            plain.append(await without.turn())
            await disturb(here, SLOTS, number)
        assert [turn.decision for turn in turns] == ["new"] + ["reused"] * (TURNS - 1)
        assert {turn.decision for turn in plain} == {None}
        for before, turn in pairwise(turns):
            assert turn.evaluated_tokens <= turn.prompt_tokens - before.prompt_tokens, turns
        assert all(turn.cached_tokens <= 8 for turn in plain), "what is alike of the templates"
        assert costs_of(turns)[-1] * 5 < costs_of(plain)[-1]
        told = await here.metrics()
        assert 'roundhouse_gateway_session_turns_total{decision="reused",model="m"} 9.0' in told
        assert 'roundhouse_gateway_cached_tokens_total{model="m"} ' in told
        assert "roundhouse_gateway_session_misses_total{" not in told
