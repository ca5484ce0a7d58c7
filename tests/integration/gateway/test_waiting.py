"""What becomes of requests that wait while the table changes, and what an ended request leaves of its key's limits."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from controller.schema.keys import Key
from controller.schema.routing import ModelRoute
from controller.schema.status import ModelState
from gateway.exchange.dispatcher import InferenceDispatcher
from tests.fakes.fake_controller import route
from tests.fakes.fake_holding_engine import HoldingEngine
from tests.fakes.gateway_harness import engines, gateway_harness
from tests.support.loop_clock import LoopClock, loop_clock
from tests.support.queueing import Queue, engine, key, queue_at
from tests.support.wait import until

__all__ = ["engine", "loop_clock"]


def one_slot(engine: HoldingEngine, name: str = "m", aliases: tuple[str, ...] = (), **more: Any) -> ModelRoute:
    return route(name, [engine.url], target_inflight=1, aliases=aliases, **more)


async def error_of(queue: Queue, tag: str) -> dict[str, Any]:
    status, _, body = await queue.clients[tag].task
    error: dict[str, Any] = json.loads(body)["error"]
    assert status == error["status"]
    return error


async def test_a_request_keeps_its_model_when_its_alias_moves(engine: HoldingEngine) -> None:
    async with engines(1) as (other,), queue_at(engine, one_slot(engine, aliases=("fast",))) as queue:
        await queue.enter("first")
        await queue.wait("second", model="fast")
        await queue.gateway.publish(one_slot(engine), route("new", [other.url], aliases=("fast",)))
        assert await queue.next_after("first") == "second"
        assert 'roundhouse_gateway_inflight{model="m"} 1.0' in await queue.gateway.metrics()
        engine.release_all()
        assert (await queue.clients["second"].task)[0] == 200
        assert not other.requests


@pytest.mark.parametrize(
    ("after", "code"),
    [
        ((), None),
        ((key("bob"),), "invalid_api_key"),
        ((key("alice", sha256="0" * 64),), "invalid_api_key"),
        ((key("alice", expires_at=1.0),), "invalid_api_key"),
        ((key("alice", models=("other",)),), "model_not_allowed"),
        ((key("alice", scopes=("admin",)),), "scope_required"),
        ((key("alice", weight=2.0),), "served"),
    ],
)
async def test_a_waiting_request_goes_by_its_key_as_it_is_now(
    engine: HoldingEngine, after: tuple[Key, ...], code: str | None
) -> None:
    model = one_slot(engine)
    async with queue_at(engine, model, keys=(key("alice"),)) as queue:
        await queue.enter("first", "alice")
        await queue.wait("second", "alice")
        await queue.gateway.publish(model, keys=after)
        if code == "served":
            assert await queue.next_after("first") == "second"
            engine.release_all()
            assert (await queue.clients["second"].task)[0] == 200
        else:
            assert (await error_of(queue, "second"))["code"] == (code or "invalid_api_key")
            assert engine.seen == ["first"], "what runs, finishes"
            engine.release_all()
            assert (await queue.clients["first"].task)[0] == 200
        await queue.empty()


async def test_a_load_that_ends_with_every_slot_taken_is_no_longer_waited_for(
    engine: HoldingEngine, loop_clock: LoopClock
) -> None:
    loading = route("m", state=ModelState.LOADING, autoload=True, target_inflight=1)
    async with queue_at(engine, loading, autoload_timeout_s=30) as queue:
        await queue.wait("first")
        await queue.wait("second")
        await queue.gateway.publish(one_slot(engine, autoload=True))
        await until("one is inside", lambda: len(engine.inside) == 1)
        (inside,) = engine.inside
        await loop_clock.skip(40)  # the load's time is over
        other = next(tag for tag in ("first", "second") if tag != inside)
        assert await queue.next_after(inside) == other, "the wait for a slot is not the wait for a load"
        engine.release_all()
        await queue.empty()


async def test_who_waits_for_a_slot_of_a_model_that_is_unloaded_asks_for_its_load(engine: HoldingEngine) -> None:
    async with queue_at(engine, one_slot(engine, autoload=True)) as queue:
        await queue.enter("first")
        await queue.wait("second")
        await queue.gateway.publish(route("m", state=ModelState.UNLOADED, autoload=True, target_inflight=1))
        await queue.gateway.controller.report_where(lambda report: "m" in report.demand)
        engine.release("first")
        await queue.gateway.publish(one_slot(engine, autoload=True))
        await until("the second is inside", lambda: "second" in engine.inside)
        engine.release_all()


def remaining(headers: dict[str, str]) -> tuple[int, int]:
    return int(headers["x-ratelimit-remaining-requests"]), int(headers["x-ratelimit-remaining-tokens"])


LIMITED = key("alice", requests_per_minute=10, tokens_per_minute=1000)


async def test_what_no_engine_has_seen_uses_nothing_up(engine: HoldingEngine) -> None:
    models = (one_slot(engine, queue_limit=0), route("off", state=ModelState.UNLOADED))
    async with queue_at(engine, *models, keys=(LIMITED, key("bob"))) as queue:
        await queue.enter("first", "bob")
        for tag, more in (("full", {}), ("off", {"model": "off"})):
            status, _, _ = await queue.refused(tag, "alice", max_tokens=400, **more)
            assert status in (429, 503)
        engine.release_all()
        status, headers, _ = await queue.send("well", "alice", max_tokens=400).task
        assert status == 200
        left, tokens = remaining(headers)
        assert left == 9
        assert tokens > 500


async def test_a_client_that_leaves_a_stream_early_has_used_what_passed() -> None:
    secret = {"authorization": "Bearer secret-alice"}
    async with gateway_harness() as gateway, engines(1) as (fake,):
        fake.words = ["word"] * 500
        await gateway.publish(route("m", [fake.url]), keys=(LIMITED,))
        body = {"model": "m", "messages": [], "stream": True, "after": 400, "fault": "stall"}
        url = gateway.url + "/v1/chat/completions"
        async with gateway.client.post(url, json=body, headers=secret) as answer:
            for _ in range(400):
                await answer.content.readuntil(b"\n\n")
        await gateway.idle()
        async with gateway.client.post(url, json={"model": "m", "messages": []}, headers=secret) as answer:
            assert remaining({name.lower(): value for name, value in answer.headers.items()})[1] < 620


async def test_an_engine_whose_answer_cannot_be_handled_strands_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("gateway.protocols.chat.dialect.OpenAIDialect.find_usage", broken)
    async with gateway_harness() as gateway, engines(1) as (fake,):
        await gateway.publish(route("m", [fake.url], target_inflight=1))
        for _ in range(3):
            assert (await gateway.chat()).refusal == (500, "internal_error")
        await gateway.idle()


async def test_one_failure_does_not_end_everybodys_time(monkeypatch: pytest.MonkeyPatch) -> None:
    failed: list[int] = []
    due: Callable[[InferenceDispatcher, float], None] = InferenceDispatcher._tick

    def once(self: InferenceDispatcher, now: float) -> None:
        if not failed:
            failed.append(1)
            raise ZeroDivisionError
        due(self, now)

    monkeypatch.setattr(InferenceDispatcher, "_tick", once)
    async with gateway_harness(request_timeout_s=0.3) as gateway, engines(1) as (fake,):
        await gateway.publish(route("m", [fake.url]))
        await until("it failed", lambda: bool(failed))
        assert (await gateway.chat(fault="hold")).status == 408


async def test_a_gathered_answer_is_bounded() -> None:
    async with gateway_harness(answer_buffer_mib=1) as gateway, engines(1) as (fake,):
        fake.words = ["x" * 100_000]
        await gateway.publish(route("m", [fake.url]).model_copy(update={"notices_leaving": False}))
        async with gateway.chat(max_tokens=400) as answer:
            assert answer.status == 502
            assert "more than a blocking answer may hold" in (await answer.json())["error"]["message"]
        await gateway.idle()
