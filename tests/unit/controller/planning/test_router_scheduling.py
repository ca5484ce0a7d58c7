"""What llama-server's own router tests ask of its queue for room, asked of the plan: seconds pass in a simulation."""

from __future__ import annotations

from tests.support.world import TrafficSimulator, autoload

BUSY_S = 20
"""Seconds that a long request takes; far below the wait after which a model in use gets no new requests."""


def make_host(*names: str, room_for: int) -> TrafficSimulator:
    """A host with room for so many of these models."""
    return TrafficSimulator({name: autoload(name, 400) for name in names}, 400 * room_for, swap_wait_s=600.0)


def load(host: TrafficSimulator, *names: str) -> None:
    """Load models, each by a request that is served, and let them be idle for a while."""
    for name in names:
        host.ask(name)
        run_until_quiet(host)
    run(host, 10)
    assert host.loaded() == set(names)


def run(host: TrafficSimulator, seconds: int) -> None:
    for _ in range(seconds):
        host.step()


def run_until_quiet(host: TrafficSimulator) -> None:
    """Let time pass until all requests are served. Fails when that takes too long."""
    for _ in range(100):
        host.step()
        if host.quiet:
            return
    raise AssertionError(f"nobody serves {host.waiting}")


def keep_busy(host: TrafficSimulator, name: str) -> None:
    """Begin a long request to a loaded model."""
    host.ask(name)
    host.step(BUSY_S)
    assert host.inside[name]


def test_a_busy_model_is_not_evicted_and_the_waiting_request_is_served_after_it() -> None:
    host = make_host("a", "b", room_for=1)
    load(host, "a")
    keep_busy(host, "a")
    host.ask("b")
    while host.inside["a"]:
        assert host.loaded() == {"a"}, "new requests still go to it"
        host.step()
    run_until_quiet(host)
    assert (host.served["a"], host.served["b"]) == (2, 1)
    assert (host.loaded(), host.evictions) == ({"b"}, ["a"])


def test_requests_for_one_model_cost_one_other_model_its_room() -> None:
    host = make_host("a", "b", "c", room_for=2)
    load(host, "a", "b")
    keep_busy(host, "a")
    host.ask("c", 3)
    run_until_quiet(host)
    run(host, BUSY_S)
    assert (host.served["c"], host.loads["c"]) == (3, 1)
    assert (host.loaded(), host.evictions) == ({"a", "c"}, ["b"])


def test_a_client_that_left_while_it_waited_costs_nobody_its_room() -> None:
    host = make_host("a", "b", room_for=1)
    load(host, "a")
    keep_busy(host, "a")
    host.ask("b")
    host.step()
    host.waiting["b"].clear()
    run_until_quiet(host)
    run(host, BUSY_S)
    assert (host.loaded(), host.evictions, host.loads["b"]) == ({"a"}, [], 0)


def test_models_are_loaded_in_the_order_in_which_their_requests_came() -> None:
    host = make_host("a", "first", "second", "another", room_for=1)
    load(host, "a")
    keep_busy(host, "a")
    order = ["second", "first", "another"]
    for name in order:
        host.ask(name)
        host.step()
    run_until_quiet(host)
    assert host.evictions == ["a", "second", "first"]
    assert host.loaded() == {"another"}


def test_two_that_want_the_same_room_are_both_served() -> None:
    host = make_host("a", "b", "c", room_for=1)
    load(host, "a")
    host.ask("b")
    host.ask("c")
    run_until_quiet(host)
    assert (host.served["b"], host.served["c"]) == (1, 1)
    assert host.evictions[0] == "a"
    assert len(host.evictions) == 2
