"""Whose turn it is."""

from __future__ import annotations

from gateway.admission.fair_queue import FairQueue
from gateway.admission.ticket import Ticket


def _ticket(tenant: str, *, weight: float = 1.0, rank: int = 1) -> Ticket:
    return Ticket(None, "m", tenant, weight, rank)


def _join(queue: FairQueue, *tenants: str) -> list[Ticket]:
    tickets = [_ticket(tenant) for tenant in tenants]
    for ticket in tickets:
        queue.join(ticket)
    return tickets


def _serve(queue: FairQueue, count: int, *, cost: float = 1.0) -> list[str]:
    """Each goes in as soon as the one before it is out, having taken what was expected."""
    served = []
    for _ in range(count):
        ticket = queue.first()
        queue.take(ticket, cost)
        queue.left(ticket, cost)
        served.append(ticket.tenant)
    return served


def test_tenants_take_turns_however_many_of_one_wait() -> None:
    queue = FairQueue()
    _join(queue, "a", "a", "a", "a", "b", "b")
    assert "".join(_serve(queue, 6)) == "ababaa"
    assert queue.waiting == 0


def test_within_a_tenant_rank_decides_and_then_who_came_first() -> None:
    queue = FairQueue()
    tickets = [_ticket("a", rank=rank) for rank in (2, 1, 0, 1, 0)]
    for ticket in tickets:
        queue.join(ticket)
    assert [tickets.index(ticket) for ticket in queue.order(1.0)] == [2, 4, 1, 3, 0]
    queue.join_in_front(_ticket("a", rank=2))
    assert queue.first() not in tickets


def test_rank_is_nothing_against_another_tenant() -> None:
    queue = FairQueue()
    _join(queue, "a")
    queue.join(_ticket("b", rank=0))
    assert queue.first().tenant == "a"


def test_weights_are_shares_and_the_latest_counts() -> None:
    queue = FairQueue()
    for _ in range(8):
        queue.join(_ticket("a", weight=1.0))
        queue.join(_ticket("b", weight=7.0))
    queue.join(_ticket("b", weight=3.0))
    assert _serve(queue, 8).count("b") == 6


def test_what_was_expected_is_corrected_by_what_it_took() -> None:
    queue = FairQueue()
    _join(queue, "a", "a", "b", "b", "b", "b")
    first = queue.first()
    queue.take(first, 1.0)
    queue.left(first, 3.0)
    assert (first.tenant, "".join(_serve(queue, 5))) == ("a", "bbbab")


def test_idling_saves_nothing_up_and_costs_nothing() -> None:
    queue = FairQueue()
    _join(queue, *("a" * 60))
    _serve(queue, 50)
    _join(queue, *("b" * 8))
    assert _serve(queue, 10).count("b") == 5


def test_what_was_served_without_waiting_counts() -> None:
    queue = FairQueue()
    for tenant in "aba":
        queue.enter(_ticket(tenant), 1.0)
    _join(queue, *"abc")
    assert "".join(_serve(queue, 3)) == "bca"


def test_asking_for_little_saves_nothing_up() -> None:
    """A tenant that is always inside with one request, while another fills the rest, has no claim to all later."""
    queue = FairQueue()
    small = _ticket("b")
    queue.enter(small, 1.0)
    _join(queue, *("a" * 200))
    _serve(queue, 100)
    queue.left(small, 1.0)
    _join(queue, *("b" * 50))
    assert _serve(queue, 20).count("b") in (10, 11)


def test_a_tenant_that_leaves_and_comes_back_at_once_still_owes() -> None:
    queue = FairQueue()
    waiting = _join(queue, "b", "b", "b", "b")
    greedy = _ticket("a")
    queue.join(greedy)
    queue.take(greedy, 1.0)
    queue.left(greedy, 3.5)
    _join(queue, "a", "a")
    assert queue.first() is waiting[0]
    assert "".join(_serve(queue, 6)) == "bbbbaa"


def test_when_nobody_is_left_nobody_owes_anything() -> None:
    queue = FairQueue()
    greedy = _ticket("a")
    queue.enter(greedy, 1.0)
    queue.left(greedy, 1000.0)
    queue.rest()
    _join(queue, "b", "b", "a", "a")
    assert "".join(_serve(queue, 4)) == "baba"


def test_idle_tenants_are_forgotten_unless_they_owe() -> None:
    queue = FairQueue()
    debtor = _ticket("debtor")
    queue.enter(debtor, 1.0)
    queue.left(debtor, 1e9)
    for number in range(10_000):
        ticket = _ticket(f"t{number}")
        queue.enter(ticket, 1.0)
        queue.left(ticket, 0.0)
    assert len(queue._shares) <= 200
    assert "debtor" in queue._shares


def test_the_heap_is_bounded_while_one_stays_at_the_head() -> None:
    queue = FairQueue()
    head = _join(queue, "head")[0]
    for _ in range(10_000):
        ticket = _join(queue, "a")[0]
        queue.drop(ticket)
    assert len(queue._heap) <= 100
    assert list(queue.order(1.0)) == [head]


def test_the_place_of_a_newcomer_is_where_the_order_has_it() -> None:
    queue = FairQueue()
    _join(queue, *"aaabbc")
    for tenant, rank in (("a", 0), ("b", 1), ("c", 2), ("d", 1)):
        ticket = _ticket(tenant, rank=rank)
        queue.join(ticket)
        assert list(queue.order(2.0)).index(ticket) + 1 == queue.position(ticket, 2.0)


def test_nobody_who_is_inside_or_waits_is_forgotten() -> None:
    queue = FairQueue()
    inside, brief = _ticket("inside"), _ticket("inside")
    for ticket in (inside, brief):
        queue.enter(ticket, 1.0)
    queue.left(brief, 0.0)
    waiting = _join(queue, "waiting")[0]
    for number in range(1_000):
        for _ in range(2):
            ticket = _ticket(f"t{number}")
            queue.enter(ticket, 1.0)
            queue.left(ticket, 0.5)
    assert queue.by_tenant() == {"waiting": 1}
    queue.left(inside, 1e6)
    late, other = _join(queue, "inside", "other")
    assert list(queue.order(1.0)) == [waiting, other, late], "what it took while inside is not forgotten"


def test_corrections_that_cancel_out_leave_the_order_as_it_was() -> None:
    queue = FairQueue()
    inside = [_ticket("a") for _ in range(2)]
    for ticket in inside:
        queue.enter(ticket, 1.0)
    waiting = _join(queue, "a", "b")
    for ticket, seconds in zip(inside, (2.0, 0.0), strict=True):
        queue.left(ticket, seconds)
    assert list(queue.order(1.0)) == waiting[::-1]
    assert queue.first() is waiting[1]
