"""Requests that take more than one slot: who fits, who is let past them, and for how long."""

from __future__ import annotations

from controller.schema.routing import Endpoint
from gateway.admission.admission import Ticket
from tests.support.admission import AdmissionHarness, route_of, where


def waits(ticket: Ticket) -> bool:
    """Whether it has not gone in."""
    return ticket.state == "waiting"


def test_a_request_takes_as_many_slots_as_it_asks_for_answers() -> None:
    harness = AdmissionHarness()
    harness.table(route_of("m", ["a", "b"], target=4))
    three = harness.come(slots=3)
    assert where(three) == "a"
    assert [where(harness.come()) for _ in range(3)] == ["b", "b", "b"]
    two = harness.come(slots=2)
    assert two.state == "waiting", "one slot is free in each"
    assert [where(harness.come()) for _ in range(2)] == ["a", "b"], "which others may have"
    assert harness.leave(three) == [(two, two.replica.endpoint)]
    assert where(two) == "a"
    assert harness.admission.slots_in_use == {"a": 2, "b": 4}, "requests, however many slots they take"


def test_more_than_a_replica_has_is_all_that_it_has() -> None:
    harness = AdmissionHarness()
    harness.table(route_of("m", ["a"], target=2))
    large = harness.come(slots=4)
    assert where(large) == "a"
    assert harness.come().state == "waiting"
    harness.table(route_of("m", ["a"], target=4))
    assert len(harness.leave(large)) == 0, "it was let in by the table"
    assert harness.admission.slots_in_use == {"a": 1}


def test_a_large_request_is_overtaken_eight_times_and_then_waited_for() -> None:
    harness = AdmissionHarness()
    harness.table(route_of("m", ["a"], target=4, queue_limit=100))
    inside = [harness.come() for _ in range(3)]
    large = harness.come("bob", slots=4)
    assert large.state == "waiting"
    overtaken = 0
    while waits(large):
        ticket = harness.come()
        overtaken += ticket.state == "inside"
        inside = [each for each in [*inside, ticket] if each.state == "inside"]
        harness.now += 1
        for grant, outcome in harness.leave(inside.pop(0)):
            assert isinstance(outcome, Endpoint)
            inside.append(grant)
        inside = [each for each in inside if each is not large]
    assert overtaken == 8
    assert harness.admission.slots_in_use == {"a": 1}, "it is alone, because nobody went in once it was kept for it"


def test_nothing_is_kept_for_a_large_request_that_left_the_queue() -> None:
    harness = AdmissionHarness()
    harness.table(route_of("m", ["a"], target=4, queue_limit=100))
    inside = [harness.come() for _ in range(3)]
    large = harness.come("bob", slots=4)
    while not waits(ticket := harness.come()):
        inside.append(ticket)
        assert not harness.leave(inside.pop(0))
    assert harness.leave(large) == [(ticket, ticket.replica.endpoint)]


def test_of_several_replicas_one_is_kept_for_it_and_the_others_go_on() -> None:
    harness = AdmissionHarness()
    harness.table(route_of("m", ["a", "b"], target=4, queue_limit=100))
    inside = [harness.come() for _ in range(6)]
    large = harness.come("bob", slots=4)
    entered_per_round = []
    while waits(large):
        harness.now += 1
        came = harness.come()
        grants = harness.leave(inside.pop(0))
        entered = [each for each in (came, *(ticket for ticket, _ in grants)) if each.state == "inside"]
        inside += [each for each in entered if each is not large]
        entered_per_round.append(len(entered))
    kept, other = where(large), {"a": "b", "b": "a"}[where(large)]
    assert sum(entered_per_round) - 1 > 8, "the other replica was not kept from anybody"
    assert harness.admission.slots_in_use[kept] == 1
    assert harness.admission.slots_in_use[other] >= 3


def test_slots_are_what_tenants_pay_for() -> None:
    harness = AdmissionHarness()
    harness.table(route_of("m", ["a"], target=4, queue_limit=100))
    first = harness.come("alice", slots=4)
    queue = [harness.come(name, slots=slots) for _ in range(4) for name, slots in (("alice", 4), ("bob", 1))]
    harness.now += 10
    harness.leave(first)
    assert [ticket.tenant for ticket in queue if ticket.state == "inside"] == ["bob"] * 4
