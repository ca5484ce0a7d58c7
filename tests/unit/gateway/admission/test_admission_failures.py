"""Retries before the first byte, and replicas that are left out."""

from __future__ import annotations

import pytest

from controller.schema.errors import RoundhouseError
from controller.schema.status import ModelState
from gateway.admission.admission import QueuePlace, Ticket
from gateway.admission.circuit_breaker import FAILURES, FIRST_PAUSE_S
from gateway.admission.retry_state import NO_RETRIES
from tests.support.admission import AdmissionHarness, route_of, where, who


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


def test_a_replica_that_refused_is_not_tried_again() -> None:
    harness = AdmissionHarness()
    harness.table(route_of("m", ["a", "b"]))
    ticket = harness.come()
    assert _again(harness, ticket, refused=True) == "b"
    assert not ticket.retries.break_count
    with pytest.raises(RoundhouseError, match="connections to 2 replicas were refused") as error:
        _again(harness, ticket, refused=True)
    assert error.value.entry.code == "engine_unreachable"
    assert harness.admission.slots_in_use == {"b": 1}, "until it leaves"
    harness.leave(ticket)
    assert harness.admission.slots_in_use == {}


def test_one_that_broke_is_tried_once_more_when_no_other_is_left() -> None:
    harness = AdmissionHarness()
    harness.table(route_of("m", ["a"]))
    ticket = harness.come()
    assert _again(harness, ticket) == "a"
    assert ticket.retries.break_count == 1
    with pytest.raises(RoundhouseError, match="connections to one replica broke before an answer came"):
        _again(harness, ticket)


def test_one_that_broke_is_not_tried_again_while_another_is_left_though_it_is_busier() -> None:
    harness = AdmissionHarness()
    harness.table(route_of("m", ["a", "b"], target=2))
    ticket, _ = harness.come(), harness.come()
    assert _again(harness, ticket) == "b"
    full = AdmissionHarness()
    full.table(route_of("m", ["a", "b"]))
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
    harness = AdmissionHarness()
    harness.table(route_of("m", ["a", "b"], target=2))
    route = harness.routes.models["m"]
    harness.come(), harness.come(), harness.come()
    assert harness.admission.slots_in_use == {"a": 2, "b": 1}
    assert harness.admission.choose_replica(route, harness.now, NO_RETRIES.after_break("b")).replica == "a"
    harness.table(route_of("m", ["b"], target=2))
    route = harness.routes.models["m"]
    assert harness.admission.choose_replica(route, harness.now, NO_RETRIES.after_break("b")).replica == "b"
    with pytest.raises(RoundhouseError, match="connections to one replica were refused"):
        harness.admission.choose_replica(route, harness.now, NO_RETRIES.after_refusal("b"))


def test_a_replica_that_left_is_forgotten_when_a_retry_leaves_it() -> None:
    harness = AdmissionHarness()
    harness.table(route_of("m", ["a"]))
    ticket = harness.come()
    harness.table(route_of("m", ["b"]))
    assert _again(harness, ticket, refused=True) == "b"
    assert repr(harness.admission) == "Admission(m: b 1/1)"


def test_at_most_two_connections_break_under_one_request() -> None:
    harness = AdmissionHarness()
    harness.table(route_of("m", ["a", "b", "c"]))
    ticket = harness.come()
    assert _again(harness, ticket) == "b"
    with pytest.raises(RoundhouseError, match="connections to 2 replicas broke"):
        _again(harness, ticket)


def test_a_retry_waits_in_front_of_its_tenants_others_for_a_replica_that_it_has_not_met() -> None:
    harness = AdmissionHarness()
    harness.table(route_of("m", ["a", "b"]))
    retried, elsewhere = harness.come(), harness.come()
    others = [harness.come(rank=0), harness.come(rank=0)]
    harness.admission.record_failure("a", harness.now)
    endpoint, grants = harness.admission.retry_ticket(retried, harness.now, is_refused=True)
    assert endpoint is None
    assert who(grants) == [(others[0], "a")], "the slot that it gave up is of no use to it"
    assert harness.admission.waiting_tickets("m") == [retried, others[1]]
    assert who(harness.leave(elsewhere)) == [(retried, "b")]


def test_who_comes_passes_a_retry_that_waits_for_another_replica() -> None:
    harness = AdmissionHarness()
    harness.table(route_of("m", ["a", "b"]))
    retried, _ = harness.come(), harness.come()
    assert _again(harness, retried, refused=True) is None
    assert where(harness.come("bob")) == "a"


def test_a_retry_waits_for_a_model_that_is_loaded_anew() -> None:
    harness = AdmissionHarness()
    harness.table(route_of("m", ["a"]))
    ticket = harness.come()
    harness.table(route_of("m", state=ModelState.LOADING))
    assert _again(harness, ticket) is None
    assert who(harness.table(route_of("m", ["b"]))) == [(ticket, "b")]
    assert ticket.retries.break_count == 1


def test_a_retry_for_which_a_new_table_leaves_nothing_is_told() -> None:
    harness = AdmissionHarness()
    harness.table(route_of("m", ["a", "b"]))
    retried, other = harness.come(), harness.come()
    assert _again(harness, retried, refused=True) is None
    assert who(harness.table(route_of("m", ["a"]))) == [(retried, "engine_unreachable")]
    assert harness.admission.depths == {}
    harness.leave(other)


def test_a_replica_is_left_out_after_three_failures_in_a_row_and_an_answer_takes_it_back() -> None:
    harness = AdmissionHarness()
    harness.table(route_of("m", ["a", "b"], target=9))
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


def test_an_answer_lets_those_in_who_wait() -> None:
    harness = AdmissionHarness()
    harness.table(route_of("m", ["a", "b"]))
    harness.come()
    _leave_out(harness, "b")
    waiting = [harness.come(), harness.come()]
    assert who(harness.admission.record_answer("b", harness.now)) == [(waiting[0], "b")]
    assert harness.admission.record_answer("b", harness.now) == ()
    assert harness.admission.record_answer("unheard-of", harness.now) == ()
    assert harness.admission.record_failure("unheard-of", harness.now) == ()


def test_time_lets_a_trial_in() -> None:
    harness = AdmissionHarness()
    harness.table(route_of("m", ["a", "b"]))
    harness.come()
    _leave_out(harness, "b")
    waiting = [harness.come(), harness.come()]
    assert harness.admission.admit_trials(harness.now + FIRST_PAUSE_S / 2) == []
    assert who(harness.admission.admit_trials(harness.now + FIRST_PAUSE_S)) == [(waiting[0], "b")]
    assert harness.admission.admit_trials(harness.now + FIRST_PAUSE_S) == []


def test_a_trial_is_for_who_waits_not_for_who_comes() -> None:
    harness = AdmissionHarness()
    harness.table(route_of("m", ["a", "b"]))
    harness.come()
    _leave_out(harness, "b")
    waiting = harness.come()
    harness.now += FIRST_PAUSE_S
    assert harness.come().state == "waiting"
    assert who(harness.admission.admit_trials(harness.now)) == [(waiting, "b")]


def test_when_every_replica_is_left_out_nobody_waits() -> None:
    harness = AdmissionHarness()
    harness.table(route_of("m", ["a", "b"]))
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
    harness = AdmissionHarness()
    harness.table(route_of("m", ["a"], target=3, queue_limit=3))
    _leave_out(harness, "a")
    harness.now += FIRST_PAUSE_S
    trial = harness.come()
    assert where(trial) == "a"
    waiting = [harness.come() for _ in range(3)]
    assert [ticket.state for ticket in waiting] == ["waiting"] * 3
    assert harness.admission.admit_trials(harness.now) == []
    with pytest.raises(RoundhouseError) as refused:
        harness.come()
    assert refused.value.entry.code == "queue_full", "the line has its bound as ever"
    assert harness.admission.choose_replica(harness.routes.models["m"], harness.now).replica == "a"
    assert who(harness.admission.record_answer("a", harness.now)) == [(ticket, "a") for ticket in waiting[:2]]
    assert who(harness.leave(trial)) == [(waiting[2], "a")]


@pytest.mark.parametrize("refused", [True, False])
def test_who_waits_for_a_trial_that_fails_is_told(refused: bool) -> None:
    harness = AdmissionHarness()
    harness.table(route_of("m", ["a"], target=3))
    _leave_out(harness, "a")
    harness.now += FIRST_PAUSE_S
    trial, waiting = harness.come(), harness.come()
    assert who(harness.admission.record_failure("a", harness.now)) == [(waiting, "engine_unreachable")]
    with pytest.raises(RoundhouseError) as error:
        harness.admission.retry_ticket(trial, harness.now, is_refused=refused)
    assert error.value.entry.code == "engine_unreachable"
    with pytest.raises(RoundhouseError) as error:
        harness.come()
    assert error.value.entry.code == "engine_unreachable"
    assert harness.leave(trial) == []


def test_a_trial_that_ends_without_an_answer_makes_the_next_one_the_trial() -> None:
    harness = AdmissionHarness()
    harness.table(route_of("m", ["a"], target=3))
    _leave_out(harness, "a")
    harness.now += FIRST_PAUSE_S
    trial, *waiting = [harness.come() for _ in range(3)]
    assert who(harness.leave(trial)) == [(waiting[0], "a")]
    assert waiting[1].state == "waiting"


def test_a_retry_does_not_wait_for_a_trial_where_it_may_try_now() -> None:
    harness = AdmissionHarness()
    harness.table(route_of("m", ["a", "b"], target=2))
    _leave_out(harness, "b")
    harness.now += FIRST_PAUSE_S
    tickets = [harness.come() for _ in range(3)]
    assert [where(ticket) for ticket in tickets] == ["a", "b", "a"], "b is on trial"
    assert _again(harness, tickets[0]) == "a"


def test_a_trial_that_fails_sends_its_request_elsewhere() -> None:
    harness = AdmissionHarness()
    harness.table(route_of("m", ["a", "b"], target=2))
    harness.come()
    harness.come()
    _leave_out(harness, "a")
    harness.now += FIRST_PAUSE_S
    trial = harness.come()
    assert where(trial) == "a"
    assert _again(harness, trial, refused=True) == "b"
    harness.now += FIRST_PAUSE_S
    assert harness.come().state == "waiting", "the pause has doubled"


def test_what_is_held_against_a_replica_goes_with_it() -> None:
    harness = AdmissionHarness()
    harness.table(route_of("m", ["a", "b"]))
    _leave_out(harness, "a")
    harness.table(route_of("m", ["b"]))
    harness.table(route_of("m", ["a", "b"]))
    assert {where(harness.come()) for _ in range(2)} == {"a", "b"}


def test_who_comes_passes_every_retry_and_is_told_who_waits() -> None:
    harness = AdmissionHarness()
    harness.table(route_of("m", ["a", "b"], target=2))
    tickets = [harness.come() for _ in range(4)]
    for retried in (tickets[0], tickets[2]):
        assert _again(harness, retried, refused=True) is None
    newcomer = harness.come("bob")
    assert (where(newcomer), newcomer.place) == ("a", QueuePlace(1, 3, 0))


def test_a_retry_may_be_the_trial() -> None:
    harness = AdmissionHarness()
    harness.table(route_of("m", ["a", "b"]))
    _leave_out(harness, "b")
    ticket = harness.come()
    harness.now += FIRST_PAUSE_S
    assert _again(harness, ticket, refused=True) == "b"


def test_an_answer_lets_in_past_a_replica_that_is_left_out() -> None:
    harness = AdmissionHarness()
    harness.table(route_of("m", ["a", "b", "c"]))
    harness.come()
    for name in ("b", "c"):
        _leave_out(harness, name)
    waiting = [harness.come(), harness.come()]
    assert who(harness.admission.record_answer("b", harness.now)) == [(waiting[0], "b")]


def test_past_a_retry_that_waits_others_go_in_while_a_third_replica_is_left_out() -> None:
    harness = AdmissionHarness()
    harness.table(route_of("m", ["a", "b", "c"]))
    _leave_out(harness, "c")
    retried, elsewhere = harness.come(), harness.come()
    others = [harness.come(), harness.come()]
    harness.admission.record_failure("a", harness.now)
    endpoint, grants = harness.admission.retry_ticket(retried, harness.now, is_refused=True)
    assert (endpoint, who(grants)) == (None, [(others[0], "a")])
    assert who(harness.leave(elsewhere)) == [(retried, "b")]


def test_a_retry_is_told_when_all_that_is_left_is_left_out() -> None:
    harness = AdmissionHarness()
    harness.table(route_of("m", ["a", "b", "c"]))
    _leave_out(harness, "c")
    retried, _ = harness.come(), harness.come()
    assert _again(harness, retried, refused=True) is None
    assert who(harness.table(route_of("m", ["a", "c"]))) == [(retried, "engine_unreachable")]


def test_one_that_had_the_same_beginning_and_is_left_out_is_not_preferred() -> None:
    harness = AdmissionHarness()
    harness.table(route_of("m", ["a", "b"]))
    harness.leave(harness.come(prefix=[1]))
    _leave_out(harness, "a")
    assert where(harness.come(prefix=[1])) == "b"
