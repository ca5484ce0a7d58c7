"""Slots that come free, or never were: failing tries, tables that change, loads waited for; limits of a key."""

from __future__ import annotations

from controller.schema.status import ModelState
from tests.fakes.fake_controller import route
from tests.fakes.fake_holding_engine import HoldingEngine, holding
from tests.support.queueing import SLOTS, Clock, clock, engine, filled, four_slots, key, queue_at
from tests.support.wait import until

__all__ = ["clock", "engine"]

BOB = key("bob")


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


# Limits of a key


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
            assert headers["x-ratelimit-limit-requests"] == "3"
            assert headers["x-ratelimit-remaining-requests"] == str(left)
            assert headers["x-ratelimit-limit-tokens"] == "6000"
            assert int(headers["x-ratelimit-remaining-tokens"]) < 6000
            assert headers["x-ratelimit-reset-requests"] == ("1m0s", "40s", "20s")[left]
        status, headers, error = await queue.refused("q-over", "metered")
        assert (status, error["code"], headers["retry-after"]) == (429, "rate_limit_exceeded", "20")
        assert (headers["x-ratelimit-client"], headers["x-ratelimit-remaining-requests"]) == ("metered", "0")
        _, headers, _ = await queue.send("q-bob", "bob").task
        assert not [name for name in headers if name.startswith("x-ratelimit")], "bob has no limits"
        clock.now += 20
        assert (await queue.send("q-later", "metered").task)[0] == 200
        await queue.empty()
