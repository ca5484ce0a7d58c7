"""Who gets how much of a busy model, and in which order."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contract.routing import Endpoint
from gateway.admission.admission import Admission
from gateway.admission.ticket import Ticket
from tests.support.admission import AdmissionHarness, route_of
from tests.support.campaign import campaign_count


@dataclass
class Busy:
    """A model whose every answer takes as long as its tenant's do, in a world where nothing else takes time."""

    slots: int
    seconds: Callable[[Ticket], float]
    harness: AdmissionHarness = field(default_factory=lambda: AdmissionHarness(Admission(queue_limit=10_000), now=0.0))
    ends: list[tuple[float, int, Ticket]] = field(default_factory=list)
    entered: list[Ticket] = field(default_factory=list)
    served: Counter[str] = field(default_factory=Counter)
    """Slot-seconds of those that are out."""

    def __post_init__(self) -> None:
        self.harness.table(route_of("m", ["r"], target=self.slots))

    def come(self, tenant: str, weight: float = 1.0, rank: int = 1) -> Ticket:
        ticket = self.harness.come(tenant, weight=weight, rank=rank)
        if ticket.state == "inside":
            self._went(ticket)
        return ticket

    def one_ends(self) -> Ticket:
        self.harness.now, _, ticket = heapq.heappop(self.ends)
        self.served[ticket.tenant] += self.seconds(ticket)  # type: ignore[assignment]
        for each, outcome in self.harness.leave(ticket):
            assert isinstance(outcome, Endpoint)
            self._went(each)
        return ticket

    def _went(self, ticket: Ticket) -> None:
        self.entered.append(ticket)
        heapq.heappush(self.ends, (self.harness.now + self.seconds(ticket), len(self.entered), ticket))


def _always_backlogged(slots: int, took: Mapping[str, float], backlog: Mapping[str, int], weights: list[float]) -> Busy:
    """Each tenant has its backlog waiting all the time, until every one had about 60 answers' worth."""
    busy = Busy(slots, lambda ticket: took[ticket.tenant])
    weight = dict(zip(took, weights, strict=True))
    for tenant in took:
        for _ in range(backlog[tenant] + slots):
            busy.come(tenant, weight[tenant])
    while busy.harness.now < 120 * max(took.values()):
        ended = busy.one_ends()
        busy.come(ended.tenant, weight[ended.tenant])
    return busy


seconds = st.sampled_from((0.5, 1.0, 3.0, 10.0))


@settings(max_examples=campaign_count(20, 600))
@given(st.integers(1, 8), seconds, seconds, st.integers(1, 5), st.integers(1, 50))
def test_two_tenants_get_the_same(slots: int, a: float, b: float, backlog_a: int, backlog_b: int) -> None:
    busy = _always_backlogged(slots, {"a": a, "b": b}, {"a": backlog_a, "b": backlog_b}, [1.0, 1.0])
    assert busy.served["a"] == pytest.approx(busy.served["b"], rel=0.1)


@settings(max_examples=campaign_count(15, 400))
@given(st.integers(1, 8), seconds, seconds)
def test_weights_are_shares(slots: int, a: float, b: float) -> None:
    busy = _always_backlogged(slots, {"a": a, "b": b}, {"a": 3, "b": 3}, [3.0, 1.0])
    assert busy.served["a"] / busy.served["b"] == pytest.approx(3, rel=0.1)


@settings(max_examples=campaign_count(25, 600))
@given(st.integers(1, 4), st.integers(1, 30))
def test_two_closed_groups_of_clients_get_the_same(slots: int, more: int) -> None:
    """As clients do it: each sends its next request when it has its answer."""
    busy = Busy(slots, lambda ticket: 1.0 if ticket.tenant == "a" else 0.5)
    for tenant, clients in (("a", 2 * slots), ("b", 2 * slots + more)):
        for _ in range(clients):
            busy.come(tenant)
    while busy.harness.now < 100:
        busy.come(busy.one_ends().tenant)
    assert busy.served["a"] == pytest.approx(busy.served["b"], rel=0.1)


@settings(max_examples=campaign_count(50, 2_000))
@given(
    st.integers(1, 4),
    st.lists(
        st.tuples(st.sampled_from("abcd"), st.sampled_from((1.0, 2.0, 4.0)), st.integers(0, 2)), min_size=1, max_size=25
    ),
    st.integers(0, 12),
    st.sampled_from((0.5, 2.0)),
)
def test_the_place_that_was_told_is_the_order_of_service(
    slots: int, arrivals: list[tuple[str, float, int]], before: int, took: float
) -> None:
    busy = Busy(slots, lambda _: took)
    busy.come("z")
    busy.one_ends()  # so that it is known how long an answer takes
    for number, (tenant, weight, rank) in enumerate(arrivals):
        if number >= before and busy.ends and number % 3 == 0:
            busy.one_ends()
        last = busy.come(tenant, weight, rank)
    told = busy.harness.admission.waiting_tickets("m")
    already = len(busy.entered)
    came_at = busy.harness.now
    while busy.ends:
        busy.one_ends()
    assert busy.entered[already:] == told
    assert last.place is not None
    position = told.index(last) + 2 if last in told else 1
    assert last.place.position == position
    # As if one of the slots became free every `took / slots`: they do so at other times, but as often.
    expected_s = (position - 1) * took / slots
    assert last.place.wait_ms == round(1000 * expected_s)
    assert last.entered_at - came_at == pytest.approx(expected_s, abs=took)
    assert busy.harness.admission.depths == {}


@settings(max_examples=campaign_count(50, 2_000))
@given(
    st.integers(1, 4),
    st.lists(st.tuples(st.sampled_from("abcdefgh"), st.integers(1, 3)), min_size=1, max_size=150),
    st.dictionaries(st.sampled_from("abcdefgh"), seconds),
)
def test_nobody_is_overtaken_for_ever(slots: int, arrivals: list[tuple[str, int]], took: Mapping[str, float]) -> None:
    """One waits while all others send as they like, and who has come anew always comes before it where that is fair."""
    busy = Busy(slots, lambda ticket: took.get(ticket.tenant, 1.0))
    for _ in range(2 * slots):
        busy.come("patient")
    waiting = busy.come("patient")
    for tenant, count in arrivals:
        for _ in range(count):
            busy.come(tenant)
        busy.one_ends()
        if waiting.state != "waiting":
            break
    # Of each of the 8 others no more than what brings it level: the patient one's own requests, and the dearest it has.
    others = [each for each in busy.entered if each.tenant != "patient"]
    for tenant, count in Counter(each.tenant for each in others).items():
        assert count * took.get(tenant, 1.0) <= (3 * slots + 2) * 10.0 * 2, tenant
    while waiting.state == "waiting":
        busy.one_ends()
