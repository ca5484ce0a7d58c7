"""Requests that share a cache: whose engine counts right is never overfull; whatever it counts, all come to an end."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.admission.token_pool import MOST_PREEMPTIONS
from tests.support.admission import TICK_TOKENS, Kind, TokenWorld
from tests.support.campaign import campaign_count

MOST_TICKS = 20_000


@st.composite
def worlds(draw: st.DrawFn) -> TokenWorld:
    capacity = draw(st.sampled_from((512, 1024, 4096, 32768)))
    return TokenWorld(capacity, draw(st.sampled_from((1, 2, 4, 8))), draw(st.sampled_from((1, 1, 1, 2, 3))))


@st.composite
def kinds(draw: st.DrawFn, capacity: int, slots: int, tokens_per_byte: st.SearchStrategy[float]) -> Kind:
    """A request that fits into the cache alone, with room to spare for what is kept free."""
    room = capacity * 3 // 4
    choices = draw(st.sampled_from((1, 1, 1, 1, min(2, slots))))
    prompt_tokens = draw(st.integers(10, room // 2))
    answer_tokens = draw(st.integers(1, max(1, (room - prompt_tokens) // choices)))
    rate = draw(tokens_per_byte)
    return Kind(
        text_bytes=max(prompt_tokens, round(prompt_tokens / rate)),
        prompt_tokens=prompt_tokens,
        answer_tokens=answer_tokens,
        max_tokens=draw(st.none() | st.integers(1, max(1, capacity // 2)) | st.just(capacity)),
        is_stream=draw(st.booleans()),
        choices=choices,
    )


def come_and_go(data: st.DataObject, world: TokenWorld, tokens_per_byte: st.SearchStrategy[float], most: int) -> None:
    """Requests come, a few at a time, and all come to an end."""
    for _ in range(data.draw(st.integers(1, most), "rounds")):
        for _ in range(data.draw(st.integers(0, 2 * world.slots), "arrivals")):
            kind = data.draw(kinds(world.capacity, world.slots, tokens_per_byte))
            world.come(kind, data.draw(st.sampled_from("ab")))
        for _ in range(data.draw(st.integers(0, 30), "ticks")):
            world.tick()
    world.run(MOST_TICKS)


@pytest.mark.slow
@settings(max_examples=campaign_count(25, 1_500))
@given(st.data(), worlds(), st.sampled_from((0.1, 0.25, 0.5, 1.0)))
def test_an_engine_that_counts_right_is_never_overfull(data: st.DataObject, world: TokenWorld, rate: float) -> None:
    come_and_go(data, world, st.floats(rate * 0.96, rate), most=6)
    assert world.overruns == 0
    assert world.most_inside <= world.capacity
    outcomes = {(each.kind.is_stream, each.outcome) for each in world.requests}
    assert outcomes <= {(False, "answered"), (True, "answered"), (True, "kv_cache_exhausted")}
    for request in world.requests:
        if request.outcome != "answered":
            assert request.kind.max_tokens is None or 2 * request.kind.max_tokens > world.capacity, "it kept its limit"


@settings(max_examples=campaign_count(25, 1_500))
@given(st.data(), worlds(), st.sampled_from((0.0, 0.05, 0.3, 0.7, 1.0, 3.0, 50.0)))
def test_whatever_is_counted_everybody_comes_to_an_end(data: st.DataObject, world: TokenWorld, reported: float) -> None:
    world.reported = reported
    come_and_go(data, world, st.floats(0.05, 1.0), most=6)
    for request in world.requests:
        assert request.outcome == "answered" or request.has_sent, "what can be sent again is answered"
        assert request.entered_count <= 1 + MOST_PREEMPTIONS + 1


@settings(max_examples=campaign_count(25, 1_000))
@given(st.data(), st.sampled_from((2, 4, 8)), st.sampled_from((1, 1, 3)), st.booleans())
def test_a_large_request_among_short_ones_gets_its_turn(
    data: st.DataObject, slots: int, replicas: int, is_same_tenant: bool
) -> None:
    """Short ones keep coming, as fast as they go."""
    world = TokenWorld(4096, slots, replicas)
    short = Kind(200, 50, data.draw(st.integers(1, 60)), max_tokens=64)
    for _ in range(3 * slots * replicas):
        world.come(short)
    large = world.come(Kind(4000, 1000, 2500, max_tokens=2048), "a" if is_same_tenant else "b")
    came_at = len(world.requests)
    while large.ticket.state == "waiting":
        world.tick()
        while len(world.under_way) < 3 * slots * replicas + 1:
            world.come(short)
        entered = sum(each.entered_count for each in world.requests[came_at:])
        # Those who waited before, those that may overtake it, and those inside the others while one is kept for it.
        assert entered <= 3 * slots * replicas + max(8, 2 * slots) + 40 * slots * (replicas - 1)
    assert world.overruns == 0


@settings(max_examples=campaign_count(25, 1_000))
@given(st.data(), st.sampled_from((1, 2, 4, 8)), st.sampled_from((1, 2)))
def test_short_requests_have_all_slots(data: st.DataObject, slots: int, replicas: int) -> None:
    """Where what each claims is at most a slot's share, tokens hold nobody back, as soon as the model is known."""
    world = TokenWorld(4096, slots, replicas)
    share = 4096 // slots
    for _ in range(3):  # what prompts take is known then
        world.come(Kind(share // 2, share // 8, 20, max_tokens=share // 4))
        world.run(100)
    for _ in range(data.draw(st.integers(1, 12))):
        for _ in range(data.draw(st.integers(0, 3 * slots))):
            answer = data.draw(st.integers(1, share // 4))
            world.come(Kind(share // 2, share // 8, answer, max_tokens=data.draw(st.sampled_from((None, share // 4)))))
        world.tick()
    world.run(5_000)
    assert world.idle_slots_while_waiting == 0
    assert {each.entered_count for each in world.requests} == {1}


def test_a_tick_is_less_than_a_step() -> None:
    assert TICK_TOKENS < 64, "else an engine would be further than what was granted"
