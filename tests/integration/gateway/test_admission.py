"""Admission through a whole gateway: slots, order, what the headers promise, the bound, and places that come free."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest

from tests.fakes.fake_controller import route
from tests.fakes.fake_holding_engine import HoldingEngine
from tests.support.campaign import campaign_count, campaign_seed, campaign_seeds
from tests.support.queueing import SLOTS, Clock, clock, engine, filled, four_slots, key, queue_at
from tests.support.wait import until

__all__ = ["clock", "engine"]

ALICE, BOB = key("alice"), key("bob")
TIERS = ("priority", "default", "flex")


# What the headers promise


async def test_positions_depths_and_waits_are_those_of_the_definition(engine: HoldingEngine, clock: Clock) -> None:
    async with queue_at(engine, four_slots(engine)) as queue:
        first = await queue.enter("the-one-that-is-measured")
        clock.now += 2
        await queue.next_after("the-one-that-is-measured")
        assert await first.place() == (1, 1, 0)
        await filled(queue)
        waiting = [await queue.wait(f"w{number}") for number in range(8)]
        served = [tag for tag, _ in await queue.serve_all(clock, lambda _: 2.0)]
        assert served[SLOTS:] == [client.tag for client in waiting], "first come, first served"
        # Whoever is served counts as the line's first place; four slots of two seconds are two places a second.
        assert [await client.place() for client in waiting] == [(2 + n, 2 + n, (1 + n) * 500) for n in range(8)]
        await queue.empty()


async def test_the_estimate_follows_what_requests_took(engine: HoldingEngine, clock: Clock) -> None:
    async with queue_at(engine, four_slots(engine)) as queue:
        await filled(queue)
        unknown = await queue.wait("nothing-is-known-yet")
        clock.now += 3
        await queue.next_after("first-0")
        known = await queue.wait("one-took-three-seconds")
        clock.now += 2
        await queue.next_after("first-1")
        better = await queue.wait("another-took-five")
        engine.release_all()
        assert (await unknown.place(), await known.place(), await better.place()) == (
            (2, 2, None),
            (2, 2, round(3000 / SLOTS)),
            (2, 2, round(4000 / SLOTS)),
        )


@pytest.mark.parametrize("stream", [False, True])
async def test_what_an_engine_refuses_says_nothing_of_how_long_an_answer_takes(
    engine: HoldingEngine, clock: Clock, stream: bool
) -> None:
    async with queue_at(engine, four_slots(engine)) as queue:
        await queue.enter("measured")
        clock.now += 2
        await queue.next_after("measured")
        await queue.enter("refused", fail=400, stream=stream)
        clock.now += 45
        await queue.next_after("refused")
        await filled(queue)
        waiting = await queue.wait("waits")
        engine.release_all()
        assert await waiting.place() == (2, 2, round(2000 / SLOTS))


@pytest.mark.parametrize("seed", campaign_seeds(2, 60))
async def test_a_position_is_the_turn_that_the_request_gets(engine: HoldingEngine, clock: Clock, seed: int) -> None:
    # It says when its turn comes if nobody else does: so it is the last one's that must come true.
    dice = random.Random(seed)
    keys = (key("a", service_tiers=TIERS), key("b", weight=3.0, service_tiers=TIERS), key("c"), ALICE)
    async with queue_at(engine, four_slots(engine, queue_limit=20), keys=keys) as queue:
        await queue.enter("measured", "alice")
        clock.now += 1
        await queue.next_after("measured")
        await filled(queue, "alice")
        last = None
        for number in range(dice.randint(2, 12)):
            tier = dice.choice(TIERS)
            last = await queue.wait(f"w{number}", dice.choice("abc"), service_tier=tier, stream=dice.random() < 0.5)
        assert last is not None
        served = [tag for tag, _ in await queue.serve_all(clock, lambda _: 1.0)][SLOTS:]
        position, depth, wait_ms = await last.place()
        assert served.index(last.tag) + 2 == position
        assert (depth, wait_ms) == (len(served) + 1, (position - 1) * 250)


async def test_who_waits_is_told_before_its_turn_comes(engine: HoldingEngine) -> None:
    async with queue_at(engine, four_slots(engine), hold_headers_s=0.05, heartbeat_s=0.05) as queue:
        await filled(queue)
        await queue.wait("blocking")
        streaming = queue.gateway.chat(stream=True, tag="streaming")
        async with streaming as answer:
            assert answer.status == 200
            assert (answer.headers["x-queue-position"], answer.headers["x-queue-depth"]) == ("3", "3")
            assert await answer.content.readuntil(b"\n\n") == b": ka\n\n"
            assert "streaming" not in engine.seen, "it waits still"
            engine.release_all()
            assert (await answer.read()).endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize("stream", [False, True])
async def test_errors_have_them_too(engine: HoldingEngine, stream: bool) -> None:
    async with queue_at(engine, four_slots(engine)) as queue:
        await filled(queue)
        failing = await queue.wait("fails", stream=stream, fail=503)
        engine.release_all()
        status, headers, _ = await failing.task
        assert (status, headers["x-queue-position"], headers["x-queue-depth"]) == (503, "2", "2")
        assert {"x-request-id", "x-client-id"} <= set(headers)


# The bound


async def test_beyond_the_bound_429_tells_when_to_come_back(engine: HoldingEngine, clock: Clock) -> None:
    async with queue_at(engine, four_slots(engine)) as queue:
        await queue.enter("measured")
        clock.now += 8
        await queue.next_after("measured")
        await filled(queue)
        for number in range(8):
            await queue.wait(f"w{number}")
        for stream in (False, True):
            status, headers, error = await queue.refused("one-more", stream=stream)
            assert (status, error["code"], error["status"]) == (429, "queue_full", 429)
            assert headers["retry-after"] == "18", "nine places, half of one a second"
            place = headers["x-queue-position"], headers["x-queue-depth"], headers["x-estimated-wait-ms"]
            assert place == ("10", "10", "18000"), "what it would have had"
            assert "8 requests wait" in error["message"]
            assert error["next_steps"]
            assert error["request_id"] == headers["x-request-id"]
        assert "one-more" not in engine.seen
        await queue.serve_all(clock, lambda _: 0.1)
        await queue.enter("later")
        engine.release_all()
        await queue.empty()


async def test_where_nothing_is_set_eight_wait_for_each_slot(engine: HoldingEngine) -> None:
    workers = 9 * SLOTS
    async with queue_at(engine, route("m", [engine.url], target_inflight=SLOTS)) as queue:
        clients = [queue.send(f"worker-{number}") for number in range(workers)]
        await queue.depth_is(workers - SLOTS)
        status, headers, error = await queue.refused("one-more")
        assert (status, error["code"], headers["x-queue-depth"]) == (429, "queue_full", str(workers - SLOTS + 2))
        assert f"{workers - SLOTS} requests wait" in error["message"]
        engine.release_all()
        assert [(await client.task)[0] for client in clients] == [200] * workers
        await queue.empty()


async def test_a_queued_client_that_leaves_frees_its_place_at_once(engine: HoldingEngine) -> None:
    async with queue_at(engine, four_slots(engine, queue_limit=3)) as queue:
        await filled(queue)
        first, second, third = [await queue.wait(tag) for tag in ("first", "second", "third")]
        assert (await queue.refused("refused"))[0] == 429
        await second.leave()
        await queue.depth_is(2)
        fourth = await queue.wait("fourth", stream=True)
        assert await queue.next_after("first-0") == "first"
        assert await queue.next_after("first-1") == "third"
        assert await queue.next_after("first-2") == "fourth"
        engine.release_all()
        assert [await client.place() for client in (first, third, fourth)][2][:2] == (4, 4)
        assert "second" not in engine.seen
        await queue.empty()


async def test_a_client_that_leaves_its_slot_gives_it_to_the_next(engine: HoldingEngine) -> None:
    async with queue_at(engine, four_slots(engine)) as queue:
        await filled(queue)
        await queue.wait("next")
        await queue.clients["first-2"].leave()
        await until("the next is inside", lambda: "next" in engine.inside)
        assert engine.left == ["first-2"]
        assert engine.most <= SLOTS
        engine.release_all()
        await queue.empty()


async def test_without_a_queue_a_full_model_refuses(engine: HoldingEngine) -> None:
    async with queue_at(engine, four_slots(engine, queue_limit=0)) as queue:
        await filled(queue)
        status, headers, error = await queue.refused("one-more")
        assert (status, error["code"], headers["retry-after"]) == (429, "queue_full", "5")
        await queue.next_after("first-0")
        await queue.enter("now")


# Several answers to one request


async def test_a_request_for_several_answers_takes_as_many_slots(engine: HoldingEngine) -> None:
    async with queue_at(engine, four_slots(engine)) as queue:
        await queue.enter("three", n=3)
        await queue.enter("one")
        await queue.wait("two", n=2)
        await queue.wait("another")
        assert await queue.next_after("three") in ("two", "another")
        engine.release_all()
        await queue.empty()
        assert sorted(engine.seen) == ["another", "one", "three", "two"]


async def test_more_answers_than_an_engine_makes_are_refused_before_it_is_asked(engine: HoldingEngine) -> None:
    model = four_slots(engine).model_copy(update={"max_choices": SLOTS})
    async with queue_at(engine, model) as queue:
        status, _, error = await queue.refused("five", n=5)
        assert (status, error["code"], error["param"]) == (400, "invalid_request", "n")
        assert "at most 4" in error["message"]
        assert engine.seen == []
        await queue.enter("four", n=4)
        engine.release_all()
        await queue.empty()


# Two hundred clients


async def test_two_hundred_clients_of_two_tenants_get_equal_service(engine: HoldingEngine, clock: Clock) -> None:
    # Alice's requests take three times as long, so she gets a third as many.
    takes = {"alice": 3.0, "bob": 1.0}
    tags = [f"{'alice' if number % 5 < 2 else 'bob'}-{number}" for number in range(200)]
    async with queue_at(engine, four_slots(engine, queue_limit=200), keys=(ALICE, BOB)) as queue:
        for number, tag in enumerate(tags):
            queue.send(tag, tag.partition("-")[0], stream=bool(number % 2))
        await queue.depth_is(200 - SLOTS)
        begun = await queue.serve_all(clock, lambda tag: takes[tag.partition("-")[0]])
        assert engine.most == SLOTS, "never more inside, and never fewer while somebody waits"
        assert sorted(tag for tag, _ in begun) == sorted(tags)
        assert {(await client.task)[0] for client in queue.clients.values()} == {200}
        start = begun[0][1]
        bobs_end = max(since + takes["bob"] for tag, since in begun if tag.startswith("bob"))
        half = (bobs_end - start) / 2
        service = {"alice": 0.0, "bob": 0.0}
        for tag, since in begun:
            who = tag.partition("-")[0]
            service[who] += max(0.0, min(takes[who], start + half - since))
        print(f"slot-seconds at half time: {service}")
        assert service["alice"] == pytest.approx(service["bob"], rel=0.1)
        await queue.empty()


async def test_a_tenant_of_three_times_the_weight_gets_three_times_the_service(
    engine: HoldingEngine, clock: Clock
) -> None:
    keys = (key("heavy", weight=3.0), key("light"))
    async with queue_at(engine, four_slots(engine, queue_limit=100), keys=keys) as queue:
        for number in range(100):
            who = ("light", "heavy")[number % 2]
            if number < SLOTS:  # two of each: else who comes first decides how long the other one catches up
                await queue.enter(f"{who}-{number}", who)
            else:
                queue.send(f"{who}-{number}", who)
        await queue.depth_is(100 - SLOTS)
        served = [tag.partition("-")[0] for tag, _ in await queue.serve_all(clock, lambda _: 1.0)]
        assert Counter(served[SLOTS : SLOTS + 40])["heavy"] == pytest.approx(30, abs=2)
        assert "light" in served[SLOTS : SLOTS + 8], "none starves"


async def test_of_one_tenant_priority_goes_before_default_before_flex(engine: HoldingEngine) -> None:
    keys = (key("may", service_tiers=TIERS), key("may-not"))
    async with queue_at(engine, four_slots(engine), keys=keys) as queue:
        await filled(queue, "may")
        for tier in ("flex", "default", "auto", "priority"):
            await queue.wait(tier, "may", service_tier=tier)
        order = [await queue.next_after(f"first-{number}") for number in range(SLOTS)]
        assert order == ["priority", "default", "auto", "flex"]
        for tier in ("flex", "default", "priority"):
            await queue.wait(f"{tier}-unheard", "may-not", service_tier=tier)
        order = [await queue.next_after(tier) for tier in ("priority", "default", "auto")]
        assert order == ["default-unheard", "priority-unheard", "flex-unheard"], "the key lacks the tier"


async def test_a_storm_of_disconnects_leaks_no_slot(engine: HoldingEngine) -> None:
    count = campaign_count(60, 1_000)
    dice = random.Random(campaign_seed())
    async with queue_at(engine, four_slots(engine, queue_limit=count), keys=(ALICE, BOB), hold_headers_s=0.02) as queue:
        for number in range(count):
            queue.send(f"c{number}", dice.choice(["alice", "bob"]), stream=dice.random() < 0.5)
        await until("the engine is full", lambda: len(engine.inside) == SLOTS)
        clients = list(queue.clients.values())
        dice.shuffle(clients)
        for client in clients:
            client.task.cancel()
            if dice.random() < 0.3 and engine.inside:
                engine.inside[dice.choice(list(engine.inside))].set()
                await asyncio.sleep(0)
            if dice.random() < 0.2:
                await asyncio.sleep(dice.uniform(0, 0.01))  # moments are what a storm consists of
        await queue.empty()
        assert engine.most <= SLOTS
        await filled(queue, "alice")
        await queue.wait("fifth", "bob")
        engine.release_all()
        assert (await queue.clients["fifth"].task)[0] == 200
        await queue.empty()
