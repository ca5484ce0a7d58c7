"""Who goes in, who waits, who is refused; retries and replicas that are left out; requests that take several slots."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

import pytest

from contract.errors import DEFAULT_RETRY_AFTER_S, RoundhouseError
from contract.status import ModelState
from gateway.admission.admission import Admission
from gateway.admission.circuit_breaker import FAILURES, FIRST_PAUSE_S, LONGEST_PAUSE_S, CircuitBreaker
from gateway.admission.prefix_affinity import prefix_keys
from gateway.admission.ticket import NO_RETRIES, QueuePlace, Ticket
from tests.support.admission import AdmissionHarness, harness_of, route_of, where, who
from tests.support.outcomes import error_of, present


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


def test_the_least_taken_replica_then_the_one_with_the_same_beginning_then_the_one_whose_turn_is_longest_ago() -> None:
    harness = harness_of("abc", target=2)
    tickets = [harness.come(prefix=[number]) for number in (1, 2, 3, 4, 5, 6)]
    assert "".join(map(where, tickets)) == "abcabc"
    for number in (1, 4, 0):
        harness.leave(tickets[number])
    assert where(harness.come()) + where(harness.come()) == "ba"
    harness = harness_of("abc", target=2)
    for ticket in [harness.come(prefix=[number]) for number in (1, 2, 3)]:
        harness.leave(ticket)
    assert where(harness.come(prefix=[9, 2])) == "b"
    assert where(harness.come(prefix=[9, 2])) == "a", "b has more inside"


@pytest.mark.parametrize(("texts", "places"), [("uvwxyz", "ababab"), ("uuuvvvuv", "aaabbbab")])
def test_what_begins_alike_stays_where_its_cache_is(texts: str, places: str) -> None:
    harness = harness_of("ab", target=2)
    for text, place in zip(texts, places, strict=True):
        messages = [{"role": "system", "content": "be nice"}, {"role": "user", "content": text}]
        ticket = harness.come(prefix=prefix_keys({"messages": messages}))
        assert where(ticket) == place
        harness.leave(ticket)


@pytest.mark.parametrize(("before", "after"), [("a", "ab"), ("ab", "bc")], ids=["the only one", "gone"])
def test_what_the_only_replica_or_one_that_is_gone_has_served_is_not_remembered(before: str, after: str) -> None:
    harness = harness_of(before)
    harness.leave(harness.come(prefix=[1]))
    harness.table(route_of("m", after))
    assert where(harness.come(prefix=[1])) == "b"


def test_the_slot_that_is_freed_goes_to_who_waits() -> None:
    harness = harness_of("a")
    inside, waiting = harness.come(), harness.come()
    assert who(harness.leave(inside)) == [(waiting, "a")]
    assert harness.come().state == "waiting"


def test_who_waited_goes_to_the_replica_that_had_the_same_beginning() -> None:
    harness = harness_of("ab")
    assert [where(harness.come(prefix=[number])) for number in (1, 2)] == ["a", "b"]
    waiting = harness.come(prefix=[2])
    assert waiting.state == "waiting", "the one that it prefers is full, as the other one is"
    assert who(harness.table(route_of("m", ["a", "b"], target=2))) == [(waiting, "b")]


def test_a_smaller_table_takes_nothing_away_and_admits_nobody_until_there_is_room() -> None:
    harness = harness_of("a", target=3)
    tickets = [harness.come() for _ in range(5)]
    assert harness.table(route_of("m", ["a"], target=1)) == []
    assert [harness.leave(tickets[0]), harness.leave(tickets[1])] == [[], []]
    assert who(harness.leave(tickets[2])) == [(tickets[3], "a")]


def test_places_count_who_is_served_as_the_first() -> None:
    harness = harness_of("a", target=2)
    first = [harness.come() for _ in range(2)]
    assert [ticket.place for ticket in first] == [QueuePlace(1, 1, 0)] * 2
    assert [harness.come().place for _ in range(2)] == [QueuePlace(2, 2, None), QueuePlace(3, 3, None)]
    harness.now += 4
    harness.leave(first[0])
    assert harness.come().place == QueuePlace(3, 3, 4000)
    assert harness.come("bob").place == QueuePlace(2, 4, 2000), "bob has had nothing yet"


def test_how_long_a_place_usually_waits_is_what_such_places_waited() -> None:
    harness = harness_of("a")
    inside = harness.come()
    for number, seconds in enumerate((1, 2, 3, 4, 50)):
        waiting = harness.come()
        assert present(waiting.place).usual_wait_ms is None, f"{number} waits were seen"
        harness.now += seconds
        harness.leave(inside)
        inside = waiting
    assert [present(harness.come().place).usual_wait_ms for _ in range(2)] == [(3000, 50_000), (6000, 100_000)]
    assert [place.usual_wait_ms for _, place in harness.admission.list_places("m")] == [(3000, 50_000), (6000, 100_000)]
    harness.table(route_of("m", ["a", "b"]))
    harness.come()
    assert present(harness.come().place).usual_wait_ms is None, "another number of slots: another pace"


def test_waits_for_a_load_say_nothing_of_the_queue() -> None:
    harness = harness_of("", state=ModelState.LOADING)
    tickets = [harness.come() for _ in range(7)]
    harness.now += 100
    harness.table(route_of("m", ["a"]))
    for ticket in tickets:
        harness.now += 1
        harness.leave(ticket)
    harness.come()
    assert present(harness.come().place).usual_wait_ms is None


def test_waits_that_began_before_an_unload_say_nothing_of_the_queue() -> None:
    harness = harness_of("a")
    inside = harness.come()
    waiting = [harness.come() for _ in range(5)]
    harness.table(route_of("m", state=ModelState.UNLOADED))
    harness.leave(inside)
    harness.now += 60
    harness.table(route_of("m", ["a"]))
    for ticket in waiting:
        harness.leave(ticket)
    harness.come()
    assert present(harness.come().place).usual_wait_ms is None


def test_service_times_of_requests_that_were_retried_are_no_history() -> None:
    harness = harness_of("ab")
    ticket = harness.come()
    harness.admission.retry_ticket(ticket, harness.now, is_refused=True)
    harness.now += 100
    harness.leave(ticket)
    harness.come()
    harness.come()
    assert harness.come().place == QueuePlace(2, 2, None)


def test_a_model_that_is_being_loaded_lets_them_wait_until_it_is() -> None:
    harness = harness_of("", state=ModelState.LOADING)
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
        *((None, None, 1, 1, 8), (None, None, 1, 4, 32), (None, None, 2, 64, 1024), (5, None, 2, 4, 10)),
        *((0, None, 1, 4, 0), (5, 3, 2, 4, 6), (None, 3, 2, 1, 6), (None, 0, 2, 1, 0)),
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


def test_who_is_refused_for_the_bound_is_told_the_place_and_the_wait_that_it_would_have_had() -> None:
    harness = harness_of("a", target=2, queue_limit=3)
    assert Ticket(None, "m", "alice", 1.0, 1).place is None
    first, late = harness.come(), Ticket(None, "m", "alice", 1.0, 1)
    harness.now += 10
    harness.leave(first)
    for _ in range(5):
        harness.come()
    error = error_of(lambda: harness.admission.admit_ticket(late, harness.now))
    assert (error.retry_after_s, late.place, late.state) == (20, QueuePlace(5, 5, 20_000), "new")


def test_leaving_is_idempotent_wherever_one_is() -> None:
    harness = harness_of("a")
    depths = harness.admission.depths  # always the same mapping
    inside, waiting, other = harness.come(), harness.come(), harness.come()
    assert depths == {"m": 2}
    assert harness.leave(waiting) == harness.leave(waiting) == []
    assert depths == {"m": 1}
    assert who(harness.leave(inside)) == [(other, "a")]
    assert harness.leave(inside) == []
    harness.leave(Ticket(None, "m", "alice", 1.0, 1))
    assert (harness.admission.slots_in_use, harness.admission.slots_in_use_by_model) == ({"a": 1}, {"m": 1})
    harness.leave(other)
    assert [harness.admission.slots_in_use, harness.admission.slots_in_use_by_model, depths] == [{}, {}, {}]


def test_a_table_without_a_replica_or_model_keeps_who_is_inside_and_who_waits() -> None:
    harness = harness_of("a")
    old = harness.come()
    harness.table(route_of("m", state=ModelState.UNLOADED))
    assert harness.admission.slots_in_use == {"a": 1}
    harness.table(route_of("m", ["a"]))
    waiting = harness.come()
    assert waiting.state == "waiting"
    assert who(harness.leave(old)) == [(waiting, "a")]
    harness = harness_of("", state=ModelState.LOADING)
    tickets = [harness.come() for _ in range(2)]
    assert harness.table() == []
    assert harness.admission.waiting_tickets("m") == tickets, "until the caller says"
    for ticket in tickets:
        harness.leave(ticket)
    assert repr(harness.admission) == "Admission()"


def test_a_loaded_model_without_a_replica_is_unreachable() -> None:
    harness = harness_of("a")
    inside, waiting = harness.come(), harness.come()
    assert who(harness.table(route_of("m", []))) == [(waiting, "engine_unreachable")]
    assert waiting.state == "gone"
    with pytest.raises(RoundhouseError, match="no replica is ready") as error:
        harness.come()
    assert error.value.retry_after_s is None
    assert harness.leave(inside) == []


def test_requests_without_a_slot_go_where_the_least_is_inside() -> None:
    harness = harness_of("ab")
    route = harness.routes.models["m"]
    chosen = [harness.admission.choose_replica(route, harness.now).replica for _ in range(3)]
    assert chosen == ["a", "b", "a"]
    harness.come()
    assert harness.admission.choose_replica(route, harness.now).replica == "a"
    assert harness.admission.slots_in_use == {"b": 1}
    harness.table(route_of("m", []))
    with pytest.raises(RoundhouseError, match="no replica is ready"):
        harness.admission.choose_replica(harness.routes.models["m"], harness.now)


def test_who_owes_goes_on_owing_while_somebody_is_inside() -> None:
    harness = harness_of("a", target=2)
    greedy, steady = harness.come("alice"), harness.come("bob")
    harness.now += 1_000
    harness.leave(greedy)
    filler = harness.come("carol")
    waiting = {tenant: harness.come(tenant) for tenant in ("alice", "dave")}
    assert who(harness.leave(filler)) == [(waiting["dave"], "a")]
    assert who(harness.leave(steady)) == [(waiting["alice"], "a")]


def test_nobody_owes_anything_for_what_was_served_while_nobody_else_came() -> None:
    harness = harness_of("a")
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
    harness = harness_of("a")
    inside, owner = harness.come(), object()
    waiting = Ticket(owner, "m", "alice", 1.0, 1)
    assert harness.admission.admit_ticket(waiting, harness.now) is None
    [(ticket, _)] = harness.leave(inside)
    assert ticket.owner is owner
    assert repr(ticket) == "Ticket(alice m, inside)"


def _again(harness: AdmissionHarness, ticket: Ticket, *, refused: bool = False) -> str | None:
    """Where it is after its replica failed; None: it waits."""
    harness.admission.record_failure(where(ticket), harness.now)
    endpoint, grants = harness.admission.retry_ticket(ticket, harness.now, is_refused=refused)
    assert grants == []
    if endpoint is None:
        assert ticket.state == "waiting"
        return None
    assert where(ticket) == endpoint.replica
    return endpoint.replica


def _leave_out(harness: AdmissionHarness, replica: str) -> list[tuple[Ticket, str]]:
    """Those who come to nothing by it."""
    told = []
    for _ in range(FAILURES):
        told += who(harness.admission.record_failure(replica, harness.now))
    return told


def on_trial(replicas: str, replica: str = "a", **fields: Any) -> AdmissionHarness:
    """One of whose replicas the pause is over."""
    harness = harness_of(replicas, **fields)
    _leave_out(harness, replica)
    harness.now += FIRST_PAUSE_S
    return harness


def test_a_replica_that_refused_is_not_tried_again() -> None:
    harness = harness_of("ab")
    ticket = harness.come()
    assert _again(harness, ticket, refused=True) == "b"
    assert not ticket.retries.break_count
    with pytest.raises(RoundhouseError, match="connections to 2 replicas were refused") as error:
        _again(harness, ticket, refused=True)
    assert error.value.entry.code == "engine_unreachable"
    assert harness.admission.slots_in_use == {"b": 1}, "until it leaves"
    harness.leave(ticket)
    assert harness.admission.slots_in_use == {}


def test_a_replica_that_left_is_forgotten_when_a_retry_leaves_it() -> None:
    harness = harness_of("a")
    ticket = harness.come()
    harness.table(route_of("m", ["b"]))
    assert _again(harness, ticket, refused=True) == "b"
    assert repr(harness.admission) == "Admission(m: b 1/1)"


@pytest.mark.parametrize(
    ("replicas", "next_replica", "words"),
    [("a", "a", "connections to one replica broke before an answer came"), ("abc", "b", "to 2 replicas broke")],
    ids=["once more where no other is left", "at most two"],
)
def test_two_connections_may_break_under_one_request(replicas: str, next_replica: str, words: str) -> None:
    harness = harness_of(replicas)
    ticket = harness.come()
    assert _again(harness, ticket) == next_replica
    assert ticket.retries.break_count == 1
    with pytest.raises(RoundhouseError, match=words):
        _again(harness, ticket)


def test_one_that_broke_is_not_tried_again_while_another_is_left_though_it_is_busier() -> None:
    harness = harness_of("ab", target=2)
    ticket, _ = harness.come(), harness.come()
    assert _again(harness, ticket) == "b"
    full = harness_of("ab")
    ticket, other = full.come(), full.come()
    assert _again(full, ticket) is None
    assert who(full.leave(other)) == [(ticket, "b")]


def test_another_replica_is_one_that_is_routed_and_not_left_out_though_it_is_full() -> None:
    harness = AdmissionHarness()
    harness.table(route_of("m", ["a"]), route_of("other", ["o"]))
    assert not harness.admission.has_other_replica("m", "a", harness.now)
    assert not harness.admission.has_other_replica("gone", "a", harness.now)
    harness.table(route_of("m", ["a", "b"]))
    harness.come(), harness.come()
    assert harness.admission.has_other_replica("m", "a", harness.now)
    _leave_out(harness, "b")
    assert not harness.admission.has_other_replica("m", "a", harness.now)


def test_a_request_without_a_slot_is_tried_elsewhere_and_where_it_broke_only_if_no_other_is_left() -> None:
    harness = harness_of("ab", target=2)
    route = harness.routes.models["m"]
    harness.come(), harness.come(), harness.come()
    assert harness.admission.slots_in_use == {"a": 2, "b": 1}
    assert harness.admission.choose_replica(route, harness.now, NO_RETRIES.after_break("b")).replica == "a"
    harness.table(route_of("m", ["b"], target=2))
    route = harness.routes.models["m"]
    assert harness.admission.choose_replica(route, harness.now, NO_RETRIES.after_break("b")).replica == "b"
    with pytest.raises(RoundhouseError, match="connections to one replica were refused"):
        harness.admission.choose_replica(route, harness.now, NO_RETRIES.after_refusal("b"))


@pytest.mark.parametrize("left_out", ["", "c"], ids=["two", "a third one is left out"])
def test_a_retry_waits_in_front_of_its_tenants_others_for_a_replica_that_it_has_not_met(left_out: str) -> None:
    harness = harness_of("ab" + left_out)
    for replica in left_out:
        _leave_out(harness, replica)
    retried, elsewhere = harness.come(), harness.come()
    others = [harness.come(rank=0), harness.come(rank=0)]
    harness.admission.record_failure("a", harness.now)
    endpoint, grants = harness.admission.retry_ticket(retried, harness.now, is_refused=True)
    assert endpoint is None
    assert who(grants) == [(others[0], "a")], "the slot that it gave up is of no use to it"
    assert harness.admission.waiting_tickets("m") == [retried, others[1]]
    assert who(harness.leave(elsewhere)) == [(retried, "b")]


def test_who_comes_passes_every_retry_that_waits_for_another_replica_and_is_told_who_waits() -> None:
    harness = harness_of("ab", target=2)
    tickets = [harness.come() for _ in range(4)]
    for retried in (tickets[0], tickets[2]):
        assert _again(harness, retried, refused=True) is None
    newcomer = harness.come("bob")
    assert (where(newcomer), newcomer.place) == ("a", QueuePlace(1, 3, 0))


def test_a_retry_waits_for_a_model_that_is_loaded_anew_and_is_told_when_a_table_leaves_nothing_for_it() -> None:
    harness = harness_of("a")
    ticket = harness.come()
    harness.table(route_of("m", state=ModelState.LOADING))
    assert _again(harness, ticket) is None
    assert who(harness.table(route_of("m", ["b"]))) == [(ticket, "b")]
    assert ticket.retries.break_count == 1
    for left_out in ("", "c"):
        harness = harness_of("ab" + left_out)
        for replica in left_out:
            _leave_out(harness, replica)
        retried, _ = harness.come(), harness.come()
        assert _again(harness, retried, refused=True) is None
        assert who(harness.table(route_of("m", "a" + left_out))) == [(retried, "engine_unreachable")]
        assert harness.admission.depths == {}


def test_a_replica_is_left_out_after_three_failures_in_a_row_and_an_answer_takes_it_back() -> None:
    harness = harness_of("ab", target=9)
    harness.admission.record_failure("a", harness.now)
    harness.admission.record_failure("a", harness.now)
    harness.admission.record_answer("a", harness.now)
    harness.admission.record_failure("a", harness.now)
    assert where(harness.come()) == "a"
    _leave_out(harness, "a")
    assert [where(harness.come()) for _ in range(3)] == ["b"] * 3
    assert harness.admission.choose_replica(harness.routes.models["m"], harness.now).replica == "b"
    assert repr(harness.admission) == "Admission(m: a 1/9 left out, b 3/9)"
    harness.now += FIRST_PAUSE_S
    trial = harness.come()
    assert where(trial) == "a"
    assert where(harness.come()) == "b", "one trial at a time"
    harness.admission.record_answer("a", harness.now)
    assert where(harness.come()) == "a"


@pytest.mark.parametrize("also_left_out", ["", "c"])
def test_an_answer_lets_those_in_who_wait(also_left_out: str) -> None:
    harness = harness_of("ab" + also_left_out)
    harness.come()
    for replica in "b" + also_left_out:
        _leave_out(harness, replica)
    waiting = [harness.come(), harness.come()]
    assert who(harness.admission.record_answer("b", harness.now)) == [(waiting[0], "b")]
    assert harness.admission.record_answer("b", harness.now) == ()
    assert harness.admission.record_answer("unheard-of", harness.now) == ()
    assert harness.admission.record_failure("unheard-of", harness.now) == ()


def test_time_lets_a_trial_in_of_those_who_wait() -> None:
    harness = harness_of("ab")
    harness.come()
    _leave_out(harness, "b")
    waiting = [harness.come(), harness.come()]
    assert harness.admission.admit_trials(harness.now + FIRST_PAUSE_S / 2) == []
    harness.now += FIRST_PAUSE_S
    assert harness.come().state == "waiting", "a trial is not for who comes"
    assert who(harness.admission.admit_trials(harness.now)) == [(waiting[0], "b")]
    assert harness.admission.admit_trials(harness.now) == []


def test_when_every_replica_is_left_out_nobody_waits() -> None:
    harness = harness_of("ab")
    inside = [harness.come(), harness.come()]
    waiting = [harness.come("alice"), harness.come("bob")]
    assert _leave_out(harness, "a") == []
    assert dict(_leave_out(harness, "b")) == dict.fromkeys(waiting, "engine_unreachable")
    assert [ticket.state for ticket in waiting] == ["gone"] * 2
    harness.now += FIRST_PAUSE_S / 4
    for try_it in (harness.come, lambda: harness.admission.choose_replica(harness.routes.models["m"], harness.now)):
        with pytest.raises(RoundhouseError, match="left out for a moment") as error:
            try_it()
        assert error.value.retry_after_s == FIRST_PAUSE_S * 3 / 4
    for ticket in inside:
        assert harness.leave(ticket) == []
    harness.now += FIRST_PAUSE_S
    assert {where(harness.come()) for _ in range(2)} == {"a", "b"}


def test_while_one_trial_runs_the_others_wait_for_how_it_ends() -> None:
    harness = on_trial("a", target=3, queue_limit=3)
    trial = harness.come()
    assert where(trial) == "a"
    waiting = [harness.come() for _ in range(3)]
    assert [ticket.state for ticket in waiting] == ["waiting"] * 3
    assert harness.admission.admit_trials(harness.now) == []
    assert error_of(harness.come).entry.code == "queue_full", "the line has its bound as ever"
    assert harness.admission.choose_replica(harness.routes.models["m"], harness.now).replica == "a"
    assert who(harness.admission.record_answer("a", harness.now)) == [(ticket, "a") for ticket in waiting[:2]]
    assert who(harness.leave(trial)) == [(waiting[2], "a")]


@pytest.mark.parametrize("refused", [True, False])
def test_who_waits_for_a_trial_that_fails_is_told(refused: bool) -> None:
    harness = on_trial("a", target=3)
    trial, waiting = harness.come(), harness.come()
    assert who(harness.admission.record_failure("a", harness.now)) == [(waiting, "engine_unreachable")]
    retry = partial(harness.admission.retry_ticket, trial, harness.now, is_refused=refused)
    assert error_of(retry).entry.code == error_of(harness.come).entry.code == "engine_unreachable"
    assert harness.leave(trial) == []


def test_a_trial_that_ends_without_an_answer_makes_the_next_one_the_trial() -> None:
    harness = on_trial("a", target=3)
    trial, *waiting = [harness.come() for _ in range(3)]
    assert who(harness.leave(trial)) == [(waiting[0], "a")]
    assert waiting[1].state == "waiting"


def test_a_trial_that_fails_sends_its_request_elsewhere() -> None:
    harness = harness_of("ab", target=2)
    harness.come(), harness.come()
    _leave_out(harness, "a")
    harness.now += FIRST_PAUSE_S
    trial = harness.come()
    assert where(trial) == "a"
    assert _again(harness, trial, refused=True) == "b"
    harness.now += FIRST_PAUSE_S
    assert harness.come().state == "waiting", "the pause has doubled"


def test_a_retry_does_not_wait_for_a_trial_where_it_may_try_now_and_may_be_the_trial() -> None:
    harness = on_trial("ab", "b", target=2)
    tickets = [harness.come() for _ in range(3)]
    assert "".join(map(where, tickets)) == "aba", "b is on trial"
    assert _again(harness, tickets[0]) == "a"
    harness = harness_of("ab")
    _leave_out(harness, "b")
    ticket = harness.come()
    harness.now += FIRST_PAUSE_S
    assert _again(harness, ticket, refused=True) == "b"


def test_what_is_held_against_a_replica_goes_with_it_and_it_is_not_preferred_meanwhile() -> None:
    harness = harness_of("ab")
    harness.leave(harness.come(prefix=[1]))
    _leave_out(harness, "a")
    ticket = harness.come(prefix=[1])
    assert where(ticket) == "b"
    harness.leave(ticket)
    harness.table(route_of("m", ["b"]))
    harness.table(route_of("m", ["a", "b"]))
    assert {where(harness.come()) for _ in range(2)} == {"a", "b"}


def test_a_request_takes_as_many_slots_as_it_has_choices() -> None:
    harness = harness_of("ab", target=4)
    three = harness.come(slots=3)
    assert where(three) == "a"
    assert [where(harness.come()) for _ in range(3)] == ["b", "b", "b"]
    two = harness.come(slots=2)
    assert two.state == "waiting", "one slot is free in each"
    assert [where(harness.come()) for _ in range(2)] == ["a", "b"], "which others may have"
    assert harness.leave(three) == [(two, two.replica.endpoint)]
    assert where(two) == "a"
    assert harness.admission.slots_in_use == {"a": 2, "b": 4}, "requests, however many slots they take"


def test_more_slots_than_a_replica_has_are_all_that_it_has() -> None:
    harness = harness_of("a", target=2)
    large = harness.come(slots=4)
    assert (where(large), harness.come().state) == ("a", "waiting")
    harness.table(route_of("m", ["a"], target=4))
    assert len(harness.leave(large)) == 0, "it was let in by the table"
    assert harness.admission.slots_in_use == {"a": 1}


def test_slots_are_what_tenants_pay_for() -> None:
    harness = harness_of("a", target=4, queue_limit=100)
    first = harness.come("alice", slots=4)
    queue = [harness.come(name, slots=slots) for _ in range(4) for name, slots in (("alice", 4), ("bob", 1))]
    harness.now += 10
    harness.leave(first)
    assert [ticket.tenant for ticket in queue if ticket.state == "inside"] == ["bob"] * 4


def test_a_large_request_is_overtaken_eight_times_and_then_waited_for() -> None:
    harness = harness_of("a", target=4, queue_limit=100)
    inside = [harness.come() for _ in range(3)]
    large = harness.come("bob", slots=4)
    overtaken = 0
    while large.state == "waiting":
        inside.append(ticket := harness.come())
        overtaken += ticket.state == "inside"
        inside = [each for each in inside if each.state == "inside"]
        harness.now += 1
        inside += [grant for grant, _ in harness.leave(inside.pop(0)) if grant is not large]
    assert overtaken == 8
    assert harness.admission.slots_in_use == {"a": 1}, "it is alone, because nobody went in once it was kept for it"


def test_nothing_is_kept_for_a_large_request_that_left_the_queue() -> None:
    harness = harness_of("a", target=4, queue_limit=100)
    inside = [harness.come() for _ in range(3)]
    large = harness.come("bob", slots=4)
    while (ticket := harness.come()).state == "inside":
        inside.append(ticket)
        assert not harness.leave(inside.pop(0))
    assert harness.leave(large) == [(ticket, ticket.replica.endpoint)]


def test_of_several_replicas_one_is_kept_for_it_and_the_others_go_on() -> None:
    harness = harness_of("ab", target=4, queue_limit=100)
    inside = [harness.come() for _ in range(6)]
    large = harness.come("bob", slots=4)
    entered_per_round = []
    while large.state == "waiting":
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


def _open() -> CircuitBreaker:
    breaker = CircuitBreaker()
    for _ in range(FAILURES):
        assert not breaker.is_open
        assert breaker.admits_request(0.0)
        breaker.record_failure(0.0)
    assert breaker.is_open
    return breaker


def test_after_the_pause_one_trial_at_a_time() -> None:
    breaker, first, second = _open(), object(), object()
    assert breaker.retry_in_s(0.25) == 0.75
    for _ in range(20):
        breaker.record_failure(0.5)  # of what was inside when it opened
    assert breaker.retry_in_s(0.5) == 0.5
    assert not breaker.admits_request(FIRST_PAUSE_S - 0.001)
    assert breaker.admits_request(FIRST_PAUSE_S)
    breaker.begin_trial(first)
    assert not breaker.admits_request(FIRST_PAUSE_S + 50)
    breaker.end_trial(second)
    assert not breaker.admits_request(FIRST_PAUSE_S + 50)
    breaker.end_trial(first)
    assert breaker.admits_request(FIRST_PAUSE_S + 50)


def test_a_failed_trial_doubles_the_pause_up_to_the_longest() -> None:
    breaker = _open()
    now, pauses = FIRST_PAUSE_S, []
    for _ in range(7):
        trial = object()
        breaker.begin_trial(trial)
        breaker.record_failure(now)
        breaker.end_trial(trial)
        pauses.append(breaker.retry_in_s(now))
        now += pauses[-1]
    assert pauses == [2, 4, 8, 16, LONGEST_PAUSE_S, LONGEST_PAUSE_S, LONGEST_PAUSE_S]
