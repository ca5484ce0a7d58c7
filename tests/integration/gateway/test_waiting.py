"""What becomes of requests that wait, while tables change, tries fail and models load; and what a key has left."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from contract.keys import Key
from contract.routing import ModelRoute
from contract.status import ModelState
from gateway.exchange.dispatcher import InferenceDispatcher
from tests.fakes.fake_controller import route
from tests.fakes.fake_holding_engine import HoldingEngine, holding
from tests.fakes.gateway_harness import engines, gateway_harness
from tests.support.loop_clock import LoopClock, loop_clock
from tests.support.queueing import SLOTS, Clock, clock, engine, filled, four_slots, key, queue_at
from tests.support.wait import until

__all__ = ["clock", "engine", "loop_clock"]
BOB = key("bob")


def one_slot(engine: HoldingEngine, name: str = "m", aliases: tuple[str, ...] = (), **more: Any) -> ModelRoute:
    return route(name, [engine.url], target_inflight=1, aliases=aliases, **more)


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
        ((), "invalid_api_key"),
        ((key("bob"),), "invalid_api_key"),
        ((key("alice", sha256="0" * 64),), "invalid_api_key"),
        ((key("alice", expires_at=1.0),), "invalid_api_key"),
        ((key("alice", models=("other",)),), "model_not_allowed"),
        ((key("alice", scopes=("admin",)),), "scope_required"),
        ((key("alice", weight=2.0),), "served"),
    ],
)
async def test_a_waiting_request_goes_by_its_key_as_it_is_now(
    engine: HoldingEngine, after: tuple[Key, ...], code: str
) -> None:
    model = one_slot(engine)
    async with queue_at(engine, model, keys=(key("alice"),)) as queue:
        await queue.enter("first", "alice")
        await queue.wait("second", "alice")
        await queue.gateway.publish(model, keys=after)
        if code == "served":
            assert await queue.next_after("first") == "second"
        else:
            status, _, body = await queue.clients["second"].task
            error = json.loads(body)["error"]
            assert (error["status"], error["code"]) == (status, code)
            assert engine.seen == ["first"], "what runs, finishes"
        engine.release_all()
        assert (await queue.clients["second" if code == "served" else "first"].task)[0] == 200
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


def remaining(headers: Mapping[str, str]) -> tuple[int, int]:
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
        assert (left, tokens > 500) == (9, True)


async def test_a_client_that_leaves_a_stream_early_has_used_what_passed() -> None:
    async with gateway_harness() as gateway, engines(1) as (fake,):
        fake.words = ["word"] * 500
        await gateway.publish(route("m", [fake.url]), keys=(LIMITED,))
        async with gateway.chat(stream=True, after=400, fault="stall", key="secret-alice") as response:
            for _ in range(400):
                await response.content.readuntil(b"\n\n")
        await gateway.idle()
        assert remaining((await gateway.chat(key="secret-alice")).headers)[1] < 620


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
        reply = await gateway.chat(max_tokens=400)
        assert (reply.status, "more than a blocking answer may hold" in reply.error["message"]) == (502, True)
        await gateway.idle()


async def test_failing_tries_leak_no_slot(engine: HoldingEngine) -> None:
    async with queue_at(engine) as queue:
        await queue.gateway.publish(route("m", ["http://127.0.0.1:9"], target_inflight=1))
        for number in range(12):
            status, headers, error = await queue.refused(f"vain-{number}", stream=bool(number % 2))
            assert (status, error["code"]) == (502, "engine_unreachable")
            assert int(headers["retry-after"]) >= 1
        await queue.empty()
        moved = route("m", [engine.url], target_inflight=1).endpoints[0].model_copy(update={"replica": "m-7"})
        await queue.gateway.publish(route("m", target_inflight=1).model_copy(update={"endpoints": (moved,)}))
        await queue.enter("well")
        engine.release_all()
        await queue.empty()


async def test_a_client_that_asks_again_and_again_has_one_slot_at_a_time(engine: HoldingEngine) -> None:
    engine.release_all()
    async with queue_at(engine, one_slot(engine, queue_limit=0)) as queue:
        for number in range(50):
            assert (await queue.gateway.chat(tag=f"t{number}", stream=bool(number % 2))).status == 200
        assert engine.most == 1
        await queue.empty()


async def test_a_replica_that_a_table_adds_takes_those_who_wait(engine: HoldingEngine) -> None:
    async with holding() as second, queue_at(engine, four_slots(engine)) as queue:
        await filled(queue)
        for number in range(6):
            await queue.wait(f"w{number}")
        await queue.gateway.publish(route("m", [engine.url, second.url], target_inflight=SLOTS, queue_limit=8))
        await until("the second replica is full", lambda: len(second.inside) == SLOTS)
        assert sorted(second.seen) == ["w0", "w1", "w2", "w3"], "they come by connections of their own, in any order"
        assert await queue.depth() == 2
        second.release_all()
        engine.release_all()
        await queue.empty()
        assert (engine.most, second.most) == (SLOTS, SLOTS)


async def test_a_table_that_lowers_the_slots_waits_until_they_are_free(engine: HoldingEngine) -> None:
    async with queue_at(engine, four_slots(engine)) as queue:
        await filled(queue)
        await queue.wait("next")
        await queue.gateway.publish(route("m", [engine.url], target_inflight=2))
        for number in range(2):
            engine.release(f"first-{number}")
            await queue.clients[f"first-{number}"].task
        assert await queue.depth() == 1
        assert await queue.next_after("first-2") == "next"
        engine.release_all()
        await queue.empty()


async def test_who_waits_for_a_load_goes_in_by_slots(engine: HoldingEngine, clock: Clock) -> None:
    lazy = route("m", state=ModelState.UNLOADED, autoload=True, target_inflight=SLOTS, queue_limit=8)
    async with queue_at(engine, lazy) as queue:
        for number in range(8):
            await queue.wait(f"w{number}")
        assert (await queue.refused("one-more"))[2]["code"] == "queue_full"
        loaded = route("m", [engine.url], autoload=True, target_inflight=SLOTS, queue_limit=8)
        await queue.gateway.publish(loaded)
        await until("every slot is taken", lambda: len(engine.inside) == SLOTS)
        assert await queue.depth() == SLOTS
        served = [tag for tag, _ in await queue.serve_all(clock, lambda _: 1.0)]
        assert sorted(served[:SLOTS]) + served[SLOTS:] == [f"w{number}" for number in range(8)]
        assert engine.most == SLOTS
        places = [await queue.clients[f"w{number}"].place() for number in range(8)]
        assert [place[:2] for place in places] == [(number + 2, number + 2) for number in range(8)]
        await queue.empty()


async def test_a_keys_concurrency_counts_those_who_wait(engine: HoldingEngine) -> None:
    keys = (key("two", concurrency=2), BOB)
    async with queue_at(engine, route("m", [engine.url], target_inflight=1), keys=keys) as queue:
        await queue.enter("inside", "two")
        waiting = await queue.wait("waiting", "two", stream=True)
        status, headers, error = await queue.refused("third", "two")
        assert (status, error["code"]) == (429, "rate_limit_exceeded")
        assert (headers["x-ratelimit-client"], headers["x-client-id"]) == ("two", "two")
        assert int(headers["retry-after"]) >= 1
        await queue.wait("bobs", "bob")
        await waiting.leave()
        await queue.depth_is(1)
        await queue.wait("second-again", "two")
        engine.release_all()
        await queue.empty()
        assert "third" not in engine.seen


async def test_what_a_key_has_left_is_on_every_answer(engine: HoldingEngine, clock: Clock) -> None:
    engine.release_all()
    keys = (key("metered", requests_per_minute=3, tokens_per_minute=6000), BOB)
    async with queue_at(engine, four_slots(engine), keys=keys) as queue:
        for left, fields in ((2, {}), (1, {"stream": True}), (0, {"fail": 500})):
            _, headers, _ = await queue.send(f"q{left}", "metered", **fields).task
            names = ("limit-requests", "limit-tokens", "remaining-requests", "reset-requests")
            told = [headers[f"x-ratelimit-{name}"] for name in names]
            assert told == ["3", "6000", str(left), ("1m0s", "40s", "20s")[left]]
            assert int(headers["x-ratelimit-remaining-tokens"]) < 6000
        status, headers, error = await queue.refused("q-over", "metered")
        assert (status, error["code"], headers["retry-after"]) == (429, "rate_limit_exceeded", "20")
        assert (headers["x-ratelimit-client"], headers["x-ratelimit-remaining-requests"]) == ("metered", "0")
        _, headers, _ = await queue.send("q-bob", "bob").task
        assert not [name for name in headers if name.startswith("x-ratelimit")], "bob has no limits"
        clock.now += 20
        assert (await queue.send("q-later", "metered").task)[0] == 200
        await queue.empty()
