"""Whose turn it is."""

from __future__ import annotations

import pytest

from gateway.admission.answer_pace import AnswerPace, AnswerPaces
from gateway.admission.fair_queue import FairQueue
from gateway.admission.ticket import Ticket
from tests.support.outcomes import present


def _ticket(tenant: str, *, weight: float = 1.0, rank: int = 1) -> Ticket:
    return Ticket(None, "m", tenant, weight, rank)


def _join(queue: FairQueue, *tenants: str) -> list[Ticket]:
    tickets = [_ticket(tenant) for tenant in tenants]
    for ticket in tickets:
        queue.add_ticket(ticket)
    return tickets


def _serve(queue: FairQueue, count: int, *, cost: float = 1.0) -> list[str]:
    """Each goes in as soon as the one before it is out, having taken what was expected."""
    served = []
    for _ in range(count):
        ticket = queue.next_ticket()
        queue.take_ticket(ticket, cost)
        queue.settle_slot_time(ticket, cost)
        served.append(ticket.tenant)
    return served


def test_tenants_take_turns_however_many_of_one_wait() -> None:
    queue = FairQueue()
    _join(queue, "a", "a", "a", "a", "b", "b")
    assert "".join(_serve(queue, 6)) == "ababaa"
    assert queue.waiting_count == 0


def test_weights_are_shares_and_the_latest_counts() -> None:
    queue = FairQueue()
    for _ in range(8):
        queue.add_ticket(_ticket("a", weight=1.0))
        queue.add_ticket(_ticket("b", weight=7.0))
    queue.add_ticket(_ticket("b", weight=3.0))
    assert _serve(queue, 8).count("b") == 6


def test_within_a_tenant_rank_decides_and_then_who_came_first() -> None:
    queue = FairQueue()
    tickets = [_ticket("a", rank=rank) for rank in (2, 1, 0, 1, 0)]
    for ticket in tickets:
        queue.add_ticket(ticket)
    assert [tickets.index(ticket) for ticket in queue.queue_order(1.0)] == [2, 4, 1, 3, 0]
    queue.add_ticket_in_front(_ticket("a", rank=2))
    assert queue.next_ticket() not in tickets
    queue = FairQueue()
    _join(queue, "a")
    queue.add_ticket(_ticket("b", rank=0))
    assert queue.next_ticket().tenant == "a", "rank is nothing against another tenant"


def test_what_was_expected_is_corrected_by_what_it_took() -> None:
    queue = FairQueue()
    _join(queue, "a", "a", "b", "b", "b", "b")
    first = queue.next_ticket()
    queue.take_ticket(first, 1.0)
    queue.settle_slot_time(first, 3.0)
    assert (first.tenant, "".join(_serve(queue, 5))) == ("a", "bbbab")


def test_what_was_served_without_waiting_counts() -> None:
    queue = FairQueue()
    for tenant in "aba":
        queue.charge_entry(_ticket(tenant), 1.0)
    _join(queue, *"abc")
    assert "".join(_serve(queue, 3)) == "bca"


def test_corrections_that_cancel_out_leave_the_order_as_it_was() -> None:
    queue = FairQueue()
    inside = [_ticket("a") for _ in range(2)]
    for ticket in inside:
        queue.charge_entry(ticket, 1.0)
    waiting = _join(queue, "a", "b")
    for ticket, seconds in zip(inside, (2.0, 0.0), strict=True):
        queue.settle_slot_time(ticket, seconds)
    assert list(queue.queue_order(1.0)) == waiting[::-1]
    assert queue.next_ticket() is waiting[1]


def test_idling_or_asking_for_little_saves_nothing_up() -> None:
    queue = FairQueue()
    _join(queue, *("a" * 60))
    _serve(queue, 50)
    _join(queue, *("b" * 8))
    assert _serve(queue, 10).count("b") == 5
    # A tenant that is always inside with one request, while another fills the rest, has no claim to all later.
    queue, small = FairQueue(), _ticket("b")
    queue.charge_entry(small, 1.0)
    _join(queue, *("a" * 200))
    _serve(queue, 100)
    queue.settle_slot_time(small, 1.0)
    _join(queue, *("b" * 50))
    assert _serve(queue, 20).count("b") in (10, 11)


def test_a_tenant_that_leaves_and_comes_back_at_once_still_owes() -> None:
    queue = FairQueue()
    waiting = _join(queue, "b", "b", "b", "b")
    greedy = _ticket("a")
    queue.add_ticket(greedy)
    queue.take_ticket(greedy, 1.0)
    queue.settle_slot_time(greedy, 3.5)
    _join(queue, "a", "a")
    assert queue.next_ticket() is waiting[0]
    assert "".join(_serve(queue, 6)) == "bbbbaa"


def test_when_nobody_is_left_nobody_owes_anything() -> None:
    queue = FairQueue()
    greedy = _ticket("a")
    queue.charge_entry(greedy, 1.0)
    queue.settle_slot_time(greedy, 1000.0)
    queue.reset_accounts()
    _join(queue, "b", "b", "a", "a")
    assert "".join(_serve(queue, 4)) == "baba"


def test_idle_tenants_are_forgotten_unless_they_owe() -> None:
    queue = FairQueue()
    debtor = _ticket("debtor")
    queue.charge_entry(debtor, 1.0)
    queue.settle_slot_time(debtor, 1e9)
    for number in range(10_000):
        ticket = _ticket(f"t{number}")
        queue.charge_entry(ticket, 1.0)
        queue.settle_slot_time(ticket, 0.0)
    assert len(queue._accounts) <= 200
    assert "debtor" in queue._accounts


def test_the_heap_is_bounded_while_one_stays_at_the_head() -> None:
    queue = FairQueue()
    head = _join(queue, "head")[0]
    for _ in range(10_000):
        ticket = _join(queue, "a")[0]
        queue.drop_ticket(ticket)
    assert len(queue._heap) <= 100
    assert list(queue.queue_order(1.0)) == [head]


def test_the_place_of_a_newcomer_is_where_the_order_has_it() -> None:
    queue = FairQueue()
    _join(queue, *"aaabbc")
    for tenant, rank in (("a", 0), ("b", 1), ("c", 2), ("d", 1)):
        ticket = _ticket(tenant, rank=rank)
        queue.add_ticket(ticket)
        assert list(queue.queue_order(2.0)).index(ticket) + 1 == queue.queue_position(ticket, 2.0)


def test_nobody_who_is_inside_or_waits_is_forgotten() -> None:
    queue = FairQueue()
    inside, brief = _ticket("inside"), _ticket("inside")
    for ticket in (inside, brief):
        queue.charge_entry(ticket, 1.0)
    queue.settle_slot_time(brief, 0.0)
    waiting = _join(queue, "waiting")[0]
    for number in range(1_000):
        for _ in range(2):
            ticket = _ticket(f"t{number}")
            queue.charge_entry(ticket, 1.0)
            queue.settle_slot_time(ticket, 0.5)
    assert queue.waiting_by_tenant() == {"waiting": 1}
    queue.settle_slot_time(inside, 1e6)
    late, other = _join(queue, "inside", "other")
    assert list(queue.queue_order(1.0)) == [waiting, other, late], "what it took while inside is not forgotten"


def pace(*answers: tuple[int, int, float]) -> AnswerPace:
    """After answers of (prompt tokens, completion tokens, seconds)."""
    made = AnswerPace()
    for answer in answers:
        made.record_answer(*answer)
    return made


def test_nothing_is_expected_before_an_answer_with_tokens_and_of_a_longer_prompt_than_the_others() -> None:
    known = pace((1000, 50, 0.5))
    for unknown, prompt in ((pace(), 10), (pace((10, 0, 1.0)), 10), (known, 2065)):
        assert unknown.expected_s(prompt, 10, runs_to_bound=False) is None
    assert known.expected_s(2064, 10, runs_to_bound=False) is not None


@pytest.mark.parametrize(
    ("most_tokens", "runs_to_bound", "expected_s"),
    [
        (10, False, 0.1),  # its own limit
        (None, False, 2.0),  # four times the others
        (5000, False, 2.0),
        (5000, True, 50.0),  # it does not end by itself
        (None, True, None),
    ],
)
def test_an_answer_takes_as_others_did(most_tokens: int | None, runs_to_bound: bool, expected_s: float | None) -> None:
    told = pace((10, 50, 0.5)).expected_s(10, most_tokens, runs_to_bound=runs_to_bound)
    assert told == (None if expected_s is None else pytest.approx(expected_s))


def test_what_changes_is_learned_and_models_that_are_gone_are_forgotten() -> None:
    known = pace(*[(10, 100, 0.1)] * 50, *[(10, 100, 10.0)] * 10)
    told = present(known.expected_s(10, 100, runs_to_bound=False))
    assert 5.0 < told < 10.0
    paces = AnswerPaces()
    for name in ("kept", "gone"):
        paces.of(name).record_answer(1, 1, 1.0)
    paces.keep_models({"kept": object()})
    assert paces.of("kept").expected_s(1, 1, runs_to_bound=False) == pytest.approx(1.0)
    assert paces.of("gone").expected_s(1, 1, runs_to_bound=False) is None
