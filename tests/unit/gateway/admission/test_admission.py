"""Who goes in, who waits, who is refused."""

from __future__ import annotations

from collections import Counter

import pytest

from controller.schema.errors import DEFAULT_RETRY_AFTER_S, RoundhouseError
from controller.schema.status import ModelState
from gateway.admission.admission import Admission, QueuePlace, Ticket
from gateway.admission.prefix_affinity import prefix_keys
from tests.support.admission import AdmissionHarness, route_of, where, who


def test_the_story_as_its_repr_tells_it() -> None:
    harness = AdmissionHarness()
    harness.table(route_of("m", ["a", "b"], target=2), route_of("n"))
    assert repr(harness.admission) == "Admission(m: a 0/2, b 0/2; n)"
    alice = [harness.come("alice") for _ in range(5)]
    bob = harness.come("bob")
    assert repr(harness.admission) == "Admission(m: a 2/2, b 2/2, waiting alice 1 bob 1; n)"
    harness.now += 1
    harness.leave(alice[0])
    assert repr(harness.admission) == "Admission(m: a 2/2, b 2/2, waiting alice 1; n)"
    harness.table(route_of("m", ["b"], target=2))
    assert repr(harness.admission) == "Admission(m: b 2/2, a 2 leaving, waiting alice 1)"
    for ticket in (*alice, bob):
        harness.leave(ticket)
    assert repr(harness.admission) == "Admission(m: b 0/2)"
    harness.table()
    assert repr(harness.admission) == "Admission()"


def test_the_least_taken_replica_and_of_equals_the_one_whose_turn_is_longest_ago() -> None:
    harness = AdmissionHarness()
    harness.table(route_of("m", ["a", "b", "c"], target=2))
    tickets = [harness.come() for _ in range(6)]
    assert [where(ticket) for ticket in tickets] == ["a", "b", "c", "a", "b", "c"]
    harness.leave(tickets[1])
    harness.leave(tickets[4])
    harness.leave(tickets[0])
    assert where(harness.come()) == "b"
    assert where(harness.come()) == "a"


def test_of_equals_the_one_that_had_the_same_beginning() -> None:
    harness = AdmissionHarness()
    harness.table(route_of("m", ["a", "b", "c"], target=2))
    tickets = [harness.come(prefix=[number]) for number in (1, 2, 3)]
    for ticket in tickets:
        harness.leave(ticket)
    assert where(harness.come(prefix=[9, 2])) == "b"
    assert where(harness.come(prefix=[9, 2])) == "a", "b has more inside"


def ask_after_each_other(harness: AdmissionHarness, *texts: str) -> str:
    """Where requests with one system prompt and these texts go, each when the last one is over."""
    places = ""
    for text in texts:
        messages = [{"role": "system", "content": "be nice"}, {"role": "user", "content": text}]
        ticket = harness.come(prefix=prefix_keys({"messages": messages}))
        places += where(ticket)
        harness.leave(ticket)
    return places


def test_what_has_only_its_system_prompt_in_common_is_spread() -> None:
    harness = AdmissionHarness()
    harness.table(route_of("m", ["a", "b"], target=2))
    assert ask_after_each_other(harness, *"uvwxyz") == "ababab"


def test_what_begins_alike_stays_where_its_cache_is() -> None:
    harness = AdmissionHarness()
    harness.table(route_of("m", ["a", "b"], target=2))
    assert ask_after_each_other(harness, *"uuuvvvuv") == "aaabbbab"


def test_of_two_the_one_that_had_the_same_beginning_also_for_who_waited() -> None:
    harness = AdmissionHarness()
    harness.table(route_of("m", ["a", "b"]))
    assert [where(harness.come(prefix=[number])) for number in (1, 2)] == ["a", "b"]
    waiting = harness.come(prefix=[2])
    assert waiting.state == "waiting", "the one that it prefers is full, as the other one is"
    assert who(harness.table(route_of("m", ["a", "b"], target=2))) == [(waiting, "b")]


def test_what_the_only_replica_has_served_is_not_remembered() -> None:
    harness = AdmissionHarness()
    harness.table(route_of("m", ["a"]))
    harness.leave(harness.come(prefix=[1]))
    harness.table(route_of("m", ["a", "b"]))
    assert where(harness.come(prefix=[1])) == "b"


def test_affinity_for_a_replica_that_is_gone_is_none() -> None:
    harness = AdmissionHarness()
    harness.table(route_of("m", ["a", "b"]))
    harness.leave(harness.come(prefix=[1]))
    harness.table(route_of("m", ["b", "c"]))
    assert where(harness.come(prefix=[1])) == "b"


def test_the_slot_that_is_freed_goes_to_who_waits_not_to_who_comes() -> None:
    harness = AdmissionHarness()
    harness.table(route_of("m", ["a"]))
    inside, waiting = harness.come(), harness.come()
    assert who(harness.leave(inside)) == [(waiting, "a")]
    assert harness.come().state == "waiting"


def test_places_count_who_is_served_as_the_first() -> None:
    harness = AdmissionHarness()
    harness.table(route_of("m", ["a"], target=2))
    first = [harness.come() for _ in range(2)]
    assert [ticket.place for ticket in first] == [QueuePlace(1, 1, 0)] * 2
    assert [harness.come().place for _ in range(2)] == [QueuePlace(2, 2, None), QueuePlace(3, 3, None)]
    harness.now += 4
    harness.leave(first[0])
    assert harness.come().place == QueuePlace(3, 3, 4000)
    assert harness.come("bob").place == QueuePlace(2, 4, 2000), "bob has had nothing yet"


def test_a_model_that_is_being_loaded_lets_them_wait_until_it_is() -> None:
    harness = AdmissionHarness()
    harness.table(route_of("m", state=ModelState.LOADING))
    tickets = [harness.come() for _ in range(3)]
    assert [ticket.place for ticket in tickets] == [QueuePlace(n, n, None) for n in (2, 3, 4)]
    assert harness.admission.depths == {"m": 3}
    assert harness.admission.list_places("m") == [
        (ticket, QueuePlace(n, 4, None)) for n, ticket in enumerate(tickets, 2)
    ]
    assert who(harness.table(route_of("m", ["a", "b"]))) == [(tickets[0], "a"), (tickets[1], "b")]
    assert harness.admission.waiting_tickets("m") == tickets[2:]
    assert harness.admission.waiting_tickets("unheard-of") == []
    assert harness.admission.list_places("m") == [(tickets[2], QueuePlace(2, 2, None))]
    assert harness.admission.list_places("unheard-of") == []


@pytest.mark.parametrize(
    ("setting", "limit", "replicas", "slots", "may_wait"),
    [
        (None, None, 1, 1, 8),
        (None, None, 1, 4, 32),
        (None, None, 2, 64, 1024),
        (5, None, 2, 4, 10),
        (0, None, 1, 4, 0),
        (5, 3, 2, 4, 6),
        (None, 3, 2, 1, 6),
        (None, 0, 2, 1, 0),
    ],
)
def test_beyond_the_bound_nobody_waits(
    setting: int | None, limit: int | None, replicas: int, slots: int, may_wait: int
) -> None:
    harness = AdmissionHarness(Admission(queue_limit=setting))
    harness.table(route_of("m", [f"r{number}" for number in range(replicas)], target=slots, queue_limit=limit))
    tickets = [harness.come() for _ in range(replicas * slots + may_wait)]
    assert Counter(ticket.state for ticket in tickets) == Counter(inside=replicas * slots, waiting=may_wait)
    with pytest.raises(RoundhouseError) as refused:
        harness.come()
    assert refused.value.entry.code == "queue_full"
    words = f"Every slot of the model 'm' is taken, and {may_wait} requests wait; no more may."
    assert refused.value.message == words
    assert refused.value.build_headers() == {"retry-after": str(DEFAULT_RETRY_AFTER_S)}
    if may_wait:
        harness.leave(tickets[-1])
        harness.come()


def test_retry_after_is_the_wait_at_the_end_of_the_line() -> None:
    harness = AdmissionHarness()
    harness.table(route_of("m", ["a"], target=2, queue_limit=3))
    first = harness.come()
    harness.now += 10
    harness.leave(first)
    for _ in range(5):
        harness.come()
    with pytest.raises(RoundhouseError) as refused:
        harness.come()
    assert refused.value.retry_after_s == 20


def test_who_is_refused_for_the_bound_is_told_the_place_that_it_would_have_had() -> None:
    harness = AdmissionHarness()
    harness.table(route_of("m", ["a"], target=2, queue_limit=3))
    assert Ticket(None, "m", "alice", 1.0, 1).place is None
    first = harness.come()
    harness.now += 10
    harness.leave(first)
    for _ in range(5):
        harness.come()
    late = Ticket(None, "m", "alice", 1.0, 1)
    with pytest.raises(RoundhouseError):
        harness.admission.admit_ticket(late, harness.routes.models["m"], harness.now)
    assert late.place == QueuePlace(5, 5, 20_000)
    assert late.state == "new"


def test_leaving_is_idempotent_wherever_one_is() -> None:
    harness = AdmissionHarness()
    harness.table(route_of("m", ["a"]))
    inside, waiting, other = harness.come(), harness.come(), harness.come()
    assert harness.leave(waiting) == []
    assert harness.leave(waiting) == []
    assert harness.admission.depths == {"m": 1}
    assert who(harness.leave(inside)) == [(other, "a")]
    assert harness.leave(inside) == []
    harness.leave(Ticket(None, "m", "alice", 1.0, 1))
    assert harness.admission.slots_in_use == {"a": 1}
    assert harness.admission.slots_in_use_by_model == {"m": 1}
    harness.leave(other)
    assert (harness.admission.slots_in_use, harness.admission.slots_in_use_by_model, harness.admission.depths) == (
        {},
        {},
        {},
    )


def test_depths_is_always_the_same_mapping() -> None:
    harness = AdmissionHarness()
    depths = harness.admission.depths
    harness.table(route_of("m", ["a"]))
    tickets = [harness.come() for _ in range(3)]
    assert depths == {"m": 2}
    for ticket in tickets:
        harness.leave(ticket)
    assert depths == {}


def test_a_smaller_table_takes_nothing_away_and_admits_nobody_until_there_is_room() -> None:
    harness = AdmissionHarness()
    harness.table(route_of("m", ["a"], target=3))
    tickets = [harness.come() for _ in range(5)]
    assert harness.table(route_of("m", ["a"], target=1)) == []
    assert [harness.leave(tickets[0]), harness.leave(tickets[1])] == [[], []]
    assert who(harness.leave(tickets[2])) == [(tickets[3], "a")]


def test_a_replica_that_left_and_came_back_still_holds_who_is_inside() -> None:
    harness = AdmissionHarness()
    harness.table(route_of("m", ["a"]))
    old = harness.come()
    harness.table(route_of("m", state=ModelState.UNLOADED))
    assert harness.admission.slots_in_use == {"a": 1}
    harness.table(route_of("m", ["a"]))
    waiting = harness.come()
    assert waiting.state == "waiting"
    assert who(harness.leave(old)) == [(waiting, "a")]


def test_who_waits_for_a_model_that_vanished_waits_on_until_the_caller_says() -> None:
    harness = AdmissionHarness()
    harness.table(route_of("m", state=ModelState.LOADING))
    tickets = [harness.come() for _ in range(2)]
    assert harness.table() == []
    assert harness.admission.waiting_tickets("m") == tickets
    for ticket in tickets:
        harness.leave(ticket)
    assert repr(harness.admission) == "Admission()"


def test_a_loaded_model_without_a_replica_is_unreachable() -> None:
    harness = AdmissionHarness()
    harness.table(route_of("m", ["a"]))
    inside, waiting = harness.come(), harness.come()
    assert who(harness.table(route_of("m", []))) == [(waiting, "engine_unreachable")]
    assert waiting.state == "gone"
    with pytest.raises(RoundhouseError, match="no replica is ready") as error:
        harness.come()
    assert error.value.retry_after_s is None
    assert harness.leave(inside) == []


def test_requests_without_a_slot_go_where_the_least_is_inside() -> None:
    harness = AdmissionHarness()
    harness.table(route_of("m", ["a", "b"]))
    route = harness.routes.models["m"]
    chosen = [harness.admission.choose_replica(route, harness.now).replica for _ in range(3)]
    assert chosen == ["a", "b", "a"]
    harness.come()
    assert harness.admission.choose_replica(route, harness.now).replica == "a"
    assert harness.admission.slots_in_use == {"b": 1}
    harness.table(route_of("m", []))
    with pytest.raises(RoundhouseError, match="no replica is ready"):
        harness.admission.choose_replica(harness.routes.models["m"], harness.now)


def test_service_times_of_requests_that_were_retried_are_no_history() -> None:
    harness = AdmissionHarness()
    harness.table(route_of("m", ["a", "b"]))
    ticket = harness.come()
    harness.admission.retry_ticket(ticket, harness.now, is_refused=True)
    harness.now += 100
    harness.leave(ticket)
    harness.come()
    harness.come()
    assert harness.come().place == QueuePlace(2, 2, None)


def test_nobody_owes_anything_for_what_was_served_while_nobody_else_came() -> None:
    harness = AdmissionHarness()
    harness.table(route_of("m", ["a"]))
    greedy = harness.come("alice")
    harness.now += 10_000
    harness.leave(greedy)
    inside = harness.come("bob")
    tickets = [harness.come(tenant) for tenant in ("alice", "alice", "bob", "bob")]
    order = []
    for _ in tickets:
        harness.now += 1000
        [(inside, _)] = harness.leave(inside)
        order.append(inside.tenant)
    assert order == ["alice", "bob", "alice", "bob"]


def test_who_owes_goes_on_owing_while_somebody_is_inside() -> None:
    harness = AdmissionHarness()
    harness.table(route_of("m", ["a"], target=2))
    greedy, steady = harness.come("alice"), harness.come("bob")
    harness.now += 1_000
    harness.leave(greedy)
    filler = harness.come("carol")
    waiting = {tenant: harness.come(tenant) for tenant in ("alice", "dave")}
    assert who(harness.leave(filler)) == [(waiting["dave"], "a")]
    assert who(harness.leave(steady)) == [(waiting["alice"], "a")]


def test_a_storm_leaks_nothing() -> None:
    admission = Admission(queue_limit=10_000)
    harness = AdmissionHarness(admission)
    harness.table(route_of("m", ["a", "b"], target=2))
    tickets = [harness.come(f"t{number % 7}", rank=number % 3) for number in range(1000)]
    assert admission.depths == {"m": 996}
    for ticket in reversed(tickets):
        harness.leave(ticket)
    assert (admission.depths, admission.slots_in_use, repr(admission)) == ({}, {}, "Admission(m: a 0/2, b 0/2)")


def test_a_grant_names_whose_ticket_it_is() -> None:
    harness = AdmissionHarness()
    harness.table(route_of("m", ["a"]))
    inside = harness.come()
    owner = object()
    waiting = Ticket(owner, "m", "alice", 1.0, 1)
    assert harness.admission.admit_ticket(waiting, harness.routes.models["m"], harness.now) is None
    [(ticket, _)] = harness.leave(inside)
    assert ticket.owner is owner
    assert repr(ticket) == "Ticket(alice m, inside)"
