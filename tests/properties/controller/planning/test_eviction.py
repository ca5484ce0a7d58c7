"""Who stays loaded, and who makes room: the rules of controller/planning/eviction.py, from generated traffic."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from controller.hosts import Gpu
from controller.state import DesiredModel, Statement
from tests.support.campaign import campaign_count
from tests.support.world import TrafficSimulator, autoload

ROOM = 1_000
steps = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(0, 3), st.sampled_from((1.0, 4.0, 25.0))), min_size=5, max_size=60
)


@st.composite
def models(draw: st.DrawFn) -> dict[str, DesiredModel]:
    return {
        name: autoload(
            name,
            draw(st.sampled_from((300, 500, 800))),
            min_residency_s=draw(st.sampled_from((None, 0.0, 6.0))),
            idle_ttl_s=draw(st.sampled_from((None, None, 4.0))),
        )
        for name in "abc"
    }


@settings(max_examples=campaign_count(40, 2_000))
@given(models(), steps)
def test_everybody_is_served_whatever_comes_and_nothing_busy_young_or_pinned_goes(
    known: dict[str, DesiredModel], traffic: list[tuple[str, int, float]]
) -> None:
    """What each step may do is asserted by the simulator itself."""
    table = TrafficSimulator(known, ROOM)
    asked = 0
    for name, count, takes_s in traffic:
        table.ask(name, count)
        asked += count
        table.step(takes_s)
    for _ in range(400):
        if table.quiet:
            break
        table.step()
    assert table.quiet, f"somebody waits: {table.waiting}; {table.world.plan()}"
    assert sum(table.served.values()) == asked


@settings(max_examples=campaign_count(4, 12))
@given(st.integers(1, 4), st.sampled_from((2.0, 10.0, 30.0)))
def test_two_that_are_asked_for_without_end_take_turns(at_a_time: int, swap_wait_s: float) -> None:
    table = TrafficSimulator({name: autoload(name, 800) for name in "ab"}, ROOM, swap_wait_s=swap_wait_s)
    for _ in range(300):
        for name in "ab":
            if len(table.waiting.get(name, ())) + len(table.inside.get(name, ())) < at_a_time:
                table.ask(name)
        table.step()
    assert table.served["a"]
    assert table.served["b"]
    # A turn is a wait, a drain of a request, and a load.
    turn_s = max(swap_wait_s, table.load_s) + 2 * table.load_s + 5
    assert table.longest_wait_s <= 2 * turn_s
    assert sum(table.loads.values()) <= 300 / max(swap_wait_s, table.load_s) + 2


@settings(max_examples=campaign_count(6, 300))
@given(st.lists(st.sampled_from("ab"), min_size=10, max_size=100))
def test_requests_for_one_model_gather_while_another_is_in_its_place(order: list[str]) -> None:
    """All at once: each model is loaded once."""
    table = TrafficSimulator({name: autoload(name, 800) for name in "ab"}, ROOM, swap_wait_s=600.0)
    for name in order:
        table.ask(name)
    for _ in range(400):
        table.step()
    assert table.quiet
    assert table.loads == dict.fromkeys(order, 1)


def test_an_eviction_is_revoked_by_a_request_that_comes_before_the_stop() -> None:
    table = TrafficSimulator({"a": autoload("a", 800), "b": autoload("b", 800)}, ROOM, swap_wait_s=1_000.0)
    table.ask("a")
    for _ in range(10):
        table.step()
    table.ask("b")
    table.step()
    assert [action.kind for action in table.world.plan().actions] == ["drain"]
    table.step()
    table.ask("a")
    table._tell()
    assert [action.kind for action in table.world.plan().actions] == ["undrain"]
    for _ in range(60):
        table.step()
    assert table.quiet
    assert table.evictions == ["a"]


def test_who_only_waits_for_a_turn_on_its_gpu_does_not_rest() -> None:
    """As after a reboot: two that requests asked for once, on one GPU, one after the other."""
    on_gpu = {name: replace(autoload(name, 0), memory_mib=None, gpu_count=1, vram_mib=400) for name in "ab"}
    table = TrafficSimulator(on_gpu, ROOM)
    table.world.gpus = (Gpu("A", 0, "x", 1_000),)
    asked = Statement("autoload", -100.0, "autoload: a request asked for it")
    wanted = {name: replace(model, replicas=1, demand_replicas=0, statement=asked) for name, model in on_gpu.items()}
    table.world.desired = replace(table.world.desired, models=wanted)
    for _ in range(15):
        table.step()
    assert table.loaded() == {"a", "b"}


@settings(max_examples=campaign_count(8, 400))
@given(st.sampled_from((None, 5.0, 20.0)), st.lists(st.integers(0, 20), min_size=4, max_size=4))
def test_one_that_needs_the_room_of_several_gets_it(residency_s: float | None, begins: list[int]) -> None:
    small = {name: autoload(name, 500, min_residency_s=residency_s) for name in "abcd"}
    table = TrafficSimulator(
        {**small, "big": autoload("big", ROOM, min_residency_s=residency_s)}, ROOM, swap_wait_s=10.0
    )
    for second in range(400):
        for name, begin in zip(small, begins, strict=True):
            if second >= begin and not table.waiting.get(name) and not table.inside.get(name):
                table.ask(name)
        if second == 60:
            table.ask("big")
        table.step()
        if table.served["big"]:
            return
    raise AssertionError(f"big waits for ever: {table.loads}")


def test_what_nobody_uses_rests_until_a_request_loads_it_again() -> None:
    table = TrafficSimulator(
        {"a": autoload("a", 100, idle_ttl_s=5.0, min_residency_s=0.0), "b": autoload("b", 100)}, ROOM
    )
    for name in "ab":
        table.ask(name)
    for _ in range(30):
        table.step()
    assert table.evictions == ["a"]
    assert table.world.desired.models["a"].statement.reason == "not used for 5 s"
    table.ask("a")
    for _ in range(6):
        table.step()
    assert table.loads == {"a": 2, "b": 1}


def test_a_pinned_one_stays_and_the_other_says_why_it_waits() -> None:
    table = TrafficSimulator({"a": autoload("a", 800, pinned=True), "b": autoload("b", 800)}, ROOM)
    for name, seconds in (("a", 10), ("b", 50)):
        table.ask(name)
        for _ in range(seconds):
            table.step()
    assert table.evictions == []
    [blocked] = table.world.plan().blocked
    words = "needs 800 MiB of main memory; free: 200 of the 1000 MiB that engines may take"
    assert (blocked.failed, blocked.reason) == (True, words)
