"""Who goes in, who waits, who is refused."""

from __future__ import annotations

from collections import Counter

import pytest

from controller.schema.errors import DEFAULT_RETRY_AFTER_S, RoundhouseError
from controller.schema.status import ModelState
from gateway.admission import Admission, Place, Ticket
from tests.support.admission import House, route_of, where, who


def test_the_story_as_its_repr_tells_it() -> None:
    house = House()
    house.table(route_of("m", ["a", "b"], target=2), route_of("n"))
    assert repr(house.admission) == "Admission(m: a 0/2, b 0/2; n)"
    alice = [house.come("alice") for _ in range(5)]
    bob = house.come("bob")
    assert repr(house.admission) == "Admission(m: a 2/2, b 2/2, waiting alice 1 bob 1; n)"
    house.now += 1
    house.leave(alice[0])
    assert repr(house.admission) == "Admission(m: a 2/2, b 2/2, waiting alice 1; n)"
    house.table(route_of("m", ["b"], target=2))
    assert repr(house.admission) == "Admission(m: b 2/2, a 2 leaving, waiting alice 1)"
    for ticket in (*alice, bob):
        house.leave(ticket)
    assert repr(house.admission) == "Admission(m: b 0/2)"
    house.table()
    assert repr(house.admission) == "Admission()"


def test_the_least_taken_replica_and_of_equals_the_one_whose_turn_is_longest_ago() -> None:
    house = House()
    house.table(route_of("m", ["a", "b", "c"], target=2))
    tickets = [house.come() for _ in range(6)]
    assert [where(ticket) for ticket in tickets] == ["a", "b", "c", "a", "b", "c"]
    house.leave(tickets[1])
    house.leave(tickets[4])
    house.leave(tickets[0])
    assert where(house.come()) == "b"
    assert where(house.come()) == "a"


def test_of_equals_the_one_that_had_the_same_beginning() -> None:
    house = House()
    house.table(route_of("m", ["a", "b", "c"], target=2))
    tickets = [house.come(prefix=[number]) for number in (1, 2, 3)]
    for ticket in tickets:
        house.leave(ticket)
    assert where(house.come(prefix=[9, 2])) == "b"
    assert where(house.come(prefix=[9, 2])) == "a", "b has more inside"


def test_affinity_for_a_replica_that_is_gone_is_none() -> None:
    house = House()
    house.table(route_of("m", ["a", "b"]))
    house.leave(house.come(prefix=[1]))
    house.table(route_of("m", ["b", "c"]))
    assert where(house.come(prefix=[1])) == "b"


def test_the_slot_that_is_freed_goes_to_who_waits_not_to_who_comes() -> None:
    house = House()
    house.table(route_of("m", ["a"]))
    inside, waiting = house.come(), house.come()
    assert who(house.leave(inside)) == [(waiting, "a")]
    assert house.come().state == "waiting"


def test_places_count_who_is_served_as_the_first() -> None:
    house = House()
    house.table(route_of("m", ["a"], target=2))
    first = [house.come() for _ in range(2)]
    assert [ticket.place for ticket in first] == [Place(1, 1, 0)] * 2
    assert [house.come().place for _ in range(2)] == [Place(2, 2, None), Place(3, 3, None)]
    house.now += 4
    house.leave(first[0])
    assert house.come().place == Place(3, 3, 4000)
    assert house.come("bob").place == Place(2, 4, 2000), "bob has had nothing yet"


def test_a_model_that_is_being_loaded_lets_them_wait_until_it_is() -> None:
    house = House()
    house.table(route_of("m", state=ModelState.LOADING))
    tickets = [house.come() for _ in range(3)]
    assert [ticket.place for ticket in tickets] == [Place(n, n, None) for n in (2, 3, 4)]
    assert house.admission.depths == {"m": 3}
    assert who(house.table(route_of("m", ["a", "b"]))) == [(tickets[0], "a"), (tickets[1], "b")]
    assert house.admission.waiting("m") == tickets[2:]
    assert house.admission.waiting("unheard-of") == []


@pytest.mark.parametrize(("limit", "replicas", "may_wait"), [(None, 1, 8), (3, 2, 6), (0, 2, 0)])
def test_beyond_the_bound_nobody_waits(limit: int | None, replicas: int, may_wait: int) -> None:
    house = House()
    house.table(route_of("m", [f"r{number}" for number in range(replicas)], queue_limit=limit))
    tickets = [house.come() for _ in range(replicas + may_wait)]
    assert Counter(ticket.state for ticket in tickets) == Counter(inside=replicas, waiting=may_wait)
    with pytest.raises(RoundhouseError) as refused:
        house.come()
    assert refused.value.entry.code == "queue_full"
    assert refused.value.headers() == {"retry-after": str(DEFAULT_RETRY_AFTER_S)}
    if may_wait:
        house.leave(tickets[-1])
        house.come()


def test_retry_after_is_the_wait_at_the_end_of_the_line() -> None:
    house = House()
    house.table(route_of("m", ["a"], target=2, queue_limit=3))
    first = house.come()
    house.now += 10
    house.leave(first)
    for _ in range(5):
        house.come()
    with pytest.raises(RoundhouseError) as refused:
        house.come()
    assert refused.value.retry_after_s == 20


def test_who_is_refused_for_the_bound_is_told_the_place_that_it_would_have_had() -> None:
    house = House()
    house.table(route_of("m", ["a"], target=2, queue_limit=3))
    assert Ticket(None, "m", "alice", 1.0, 1).place is None
    first = house.come()
    house.now += 10
    house.leave(first)
    for _ in range(5):
        house.come()
    late = Ticket(None, "m", "alice", 1.0, 1)
    with pytest.raises(RoundhouseError):
        house.admission.arrive(late, house.routes.models["m"], house.now)
    assert late.place == Place(5, 5, 20_000)
    assert late.state == "new"


def test_leaving_is_idempotent_wherever_one_is() -> None:
    house = House()
    house.table(route_of("m", ["a"]))
    inside, waiting, other = house.come(), house.come(), house.come()
    assert house.leave(waiting) == []
    assert house.leave(waiting) == []
    assert house.admission.depths == {"m": 1}
    assert who(house.leave(inside)) == [(other, "a")]
    assert house.leave(inside) == []
    house.leave(Ticket(None, "m", "alice", 1.0, 1))
    assert house.admission.taken == {"a": 1}
    assert house.admission.taken_by_model == {"m": 1}
    house.leave(other)
    assert (house.admission.taken, house.admission.taken_by_model, house.admission.depths) == ({}, {}, {})


def test_depths_is_always_the_same_mapping() -> None:
    house = House()
    depths = house.admission.depths
    house.table(route_of("m", ["a"]))
    tickets = [house.come() for _ in range(3)]
    assert depths == {"m": 2}
    for ticket in tickets:
        house.leave(ticket)
    assert depths == {}


def test_a_smaller_table_takes_nothing_away_and_admits_nobody_until_there_is_room() -> None:
    house = House()
    house.table(route_of("m", ["a"], target=3))
    tickets = [house.come() for _ in range(5)]
    assert house.table(route_of("m", ["a"], target=1)) == []
    assert [house.leave(tickets[0]), house.leave(tickets[1])] == [[], []]
    assert who(house.leave(tickets[2])) == [(tickets[3], "a")]


def test_a_replica_that_left_and_came_back_still_holds_who_is_inside() -> None:
    house = House()
    house.table(route_of("m", ["a"]))
    old = house.come()
    house.table(route_of("m", state=ModelState.UNLOADED))
    assert house.admission.taken == {"a": 1}
    house.table(route_of("m", ["a"]))
    waiting = house.come()
    assert waiting.state == "waiting"
    assert who(house.leave(old)) == [(waiting, "a")]


def test_who_waits_for_a_model_that_vanished_waits_on_until_the_caller_says() -> None:
    house = House()
    house.table(route_of("m", state=ModelState.LOADING))
    tickets = [house.come() for _ in range(2)]
    assert house.table() == []
    assert house.admission.waiting("m") == tickets
    for ticket in tickets:
        house.leave(ticket)
    assert repr(house.admission) == "Admission()"


def test_a_loaded_model_without_a_replica_is_unreachable() -> None:
    house = House()
    house.table(route_of("m", ["a"]))
    inside, waiting = house.come(), house.come()
    assert who(house.table(route_of("m", []))) == [(waiting, "engine_unreachable")]
    assert waiting.state == "gone"
    with pytest.raises(RoundhouseError, match="no replica is ready"):
        house.come()
    assert house.leave(inside) == []


def test_requests_without_a_slot_go_where_the_least_is_inside() -> None:
    house = House()
    house.table(route_of("m", ["a", "b"]))
    route = house.routes.models["m"]
    chosen = [house.admission.choose(route, house.now).replica for _ in range(3)]
    assert chosen == ["a", "b", "a"]
    house.come()
    assert house.admission.choose(route, house.now).replica == "a"
    assert house.admission.taken == {"b": 1}
    house.table(route_of("m", []))
    with pytest.raises(RoundhouseError, match="no replica is ready"):
        house.admission.choose(house.routes.models["m"], house.now)


def test_service_times_of_requests_that_were_retried_are_no_history() -> None:
    house = House()
    house.table(route_of("m", ["a", "b"]))
    ticket = house.come()
    house.admission.again(ticket, house.now, refused=True)
    house.now += 100
    house.leave(ticket)
    house.come()
    house.come()
    assert house.come().place == Place(2, 2, None)


def test_nobody_owes_anything_for_what_was_served_while_nobody_else_came() -> None:
    house = House()
    house.table(route_of("m", ["a"]))
    greedy = house.come("alice")
    house.now += 10_000
    house.leave(greedy)
    inside = house.come("bob")
    tickets = [house.come(tenant) for tenant in ("alice", "alice", "bob", "bob")]
    order = []
    for _ in tickets:
        house.now += 1000
        [(inside, _)] = house.leave(inside)
        order.append(inside.tenant)
    assert order == ["alice", "bob", "alice", "bob"]


def test_a_storm_leaks_nothing() -> None:
    admission = Admission(queue_limit=10_000)
    house = House(admission)
    house.table(route_of("m", ["a", "b"], target=2))
    tickets = [house.come(f"t{number % 7}", rank=number % 3) for number in range(1000)]
    assert admission.depths == {"m": 996}
    for ticket in reversed(tickets):
        house.leave(ticket)
    assert (admission.depths, admission.taken, repr(admission)) == ({}, {}, "Admission(m: a 0/2, b 0/2)")
