"""Retries before the first byte, and replicas that are left out."""

from __future__ import annotations

import pytest

from controller.schema.errors import RoundhouseError
from controller.schema.status import ModelState
from gateway.admission import Ticket
from gateway.breaker import FAILURES, FIRST_PAUSE_S
from tests.support.admission import House, route_of, where, who


def _again(house: House, ticket: Ticket, *, refused: bool = False) -> str | None:
    """Where it is after its replica failed; None: it waits."""
    house.admission.failed(where(ticket), house.now)
    endpoint, grants = house.admission.again(ticket, house.now, refused=refused)
    assert grants == []
    if endpoint is None:
        assert ticket.state == "waiting"
        return None
    assert where(ticket) == endpoint.replica
    return endpoint.replica


def _leave_out(house: House, replica: str) -> list[tuple[Ticket, str]]:
    """Those who come to nothing by it."""
    told = []
    for _ in range(FAILURES):
        told += who(house.admission.failed(replica, house.now))
    return told


def test_a_replica_that_refused_is_not_tried_again() -> None:
    house = House()
    house.table(route_of("m", ["a", "b"]))
    ticket = house.come()
    assert _again(house, ticket, refused=True) == "b"
    assert not ticket.tries.breaks
    with pytest.raises(RoundhouseError, match=r"connections were refused \(a, b\)") as error:
        _again(house, ticket, refused=True)
    assert error.value.entry.code == "engine_unreachable"
    assert house.admission.taken == {"b": 1}, "until it leaves"
    house.leave(ticket)
    assert house.admission.taken == {}


def test_one_that_broke_is_tried_once_more_when_no_other_is_left() -> None:
    house = House()
    house.table(route_of("m", ["a"]))
    ticket = house.come()
    assert _again(house, ticket) == "a"
    assert ticket.tries.breaks == 1
    with pytest.raises(RoundhouseError, match=r"connections broke before an answer came \(a\)"):
        _again(house, ticket)


def test_one_that_broke_is_not_tried_again_while_another_is_left_though_it_is_busier() -> None:
    house = House()
    house.table(route_of("m", ["a", "b"], target=2))
    ticket, _ = house.come(), house.come()
    assert _again(house, ticket) == "b"
    full = House()
    full.table(route_of("m", ["a", "b"]))
    ticket, other = full.come(), full.come()
    assert _again(full, ticket) is None
    assert who(full.leave(other)) == [(ticket, "b")]


def test_a_replica_that_left_is_forgotten_when_a_retry_leaves_it() -> None:
    house = House()
    house.table(route_of("m", ["a"]))
    ticket = house.come()
    house.table(route_of("m", ["b"]))
    assert _again(house, ticket, refused=True) == "b"
    assert repr(house.admission) == "Admission(m: b 1/1)"


def test_at_most_two_connections_break_under_one_request() -> None:
    house = House()
    house.table(route_of("m", ["a", "b", "c"]))
    ticket = house.come()
    assert _again(house, ticket) == "b"
    with pytest.raises(RoundhouseError, match=r"\(a, b\)"):
        _again(house, ticket)


def test_a_retry_waits_in_front_of_its_tenants_others_for_a_replica_that_it_has_not_met() -> None:
    house = House()
    house.table(route_of("m", ["a", "b"]))
    retried, elsewhere = house.come(), house.come()
    others = [house.come(rank=0), house.come(rank=0)]
    house.admission.failed("a", house.now)
    endpoint, grants = house.admission.again(retried, house.now, refused=True)
    assert endpoint is None
    assert who(grants) == [(others[0], "a")], "the slot that it gave up is of no use to it"
    assert house.admission.waiting("m") == [retried, others[1]]
    assert who(house.leave(elsewhere)) == [(retried, "b")]


def test_who_comes_passes_a_retry_that_waits_for_another_replica() -> None:
    house = House()
    house.table(route_of("m", ["a", "b"]))
    retried, _ = house.come(), house.come()
    assert _again(house, retried, refused=True) is None
    assert where(house.come("bob")) == "a"


def test_a_retry_waits_for_a_model_that_is_loaded_anew() -> None:
    house = House()
    house.table(route_of("m", ["a"]))
    ticket = house.come()
    house.table(route_of("m", state=ModelState.LOADING))
    assert _again(house, ticket) is None
    assert who(house.table(route_of("m", ["b"]))) == [(ticket, "b")]
    assert ticket.tries.breaks == 1


def test_a_retry_for_which_a_new_table_leaves_nothing_is_told() -> None:
    house = House()
    house.table(route_of("m", ["a", "b"]))
    retried, other = house.come(), house.come()
    assert _again(house, retried, refused=True) is None
    assert who(house.table(route_of("m", ["a"]))) == [(retried, "engine_unreachable")]
    assert house.admission.depths == {}
    house.leave(other)


def test_a_replica_is_left_out_after_three_failures_in_a_row_and_an_answer_takes_it_back() -> None:
    house = House()
    house.table(route_of("m", ["a", "b"], target=9))
    house.admission.failed("a", house.now)
    house.admission.failed("a", house.now)
    house.admission.answered("a", house.now)
    house.admission.failed("a", house.now)
    assert where(house.come()) == "a"
    _leave_out(house, "a")
    assert [where(house.come()) for _ in range(3)] == ["b"] * 3
    assert house.admission.choose(house.routes.models["m"], house.now).replica == "b"
    assert repr(house.admission) == "Admission(m: a 1/9 left out, b 3/9)"
    house.now += FIRST_PAUSE_S
    trial = house.come()
    assert where(trial) == "a"
    assert where(house.come()) == "b", "one trial at a time"
    house.admission.answered("a", house.now)
    assert where(house.come()) == "a"


def test_an_answer_lets_those_in_who_wait() -> None:
    house = House()
    house.table(route_of("m", ["a", "b"]))
    house.come()
    _leave_out(house, "b")
    waiting = [house.come(), house.come()]
    assert who(house.admission.answered("b", house.now)) == [(waiting[0], "b")]
    assert house.admission.answered("b", house.now) == ()
    assert house.admission.answered("unheard-of", house.now) == ()
    assert house.admission.failed("unheard-of", house.now) == ()


def test_time_lets_a_trial_in() -> None:
    house = House()
    house.table(route_of("m", ["a", "b"]))
    house.come()
    _leave_out(house, "b")
    waiting = [house.come(), house.come()]
    assert house.admission.tick(house.now + FIRST_PAUSE_S / 2) == []
    assert who(house.admission.tick(house.now + FIRST_PAUSE_S)) == [(waiting[0], "b")]
    assert house.admission.tick(house.now + FIRST_PAUSE_S) == []


def test_a_trial_is_for_who_waits_not_for_who_comes() -> None:
    house = House()
    house.table(route_of("m", ["a", "b"]))
    house.come()
    _leave_out(house, "b")
    waiting = house.come()
    house.now += FIRST_PAUSE_S
    assert house.come().state == "waiting"
    assert who(house.admission.tick(house.now)) == [(waiting, "b")]


def test_when_every_replica_is_left_out_nobody_waits() -> None:
    house = House()
    house.table(route_of("m", ["a", "b"]))
    inside = [house.come(), house.come()]
    waiting = [house.come("alice"), house.come("bob")]
    assert _leave_out(house, "a") == []
    assert dict(_leave_out(house, "b")) == dict.fromkeys(waiting, "engine_unreachable")
    assert [ticket.state for ticket in waiting] == ["gone"] * 2
    house.now += FIRST_PAUSE_S / 4
    for try_it in (house.come, lambda: house.admission.choose(house.routes.models["m"], house.now)):
        with pytest.raises(RoundhouseError, match="left out for a moment") as error:
            try_it()
        assert error.value.retry_after_s == FIRST_PAUSE_S * 3 / 4
    for ticket in inside:
        assert house.leave(ticket) == []
    house.now += FIRST_PAUSE_S
    assert {where(house.come()) for _ in range(2)} == {"a", "b"}


def test_while_one_trial_runs_the_others_wait_for_how_it_ends() -> None:
    house = House()
    house.table(route_of("m", ["a"], target=3, queue_limit=3))
    _leave_out(house, "a")
    house.now += FIRST_PAUSE_S
    trial = house.come()
    assert where(trial) == "a"
    waiting = [house.come() for _ in range(3)]
    assert [ticket.state for ticket in waiting] == ["waiting"] * 3
    assert house.admission.tick(house.now) == []
    with pytest.raises(RoundhouseError) as refused:
        house.come()
    assert refused.value.entry.code == "queue_full", "the line has its bound as ever"
    assert house.admission.choose(house.routes.models["m"], house.now).replica == "a"
    assert who(house.admission.answered("a", house.now)) == [(ticket, "a") for ticket in waiting[:2]]
    assert who(house.leave(trial)) == [(waiting[2], "a")]


@pytest.mark.parametrize("refused", [True, False])
def test_who_waits_for_a_trial_that_fails_is_told(refused: bool) -> None:
    house = House()
    house.table(route_of("m", ["a"], target=3))
    _leave_out(house, "a")
    house.now += FIRST_PAUSE_S
    trial, waiting = house.come(), house.come()
    assert who(house.admission.failed("a", house.now)) == [(waiting, "engine_unreachable")]
    with pytest.raises(RoundhouseError) as error:
        house.admission.again(trial, house.now, refused=refused)
    assert error.value.entry.code == "engine_unreachable"
    with pytest.raises(RoundhouseError) as error:
        house.come()
    assert error.value.entry.code == "engine_unreachable"
    assert house.leave(trial) == []


def test_a_trial_that_ends_without_an_answer_makes_the_next_one_the_trial() -> None:
    house = House()
    house.table(route_of("m", ["a"], target=3))
    _leave_out(house, "a")
    house.now += FIRST_PAUSE_S
    trial, *waiting = [house.come() for _ in range(3)]
    assert who(house.leave(trial)) == [(waiting[0], "a")]
    assert waiting[1].state == "waiting"


def test_a_retry_does_not_wait_for_a_trial_where_it_may_try_now() -> None:
    house = House()
    house.table(route_of("m", ["a", "b"], target=2))
    _leave_out(house, "b")
    house.now += FIRST_PAUSE_S
    tickets = [house.come() for _ in range(3)]
    assert [where(ticket) for ticket in tickets] == ["a", "b", "a"], "b is on trial"
    assert _again(house, tickets[0]) == "a"


def test_a_trial_that_fails_sends_its_request_elsewhere() -> None:
    house = House()
    house.table(route_of("m", ["a", "b"], target=2))
    house.come()
    house.come()
    _leave_out(house, "a")
    house.now += FIRST_PAUSE_S
    trial = house.come()
    assert where(trial) == "a"
    assert _again(house, trial, refused=True) == "b"
    house.now += FIRST_PAUSE_S
    assert house.come().state == "waiting", "the pause has doubled"


def test_what_is_held_against_a_replica_goes_with_it() -> None:
    house = House()
    house.table(route_of("m", ["a", "b"]))
    _leave_out(house, "a")
    house.table(route_of("m", ["b"]))
    house.table(route_of("m", ["a", "b"]))
    assert {where(house.come()) for _ in range(2)} == {"a", "b"}
